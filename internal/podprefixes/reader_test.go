package podprefixes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/internal/kube"
)

// apiServer is the part of an API server that the reader asks: discovery and objects, by path. What is not
// there is not found.
type apiServer struct {
	mu sync.Mutex
	// objects are responses by path, and codes the errors of paths.
	objects map[string]any
	codes   map[string]int
	asked   []string
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	code, body := http.StatusOK, s.objects[r.URL.Path+r.URL.Query().Get("continue")]
	if body == nil {
		code = http.StatusNotFound
	}
	if c := s.codes[r.URL.Path]; c != 0 {
		code = c
	}
	if code != http.StatusOK {
		reason := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusForbidden: metav1.StatusReasonForbidden}[code]
		body = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code)}
		w.WriteHeader(code)
	}
	_ = json.NewEncoder(w).Encode(body)
}

// serve adds a kind with its discovery, and objects in pages.
func (s *apiServer) serve(group, version, kind, resource string, pages ...[]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gv := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + version, Version: version}
	api := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: group, Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv}
	groups, _ := s.objects["/apis"].(metav1.APIGroupList)
	groups.TypeMeta = metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}
	groups.Groups = append(slices.DeleteFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == group }), api)
	s.objects["/apis"] = groups
	resources, _ := s.objects["/apis/"+gv.GroupVersion].(metav1.APIResourceList)
	resources.TypeMeta, resources.GroupVersion = metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, gv.GroupVersion
	resources.APIResources = append(resources.APIResources, metav1.APIResource{Name: resource, Kind: kind, Verbs: metav1.Verbs{"list"}})
	s.objects["/apis/"+gv.GroupVersion] = resources
	path, next := "/apis/"+gv.GroupVersion+"/"+resource, ""
	for i, items := range pages {
		meta := map[string]any{}
		at := path + next
		if i < len(pages)-1 {
			next = "page" + string(rune('a'+i))
			meta["continue"] = next
		}
		s.objects[at] = map[string]any{"kind": kind + "List", "apiVersion": gv.GroupVersion, "metadata": meta, "items": items}
	}
}

func (s *apiServer) config(name string, data map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects["/api/v1/namespaces/kube-system/configmaps/"+name] = corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Data: data,
	}
}

func (s *apiServer) fail(path string, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.codes[path] = code
}

// newReader returns a reader of an API server, in a cluster with a node and a pod.
func newReader(t *testing.T, podAt string) (r *Reader, s *apiServer, log *bytes.Buffer, clock *time.Time) {
	t.Helper()
	s = &apiServer{codes: map[string]int{}, objects: map[string]any{
		"/api":  metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"}},
		"/apis": metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}},
		"/api/v1": metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"get"}},
		}},
	}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	direct, err := client.New(&rest.Config{Host: server.URL, QPS: -1}, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.0.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.1.1"}}},
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: podAt}}},
	}
	log, clock = &bytes.Buffer{}, new(time.Time)
	*clock = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return &Reader{
		Cached: fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(n, p).Build(), Direct: direct,
		Reserved: func(context.Context) ([]netip.Prefix, error) { return prefixes("10.96.0.0/12"), nil },
		Now:      func() time.Time { return *clock }, Log: slog.New(slog.NewTextHandler(log, nil)),
	}, s, log, clock
}

func spec(of map[string]any) any { return map[string]any{"spec": of} }

func TestReaderLearnsFromWhatTheClusterHas(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		at    string
		serve func(*apiServer)
		want  []netip.Prefix
		from  []Source
	}{
		"nothing": {"10.0.3.9", func(*apiServer) {}, nil, []Source{Nodes}},
		"Calico, page by page": {"10.1.3.9", func(s *apiServer) {
			s.serve("crd.projectcalico.org", "v1", "IPPool", "ippools", []any{spec(map[string]any{"cidr": "10.0.0.0/16"})}, []any{spec(map[string]any{"cidr": "10.1.0.0/16"})})
		}, prefixes("10.0.0.0/16", "10.1.0.0/16"), []Source{Nodes, Calico}},
		"Calico without its older kinds": {"10.1.3.9", func(s *apiServer) {
			s.serve("projectcalico.org", "v3", "IPPool", "ippools", []any{spec(map[string]any{"cidr": "10.1.0.0/16"}), spec(map[string]any{"cidr": "10.2.0.0/16", "disabled": true})})
		}, prefixes("10.1.0.0/16"), []Source{Nodes, Calico}},
		"a pod in a disabled pool of Calico": {"10.2.3.9", func(s *apiServer) {
			s.serve("projectcalico.org", "v3", "IPPool", "ippools", []any{spec(map[string]any{"cidr": "10.1.0.0/16"}), spec(map[string]any{"cidr": "10.2.0.0/16", "disabled": true})})
		}, prefixes("10.2.0.0/16"), []Source{Nodes, CalicoDisabled}},
		"Cilium with its default pool": {"10.0.3.9", func(s *apiServer) {
			s.config("cilium-config", map[string]string{"ipam": "cluster-pool", "cluster-pool-ipv4-cidr": "10.0.0.0/8"})
			s.serve("cilium.io", "v2", "CiliumNode", "ciliumnodes", []any{spec(map[string]any{"ipam": map[string]any{"podCIDRs": []string{"10.0.3.0/24"}}})})
		}, prefixes("10.0.3.0/24"), []Source{Nodes, Cilium}},
		"Cilium with several pools, in another namespace": {"10.9.3.9", func(s *apiServer) {
			s.serve("cilium.io", "v2alpha1", "CiliumPodIPPool", "ciliumpodippools", []any{spec(map[string]any{"ipv4": map[string]any{"cidrs": []any{map[string]any{"cidr": "10.9.0.0/16"}}}})})
		}, prefixes("10.9.0.0/16"), []Source{Nodes, Cilium}},
		"Cilium whose nodes have other prefixes than it uses": {"10.0.3.9", func(s *apiServer) {
			s.config("cilium-config", map[string]string{"ipam": "eni"})
			s.serve("cilium.io", "v2", "CiliumNode", "ciliumnodes", []any{spec(map[string]any{"ipam": map[string]any{"podCIDRs": []string{"10.0.3.0/24"}}})})
		}, nil, []Source{Nodes}},
		"kubeadm": {"10.244.3.9", func(s *apiServer) {
			s.config("kubeadm-config", map[string]string{"ClusterConfiguration": "networking: {podSubnet: 10.244.0.0/16}"})
		}, prefixes("10.244.0.0/16"), []Source{Nodes, Kubeadm}},
		"kubeadm, and all pods where their nodes say": {"10.244.0.9", func(s *apiServer) {
			s.config("kubeadm-config", map[string]string{"ClusterConfiguration": "networking: {podSubnet: 10.244.0.0/16}"})
		}, nil, []Source{Nodes}},
	} {
		r, s, log, _ := newReader(t, tc.at)
		tc.serve(s)
		got, err := r.Learn(t.Context())
		if err != nil || !slices.Equal(got.Prefixes, tc.want) || !slices.Equal(got.Sources, tc.from) {
			t.Errorf("%s: %+v, %v\n%s", name, got, err, log)
		}
		for _, what := range s.asked {
			if !strings.HasPrefix(what, "GET ") {
				t.Errorf("%s: it asks %s", name, what)
			}
		}
	}
}

// In a cloud whose plugin lists no prefixes it says what to set.
func TestReaderSaysWhatToSetInACloud(t *testing.T) {
	t.Parallel()
	r, s, log, _ := newReader(t, "192.168.1.77")
	s.serve("crd.k8s.amazonaws.com", "v1alpha1", "ENIConfig", "eniconfigs", []any{})
	got, err := r.Learn(t.Context())
	if err != nil || got.Advice != adviceAWS || len(got.Prefixes) > 0 {
		t.Errorf("%+v, %v\n%s", got, err, log)
	}
	if slices.ContainsFunc(s.asked, func(what string) bool { return strings.HasSuffix(what, "eniconfigs") }) {
		t.Error("it lists ENIConfigs, for which it has no right")
	}
}

// What may not be read, or is malformed, is said once and stops nothing.
func TestReaderGoesOnWithoutWhatItCannotRead(t *testing.T) {
	t.Parallel()
	r, s, log, _ := newReader(t, "10.244.3.9")
	s.serve("crd.projectcalico.org", "v1", "IPPool", "ippools", []any{})
	s.fail("/apis/crd.projectcalico.org/v1/ippools", http.StatusForbidden)
	s.config("cilium-config", map[string]string{"ipam": "cluster-pool", "cluster-pool-ipv4-cidr": "0.0.0.0/0 pods"})
	s.config("kubeadm-config", map[string]string{"ClusterConfiguration": "networking: {podSubnet: 10.244.0.0/16}"})
	for range 3 {
		if got, err := r.Learn(t.Context()); err != nil || !slices.Equal(got.Prefixes, prefixes("10.244.0.0/16")) {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	for _, text := range []string{"IPPool.crd.projectcalico.org", "0.0.0.0/0 is not a prefix of pods", "where the pods of this cluster"} {
		if n := strings.Count(log.String(), text); n != 1 {
			t.Errorf("%q is logged %d times:\n%s", text, n, log)
		}
	}
}

// Prefixes do not shrink because the API server fails for a moment, when the agent starts or later.
func TestReaderKeepsPrefixesWhileTheAPIServerFails(t *testing.T) {
	t.Parallel()
	r, s, log, clock := newReader(t, "10.1.3.9")
	const path = "/apis/crd.projectcalico.org/v1/ippools"
	s.serve("crd.projectcalico.org", "v1", "IPPool", "ippools", []any{spec(map[string]any{"cidr": "10.1.0.0/16"})})
	s.fail(path, http.StatusServiceUnavailable)
	if _, err := r.Learn(t.Context()); !errors.Is(err, errPending) {
		t.Fatalf("before the first response: %v, want %v", err, errPending)
	}
	*clock = clock.Add(patience)
	if got, err := r.Learn(t.Context()); err != nil || len(got.Prefixes) > 0 {
		t.Fatalf("when it fails for long: %+v, %v", got, err)
	}
	for _, code := range []int{0, http.StatusInternalServerError, http.StatusForbidden} {
		s.fail(path, code)
		*clock = clock.Add(time.Hour)
		if got, err := r.Learn(t.Context()); err != nil || !slices.Equal(got.Prefixes, prefixes("10.1.0.0/16")) {
			t.Errorf("after code %d: %+v, %v\n%s", code, got, err, log)
		}
	}
	s.serve("crd.projectcalico.org", "v1", "IPPool", "ippools", []any{})
	s.fail(path, 0)
	if got, err := r.Learn(t.Context()); err != nil || len(got.Prefixes) > 0 {
		t.Errorf("without pools: %+v, %v", got, err)
	}
}

// Of pods on the nodes' network, of those that ended and of virtual nodes nothing follows.
func TestOnlyPodsOnThePodNetworkCount(t *testing.T) {
	t.Parallel()
	at := corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}, {IP: "nowhere"}}}
	ended := at
	ended.Phase = corev1.PodSucceeded
	got := podsOf([]corev1.Pod{
		{Spec: corev1.PodSpec{NodeName: "n1"}, Status: at},
		{Spec: corev1.PodSpec{NodeName: "n1", HostNetwork: true}, Status: at},
		{Spec: corev1.PodSpec{NodeName: "n1"}, Status: ended},
		{Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodPending}},
	})
	if len(got) != 1 || got[0].Node != "n1" || !slices.Equal(got[0].Addrs, addrs("10.0.0.1", "fd00::1")) {
		t.Errorf("got %+v", got)
	}
}

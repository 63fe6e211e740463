package offload

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/fixture"
	"github.com/entente-dev/entente/internal/offloadedpod"
	"github.com/entente-dev/entente/internal/podsecurity"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// The other levels of the Pod Security Standards.
const (
	privileged api.PodSecurityLevel = "privileged"
	baseline   api.PodSecurityLevel = "baseline"
)

const (
	peerA = peering.ClusterID("aaaaaaaabbbbbbbbccccccccdddddddd")
	self  = peering.ClusterID("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
	peerB = peering.ClusterID("zzzzzzzzbbbbbbbbccccccccdddddddd")
)

func TestRemoteNamespacesAreUniqueLabels(t *testing.T) {
	long := strings.Repeat("a", 63)
	suffixed, same := peering.NamespaceObject{Mapping: "Suffixed"}, peering.NamespaceObject{Mapping: "Same"}
	chosen := func(name string) peering.NamespaceObject {
		return peering.NamespaceObject{Mapping: "Chosen", Name: name}
	}
	tests := map[string]struct {
		name string
		as   peering.NamespaceObject
		// want is empty if it is refused.
		want string
	}{
		"a name gets the consumer's ID":            {"shop", suffixed, "shop-aaaaaaaa"},
		"the same name stays":                      {"shop", same, "shop"},
		"this cluster's own names are refused":     {"kube-public", same, ""},
		"a mapping that there is not is refused":   {"shop", peering.NamespaceObject{Mapping: "Other"}, ""},
		"a system name can be had with a suffix":   {"kube-system", suffixed, "kube-system-aaaaaaaa"},
		"a name that just fits is not cut":         {long[:54], suffixed, long[:54] + "-aaaaaaaa"},
		"a chosen name is used as it is":           {"shop", chosen("rome-shop"), "rome-shop"},
		"a system's namespace can have one":        {"kube-system", chosen("rome"), "rome"},
		"no system's name is chosen":               {"shop", chosen("kube-rome"), ""},
		"nor none":                                 {"shop", chosen(""), ""},
		"nor one that is not a label":              {"shop", chosen("rome.shop"), ""},
		"nor in capitals":                          {"shop", chosen("Rome"), ""},
		"nor one that is too long":                 {"shop", chosen(long + "a"), ""},
		"nor a pattern":                            {"shop", chosen("rome-*"), ""},
		"a name is chosen with its mapping, alone": {"shop", peering.NamespaceObject{Mapping: "Suffixed", Name: "rome"}, ""},
		"and with no other":                        {"shop", peering.NamespaceObject{Mapping: "Same", Name: "rome"}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := RemoteNamespace(peerA, tc.name, tc.as)
			if got != tc.want || (err != nil) != (tc.want == "") {
				t.Fatalf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
	x, _ := RemoteNamespace(peerA, long, suffixed)
	y, _ := RemoteNamespace(peerA, long[:62]+"b", suffixed)
	z, _ := RemoteNamespace(peerB, long, suffixed)
	if x == y || x == z || len(x) != 63 {
		t.Fatalf("%q, %q and %q", x, y, z)
	}
}

func TestNamesThatAPolicyGives(t *testing.T) {
	for _, tc := range []struct {
		list, name string
		want       bool
	}{
		{"shop", "shop", true},
		{"shop", "shop2", false},
		{"rome-*", "rome-shop", true},
		{"rome-*", "rome-", true},
		{"rome-*", "rome", false},
		{"rome-*", "xrome-shop", false},
		{"a b rome-*", "rome-x", true},
		{"*", "shop", false}, // the API server takes no such entry
		{"ro*e", "rome", false},
		{"", "", false},
		{"", "shop", false},
	} {
		if got := granted(strings.Fields(tc.list), tc.name); got != tc.want {
			t.Errorf("%q gives %q: %v", tc.list, tc.name, got)
		}
	}
}

func FuzzRemoteNamespace(f *testing.F) {
	f.Add("shop", "Suffixed", "")
	f.Add("kube-system", "Same", "")
	f.Add("shop", "Chosen", "rome-shop")
	f.Add(strings.Repeat("a", 63), "Chosen", "kube-x")
	f.Fuzz(func(t *testing.T, name, mapping, chosen string) {
		if len(validation.IsDNS1123Label(name)) > 0 {
			return // the consumer's API server has no such namespace
		}
		got, err := RemoteNamespace(peerA, name, peering.NamespaceObject{Mapping: mapping, Name: chosen})
		if err != nil {
			return
		}
		if problems := validation.IsDNS1123Label(got); len(problems) > 0 {
			t.Errorf("%q: %v", got, problems)
		}
		if strings.HasPrefix(got, "kube-") && !strings.HasSuffix(got, "-"+peerA.Short()) {
			t.Errorf("%q is the provider's own", got)
		}
	})
}

var container = fixture.Container

func TestFitsCountsEveryResourceOfTheContract(t *testing.T) {
	list := func(s string) corev1.ResourceList { return container(s, "").Resources.Requests }
	tests := map[string]struct {
		limit, used, need string
		want, names       string
	}{
		"an amount within the limit fits":               {"cpu=2,pods=10", "cpu=1,pods=1", "cpu=1,pods=1", "", ""},
		"one milli too much does not fit":               {"cpu=2", "cpu=1", "cpu=1001m", "QUOTA_EXCEEDED", "cpu"},
		"pods are counted":                              {"cpu=2,pods=1", "pods=1", "pods=1", "QUOTA_EXCEEDED", "pods"},
		"a contract without pods takes none":            {"cpu=2", "", "cpu=1,pods=1", "QUOTA_EXCEEDED", "pods"},
		"a resource that the contract lacks is refused": {"cpu=2", "", "nvidia.com/gpu=1", "QUOTA_EXCEEDED", "nvidia.com/gpu"},
		"an amount of 0 of it is accepted":              {"cpu=2", "", "nvidia.com/gpu=0,cpu=1", "", ""},
		"an empty contract grants nothing":              {"", "", "cpu=1m", "QUOTA_EXCEEDED", "cpu"},
		"used beyond the contract stays refused":        {"cpu=1", "cpu=2", "cpu=1m", "QUOTA_EXCEEDED", "cpu"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := fits(list(tc.limit), list(tc.used), list(tc.need))
			if tc.want == "" && got != nil {
				t.Fatalf("refused: %v", got)
			}
			if tc.want != "" && (got == nil || string(got.Reason) != tc.want || !strings.Contains(got.Message, tc.names)) {
				t.Fatalf("got %v, want %s about %s", got, tc.want, tc.names)
			}
		})
	}
}

func TestOnlyClaimsOfTheConsumerAreMounted(t *testing.T) {
	for name, ok := range map[string]bool{"entente-x": true, "x": false} {
		spec := &corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}}
		if err := checkMounts(spec); (err == nil) != ok {
			t.Errorf("claim %s: %v", name, err)
		}
	}
}

func TestLooserLevel(t *testing.T) {
	t.Parallel()
	for _, tc := range [][3]api.PodSecurityLevel{
		{podsecurity.Restricted, podsecurity.Restricted, podsecurity.Restricted}, {podsecurity.Restricted, baseline, baseline}, {privileged, baseline, privileged}, {"", baseline, baseline}, {"", podsecurity.Restricted, podsecurity.Restricted},
	} {
		if podsecurity.Looser(tc[0], tc[1]) != tc[2] || podsecurity.Looser(tc[1], tc[0]) != tc[2] {
			t.Errorf("of %q and %q not %q is looser", tc[0], tc[1], tc[2])
		}
	}
}

func TestPodSecurityIsTheContracts(t *testing.T) {
	ps, err := podsecurity.New()
	if err != nil {
		t.Fatal(err)
	}
	plain := `{"spec":{"containers":[{"name":"c","image":"i"}]}}`
	host := `{"spec":{"hostNetwork":true,"containers":[{"name":"c","image":"i","securityContext":{"privileged":true}}]}}`
	for _, tc := range []struct {
		pod   string
		level api.PodSecurityLevel
		ok    bool
	}{
		{plain, privileged, true},
		{plain, baseline, true},
		{plain, podsecurity.Restricted, false},
		{host, privileged, true},
		{host, baseline, false},
		{host, podsecurity.Restricted, false},
		{plain, podsecurity.Level(""), false},
		{plain, podsecurity.Level("else"), false},
	} {
		tpl, err := readPod([]byte(tc.pod))
		if err != nil {
			t.Fatal(err)
		}
		got := ps.Check(tpl, tc.level)
		if (got == nil) != tc.ok {
			t.Errorf("%s at %s: %v", tc.pod, tc.level, got)
		}
		if got != nil && (got.Reason != peering.RefusedPodSecurity || !strings.Contains(got.Message, string(tc.level)) || !strings.Contains(got.Message, "securityContext")) {
			t.Errorf("message %q", got.Message)
		}
	}
}

func TestDecidePodIsTotal(t *testing.T) {
	now := metav1.Now()
	made := func(edit func(*api.OffloadedPod)) *api.OffloadedPod {
		o := &api.OffloadedPod{ObjectMeta: metav1.ObjectMeta{UID: "o1", Finalizers: []string{api.Finalizer}}}
		o.Spec.OriginUID, o.Spec.Hash = "u1", "h1"
		if edit != nil {
			edit(o)
		}
		return o
	}
	pod := func(uid types.UID, owner types.UID, edit func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			UID: uid, Labels: map[string]string{api.LabelManaged: api.Manager, api.LabelOriginUID: "u1"},
			Annotations:     map[string]string{api.AnnotationHash: "h1"},
			OwnerReferences: []metav1.OwnerReference{{UID: owner, Controller: new(true)}},
		}}
		if edit != nil {
			edit(p)
		}
		return p
	}
	running := func(o *api.OffloadedPod) { o.Status.PodUID, o.Status.Phase = "p1", corev1.PodRunning }
	runs := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
	ends := func(o *api.OffloadedPod) { running(o); o.DeletionTimestamp = &now }
	over := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	deleting := func(grace int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace }
	}
	kept := func(edit ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Finalizers = []string{api.Finalizer}
			for _, f := range edit {
				f(p)
			}
		}
	}
	tests := map[string]struct {
		o    *api.OffloadedPod
		pod  *corev1.Pod
		want podStep
	}{
		"a new one without finalizer gets it":         {made(func(o *api.OffloadedPod) { o.Finalizers = nil }), nil, podAddFinalizer},
		"a new one gets its pod":                      {made(nil), nil, podCreate},
		"a new one whose pod was made before, adopts": {made(nil), pod("p1", "o1", nil), podAdopt},
		"a name that another pod has is waited for":   {made(nil), pod("p1", "someone", nil), podTaken},
		"a pod that runs is left alone":               {made(running), pod("p1", "o1", runs), podWait},
		"another phase is recorded":                   {made(running), pod("p1", "o1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), podRecord},
		"an address is recorded":                      {made(running), pod("p1", "o1", func(p *corev1.Pod) { runs(p); p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}} }), podRecord},
		"an address that is known is not":             {made(func(o *api.OffloadedPod) { running(o); o.Status.PodIPs = []string{"10.0.0.1"} }), pod("p1", "o1", func(p *corev1.Pod) { runs(p); p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}} }), podWait},
		"that of its node is not a pod's": {made(running), pod("p1", "o1", func(p *corev1.Pod) {
			runs(p)
			p.Spec.HostNetwork = true
			p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
		}), podWait},
		"a solved problem is recorded":                           {made(func(o *api.OffloadedPod) { running(o); o.Status.Reason = "Refused" }), pod("p1", "o1", runs), podRecord},
		"another form is brought to the pod":                     {made(func(o *api.OffloadedPod) { running(o); o.Spec.Hash = "h2" }), pod("p1", "o1", runs), podUpdate},
		"a pod that went is lost":                                {made(running), nil, podLost},
		"a pod that is there twice is deleted":                   {made(running), pod("p2", "o1", runs), podDelete},
		"while it ends, the recorded one is not lost":            {made(running), pod("p2", "o1", func(p *corev1.Pod) { p.DeletionTimestamp = &now }), podWait},
		"it is released":                                         {made(running), pod("p2", "o1", kept(func(p *corev1.Pod) { p.DeletionTimestamp = &now; p.DeletionGracePeriodSeconds = new(int64(30)) })), podRelease},
		"another's pod of its name is not deleted":               {made(running), pod("p2", "o2", runs), podLost},
		"one that ended stays ended":                             {made(func(o *api.OffloadedPod) { o.Status.Phase = corev1.PodSucceeded }), nil, podWait},
		"one that ended without a pod is not made":               {made(func(o *api.OffloadedPod) { o.Status.Phase = corev1.PodFailed }), nil, podWait},
		"being deleted, the pod is deleted":                      {made(ends), pod("p1", "o1", runs), podDelete},
		"being deleted, an ended pod is deleted":                 {made(func(o *api.OffloadedPod) { ends(o); o.Status.Phase = corev1.PodSucceeded }), pod("p1", "o1", nil), podDelete},
		"being deleted, a pod that ends is waited for":           {made(ends), pod("p1", "o1", func(p *corev1.Pod) { p.DeletionTimestamp = &now }), podWait},
		"being deleted, a pod gets a shorter grace period":       {made(func(o *api.OffloadedPod) { ends(o); o.Annotations = map[string]string{noteGrace: "0"} }), pod("p1", "o1", func(p *corev1.Pod) { p.DeletionTimestamp = &now; p.DeletionGracePeriodSeconds = new(int64(30)) }), podDelete},
		"being deleted, without a pod it may go":                 {made(ends), nil, podRemoveFinalizer},
		"being deleted, another's pod is left alone":             {made(ends), pod("p2", "o1", runs), podRemoveFinalizer},
		"a pod that may complete and runs keeps its finalizer":   {made(running), pod("p1", "o1", kept(runs)), podWait},
		"its end is recorded first":                              {made(running), pod("p1", "o1", kept(over)), podRecord},
		"its end is recorded first, though it is being deleted":  {made(running), pod("p1", "o1", kept(over, deleting(0))), podRecord},
		"then it is released":                                    {made(func(o *api.OffloadedPod) { running(o); o.Status.Phase = corev1.PodSucceeded }), pod("p1", "o1", kept(over)), podRelease},
		"while it is being deleted and runs, it is waited for":   {made(running), pod("p1", "o1", kept(runs, deleting(30))), podWait},
		"deleted by force, it is released":                       {made(running), pod("p1", "o1", kept(runs, deleting(0))), podRelease},
		"being deleted, it is deleted":                           {made(ends), pod("p1", "o1", kept(runs)), podDelete},
		"being deleted, it is waited for while it ends":          {made(ends), pod("p1", "o1", kept(runs, deleting(30))), podWait},
		"being deleted, it is released once it ended":            {made(ends), pod("p1", "o1", kept(over, deleting(0))), podRelease},
		"being deleted, an ended one is deleted, then released":  {made(ends), pod("p1", "o1", kept(over)), podDelete},
		"one whose record is gone is released":                   {made(nil), pod("p1", "o0", kept(runs, deleting(30))), podRelease},
		"one whose record is gone is not deleted":                {made(nil), pod("p1", "o0", kept(runs)), podTaken},
		"one whose record is gone is released before the record": {made(ends), pod("p2", "o0", kept(runs, deleting(30))), podRelease},
		"being deleted before its pod was recorded":              {made(func(o *api.OffloadedPod) { o.DeletionTimestamp = &now }), pod("p1", "o1", nil), podDelete},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := decidePod(tc.o, tc.pod); got != tc.want {
				t.Fatalf("decidePod = %d, want %d", got, tc.want)
			}
		})
	}
}

func service(headless bool, endpoints ...peering.ServiceEndpoint) peering.ServiceObject {
	return peering.ServiceObject{
		Headless: headless, Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53}},
		Endpoints: endpoints,
	}
}

func end(addr string, port int32) peering.ServiceEndpoint {
	return peering.ServiceEndpoint{Address: addr, Ready: true, Serving: true, Ports: map[string]int32{"http": port}}
}

func TestEndpointSlicesHoldWhatCanBeReached(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop-a", Name: "web", UID: "s1", Labels: map[string]string{api.LabelPeer: string(peerA)}}}
	shift := func(e peering.ServiceEndpoint) (netip.Addr, bool) {
		a, err := netip.ParseAddr(e.Address)
		if err != nil || strings.HasPrefix(e.Address, "192.168.") {
			return a, false
		}
		return a, true
	}
	got, dropped := endpoints.Slices(svc, service(true,
		end("10.241.0.9", 8080), end("10.241.0.7", 8080), end("10.241.0.7", 8080), end("fd00::1", 8080), end("10.241.0.8", 9090),
		end("192.168.1.1", 80), end("127.0.0.1", 80), end("169.254.169.254", 80), end("224.0.0.1", 80), end("not an address", 80),
	), shift)
	if diff := cmp.Diff([]string{"192.168.1.1", "127.0.0.1", "169.254.169.254", "224.0.0.1", "not an address"}, dropped); diff != "" {
		t.Errorf("dropped (-want +got)\n%s", diff)
	}
	var all []string
	for _, s := range got {
		if s.Labels[discoveryv1.LabelManagedBy] != "entente" || s.Labels[discoveryv1.LabelServiceName] != "web" || len(s.OwnerReferences) != 1 {
			t.Errorf("slice %+v", s.ObjectMeta)
		}
		if _, ok := s.Labels[corev1.IsHeadlessService]; !ok {
			t.Error("a slice of a headless service does not say so")
		}
		for _, e := range s.Endpoints {
			all = append(all, fmt.Sprintf("%s %s %s:%d", s.AddressType, *s.Ports[0].Name, e.Addresses[0], *s.Ports[0].Port))
		}
		if len(s.Ports) != 1 {
			t.Errorf("ports %v", s.Ports)
		}
	}
	slices.Sort(all)
	want := []string{"IPv4 http 10.241.0.7:8080", "IPv4 http 10.241.0.8:9090", "IPv4 http 10.241.0.9:8080", "IPv6 http fd00::1:8080"}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("endpoints (-want +got)\n%s", diff)
	}
}

func TestEndpointSlicesAreAFunctionOfTheSetOfEndpoints(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{}}}
	direct := func(e peering.ServiceEndpoint) (netip.Addr, bool) {
		a, err := netip.ParseAddr(e.Address)
		return a, err == nil
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 350).Draw(t, "n")
		var ends []peering.ServiceEndpoint
		for i := range n {
			ends = append(ends, end(fmt.Sprintf("10.%d.%d.%d", i%3, i/250, i%250), int32(8080+i%2)))
		}
		a, _ := endpoints.Slices(svc, service(false, ends...), direct)
		b, _ := endpoints.Slices(svc, service(false, rapid.Permutation(ends).Draw(t, "order")...), direct)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Fatalf("order matters:\n%s", diff)
		}
		names, total := map[string]bool{}, 0
		for _, s := range a {
			if names[s.Name] || len(s.Endpoints) == 0 || len(s.Endpoints) > endpoints.SliceSize {
				t.Fatalf("slice %s has %d endpoints", s.Name, len(s.Endpoints))
			}
			names[s.Name] = true
			total += len(s.Endpoints)
		}
		if total != n {
			t.Fatalf("%d of %d endpoints", total, n)
		}
	})
}

// FuzzReadPod: no pod crashes the agent, and none keeps forbidden fields.
func FuzzReadPod(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1"}}}]}}`))
	f.Add([]byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"nodeName":"n","containers":[{}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{}}},"volumes":[{"projected":{"sources":[{}]}}]}}`))
	ps, err := podsecurity.New()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1e2147483647"}}}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		tpl, err := readPod(b)
		if err != nil || podspec.Admit(tpl, podspec.Terms{PodSecurity: baseline}) != nil {
			return
		}
		need, err := podspec.Demand(&tpl.Spec)
		if err != nil {
			return
		}
		for name, q := range need {
			if q.Sign() < 0 {
				t.Fatalf("%s: %s", name, q.String())
			}
		}
		ps.Check(tpl, podsecurity.Restricted)
		s := tpl.Spec
		if s.NodeName != "" || s.ServiceAccountName != "default" || *s.AutomountServiceAccountToken || s.Priority != nil || s.RuntimeClassName != nil && *s.RuntimeClassName != "" {
			t.Fatalf("kept %+v", s)
		}
		raw, err := json.Marshal(tpl)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readPod(raw); err != nil {
			t.Fatalf("what is stored cannot be read: %v", err)
		}
	})
}

func TestPodsAreMadeForTheirRecordsAndForNothingElse(t *testing.T) {
	o := &api.OffloadedPod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop-aaaaaaaa", Name: "web-0", UID: "o1"}}
	o.Spec.Contract, o.Spec.PeerID, o.Spec.OriginUID, o.Spec.Hash = "c-1", string(peerA), "u1", "h"
	o.Spec.Template.Raw = []byte(`{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	pod, err := makePod(o)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Namespace != o.Namespace || pod.Name != o.Name || len(pod.Finalizers) > 0 || !offloadedpod.IsPodOf(pod, o) ||
		pod.Labels[api.LabelPeer] != string(peerA) || pod.Labels[api.LabelContract] != "c-1" {
		t.Fatalf("pod %+v", pod.ObjectMeta)
	}
}

// What a provider's cluster adds to a pod, as a sidecar of its mesh, may have its secrets.
func TestContainersThatTheProviderAddedStayItsOwn(t *testing.T) {
	o := &api.OffloadedPod{}
	o.Spec.Template.Raw = []byte(`{"spec":{"containers":[{"name":"c"}],"initContainers":[{"name":"init"}],"ephemeralContainers":[{"name":"debug"}]}}`)
	for _, name := range []string{"c", "init", "debug"} {
		if err := offloadedpod.CheckContainer(o, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"mesh", "C", "c "} {
		if err := offloadedpod.CheckContainer(o, name); peering.ReasonOf(err) != peering.ReasonRequestInvalid || !strings.Contains(err.Error(), "c, debug, init") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := offloadedpod.CheckContainer(&api.OffloadedPod{}, "c"); err == nil {
		t.Error("a pod without a template has a container")
	}

	if _, err := slim(o); err != nil { // as it is in the cache
		t.Fatal(err)
	}
	if got := offloadedpod.Containers(o); len(o.Spec.Template.Raw) != 0 || !slices.Equal(got, []string{"c", "init", "debug"}) {
		t.Errorf("in the cache it has the containers %q", got)
	}
	o.UID, o.Status.PodUID = "o", "p"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web", UID: "p"}}
	secret := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "the provider's secret"}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", Image: "i"}, {Name: "mesh-init", State: secret}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "mesh", Image: "provider/mesh", LastTerminationState: secret}, {Name: "c", Image: "i"}}
	pod.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "debug"}, {Name: "debug-of-the-provider", State: secret}}
	before := pod.DeepCopy()
	got, ok := statusOf(o, pod, true)
	var s corev1.PodStatus
	if err := json.Unmarshal(got.Status, &s); err != nil || !ok {
		t.Fatal(err)
	}
	if len(s.InitContainerStatuses) != 1 || len(s.ContainerStatuses) != 1 || len(s.EphemeralContainerStatuses) != 1 || s.ContainerStatuses[0].Name != "c" ||
		strings.Contains(string(got.Status), "mesh") || strings.Contains(string(got.Status), "provider") {
		t.Errorf("home receives %s", got.Status)
	}
	if d := cmp.Diff(before, pod); d != "" {
		t.Error("the cached pod was changed", d)
	}
}

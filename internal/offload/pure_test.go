package offload

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

const (
	peerA = peering.ClusterID("aaaaaaaabbbbbbbbccccccccdddddddd")
	peerB = peering.ClusterID("zzzzzzzzbbbbbbbbccccccccdddddddd")
)

func TestRemoteNamespacesAreUniqueLabels(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := map[string]struct {
		name    string
		mapping api.NameMapping
		want    string
		refused bool
	}{
		"a name gets the consumer's ID":           {"shop", api.MappingSuffixed, "shop-aaaaaaaa", false},
		"the same name stays":                     {"shop", api.MappingSame, "shop", false},
		"this cluster's own names are not given":  {"kube-public", api.MappingSame, "", true},
		"a mapping that there is not is refused":  {"shop", "Other", "", true},
		"a system name can be had with a suffix":  {"kube-system", api.MappingSuffixed, "kube-system-aaaaaaaa", false},
		"a name that just fits is not cut":        {long[:54], api.MappingSuffixed, long[:54] + "-aaaaaaaa", false},
		"a name that is too long gets a hash too": {long, api.MappingSuffixed, "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := remoteNamespace(peerA, tc.name, tc.mapping)
			if (err != nil) != tc.refused {
				t.Fatalf("remoteNamespace: %v", err)
			}
			if tc.want != "" && got != tc.want || len(got) > 63 {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
		})
	}
	x, _ := remoteNamespace(peerA, long, api.MappingSuffixed)
	y, _ := remoteNamespace(peerA, long[:62]+"b", api.MappingSuffixed)
	z, _ := remoteNamespace(peerB, long, api.MappingSuffixed)
	if x == y || x == z || len(x) != 63 {
		t.Fatalf("%q, %q and %q", x, y, z)
	}
}

func container(requests, limits string) corev1.Container {
	c := corev1.Container{Name: "c", Image: "i"}
	parse := func(s string) corev1.ResourceList {
		if s == "" {
			return nil
		}
		l := corev1.ResourceList{}
		for part := range strings.SplitSeq(s, ",") {
			k, v, _ := strings.Cut(part, "=")
			l[corev1.ResourceName(k)] = resource.MustParse(v)
		}
		return l
	}
	c.Resources.Requests, c.Resources.Limits = parse(requests), parse(limits)
	return c
}

func TestDemandIsWhatTheSchedulerCounts(t *testing.T) {
	sidecar := container("cpu=50m", "")
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	tests := map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"nothing asked for is a pod":        {corev1.PodSpec{Containers: []corev1.Container{container("", "")}}, "pods=1"},
		"containers add up":                 {corev1.PodSpec{Containers: []corev1.Container{container("cpu=1,memory=1Gi", ""), container("cpu=500m", "")}}, "cpu=1500m memory=1Gi pods=1"},
		"a larger init container counts":    {corev1.PodSpec{InitContainers: []corev1.Container{container("cpu=2", "")}, Containers: []corev1.Container{container("cpu=1", "")}}, "cpu=2 pods=1"},
		"a sidecar adds to the containers":  {corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{container("cpu=1", "")}}, "cpu=1050m pods=1"},
		"a limit alone is a request":        {corev1.PodSpec{Containers: []corev1.Container{container("", "cpu=3,nvidia.com/gpu=1")}}, "cpu=3 nvidia.com/gpu=1 pods=1"},
		"a limit beside a request is not":   {corev1.PodSpec{Containers: []corev1.Container{container("cpu=1", "cpu=3")}}, "cpu=1 pods=1"},
		"overhead counts":                   {corev1.PodSpec{Overhead: corev1.ResourceList{"cpu": resource.MustParse("250m")}, Containers: []corev1.Container{container("cpu=1", "")}}, "cpu=1250m pods=1"},
		"the pod's own resources rule":      {corev1.PodSpec{Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("4")}}, Containers: []corev1.Container{container("cpu=1", "")}}, "cpu=4 pods=1"},
		"a negative amount is refused":      {corev1.PodSpec{Containers: []corev1.Container{container("cpu=-1", "")}}, "error"},
		"a negative limit is refused":       {corev1.PodSpec{Containers: []corev1.Container{container("", "memory=-1Gi")}}, "error"},
		"more than there can be is refused": {corev1.PodSpec{Containers: []corev1.Container{container("memory=8Ei", "")}}, "error"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := demand(&tc.spec)
			var parts []string
			for k, q := range got {
				parts = append(parts, fmt.Sprintf("%s=%s", k, q.String()))
			}
			slices.Sort(parts)
			s := strings.Join(parts, " ")
			if err != nil {
				s = "error"
			}
			if s != tc.want {
				t.Fatalf("demand = %s (%v), want %s", s, err, tc.want)
			}
		})
	}
}

func TestFitsCountsEveryResourceOfTheContract(t *testing.T) {
	list := func(s string) corev1.ResourceList { return container(s, "").Resources.Requests }
	tests := map[string]struct {
		limit, used, need string
		want, names       string
	}{
		"what fits, fits":                        {"cpu=2,pods=10", "cpu=1,pods=1", "cpu=1,pods=1", "", ""},
		"what is one milli too much does not":    {"cpu=2", "cpu=1", "cpu=1001m", "QUOTA_EXCEEDED", "cpu"},
		"pods are counted":                       {"cpu=2,pods=1", "pods=1", "pods=1", "QUOTA_EXCEEDED", "pods"},
		"a contract without pods takes none":     {"cpu=2", "", "cpu=1,pods=1", "QUOTA_EXCEEDED", "pods"},
		"what the contract has not is refused":   {"cpu=2", "", "nvidia.com/gpu=1", "QUOTA_EXCEEDED", "nvidia.com/gpu"},
		"nothing of what it has not is fine":     {"cpu=2", "", "nvidia.com/gpu=0,cpu=1", "", ""},
		"an empty contract lends nothing":        {"", "", "cpu=1m", "QUOTA_EXCEEDED", "cpu"},
		"used beyond the contract stays refused": {"cpu=1", "cpu=2", "cpu=1m", "QUOTA_EXCEEDED", "cpu"},
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

func TestAntiAffinityStaysInItsNamespace(t *testing.T) {
	term := `{"topologyKey":"kubernetes.io/os","namespaceSelector":{},"namespaces":["default"],"labelSelector":{}}`
	raw := `{"spec":{"containers":[{"name":"c","image":"i"}],"affinity":{
	 "podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[` + term + `],"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"podAffinityTerm":` + term + `}]},
	 "podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[` + term + `],"preferredDuringSchedulingIgnoredDuringExecution":[{"weight":1,"podAffinityTerm":` + term + `}]}}}}`
	tpl, err := readPod([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := admitPod(tpl, Contract{PodSecurity: baseline}); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(tpl.Spec.Affinity)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(out); strings.Contains(text, "namespace") || strings.Count(text, "topologyKey") != 4 {
		t.Errorf("affinity is %s", text)
	}
}

func TestTranslatedPodsDropForeignFields(t *testing.T) {
	raw := `{"metadata":{"name":"evil","namespace":"kube-system","finalizers":["x"],"ownerReferences":[{"uid":"1"}],
	 "labels":{"app":"web","app.kubernetes.io/name":"web","entente.dev/peer":"other","app.kubernetes.io/managed-by":"Helm","azure.workload.identity/use":"true","sidecar.istio.io/inject":"true"},
	 "annotations":{"note":"x","iam.amazonaws.com/role":"admin","vault.hashicorp.com/agent-inject":"true","k8s.v1.cni.cncf.io/networks":"host","cluster-autoscaler.kubernetes.io/safe-to-evict":"false","container.apparmor.security.beta.kubernetes.io/c":"runtime/default"}},
	"spec":{"nodeName":"control-plane","serviceAccountName":"admin","serviceAccount":"admin","automountServiceAccountToken":true,
	 "schedulerName":"mine","priorityClassName":"system-node-critical","priority":2000001000,"terminationGracePeriodSeconds":99999999,
	 "readinessGates":[{"conditionType":"x"}],"schedulingGates":[{"name":"x"}],"overhead":{"cpu":"-5"},
	 "tolerations":[{"operator":"Exists"},{"key":"node-role.kubernetes.io/control-plane","operator":"Exists"},{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}],
	 "nodeSelector":{"disk":"ssd"},"restartPolicy":"Always","hostname":"web-0","containers":[{"name":"c","image":"i"}]}}`
	tpl, err := readPod([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := admitPod(tpl, Contract{PodSecurity: baseline}); err != nil {
		t.Fatal(err)
	}
	want := template{Spec: corev1.PodSpec{
		ServiceAccountName: "default", AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(maxGrace),
		RestartPolicy: "Always", Hostname: "web-0",
		Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(5))}},
		Containers:  []corev1.Container{{Name: "c", Image: "i"}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: api.LabelVirtualNode, Operator: "DoesNotExist"}}}},
		}}},
	}}
	want.Metadata.Labels = map[string]string{"app": "web", "app.kubernetes.io/name": "web"}
	want.Metadata.Annotations = map[string]string{"note": "x", "container.apparmor.security.beta.kubernetes.io/c": "runtime/default"}
	if diff := cmp.Diff(&want, tpl); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	o := &api.OffloadedPod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop-aaaaaaaa", Name: "web-0", UID: "o1"}}
	o.Spec.Contract, o.Spec.PeerID, o.Spec.OriginUID, o.Spec.Hash = "c-1", string(peerA), "u1", "h"
	if o.Spec.Template.Raw, err = json.Marshal(tpl); err != nil {
		t.Fatal(err)
	}
	pod, err := makePod(o)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Namespace != o.Namespace || pod.Name != o.Name || len(pod.Finalizers) > 0 || !isPodOf(pod, o) ||
		pod.Labels[api.LabelPeer] != string(peerA) || pod.Labels[api.LabelContract] != "c-1" {
		t.Fatalf("pod %+v", pod.ObjectMeta)
	}
}

// Which nodes a consumer's pods run on is for the contract to say. A pod that could
// choose would choose whom to run beside.
func TestPodsRunOnTheNodesOfTheContractAndDoNotChoose(t *testing.T) {
	t.Parallel()
	zone, virtual := corev1.NodeSelectorRequirement{Key: "zone", Operator: "In", Values: []string{"a"}}, corev1.NodeSelectorRequirement{Key: api.LabelVirtualNode, Operator: "DoesNotExist"}
	gpu, arm := corev1.NodeSelectorRequirement{Key: "gpu", Operator: "In", Values: []string{"a100"}}, corev1.NodeSelectorRequirement{Key: "kubernetes.io/arch", Operator: "In", Values: []string{"arm64"}}
	chosen := &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{zone}}, {MatchFields: []corev1.NodeSelectorRequirement{zone}}, {},
		}},
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{zone}}}},
	}
	for name, tc := range map[string]struct {
		contract map[string]string
		pod      corev1.PodSpec
		want     []corev1.NodeSelectorRequirement
	}{
		"any node but virtual ones":                 {nil, corev1.PodSpec{}, []corev1.NodeSelectorRequirement{virtual}},
		"the nodes of the contract":                 {map[string]string{"kubernetes.io/arch": "arm64", "gpu": "a100"}, corev1.PodSpec{}, []corev1.NodeSelectorRequirement{virtual, gpu, arm}},
		"a pod that names labels of nodes":          {nil, corev1.PodSpec{NodeSelector: map[string]string{"kubernetes.io/hostname": "n1"}}, []corev1.NodeSelectorRequirement{virtual}},
		"a pod with affinity to nodes":              {nil, corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: chosen}}, []corev1.NodeSelectorRequirement{virtual}},
		"a pod that chooses beside a contract does": {map[string]string{"gpu": "a100"}, corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: chosen}}, []corev1.NodeSelectorRequirement{virtual, gpu}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tpl := &template{Spec: *tc.pod.DeepCopy()}
			tpl.Spec.Containers = []corev1.Container{{Name: "c"}}
			if err := admitPod(tpl, Contract{PodSecurity: baseline, NodeSelector: tc.contract}); err != nil {
				t.Fatal(err)
			}
			want := &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: tc.want}}}}
			if diff := cmp.Diff(want, tpl.Spec.Affinity.NodeAffinity); diff != "" || tpl.Spec.NodeSelector != nil {
				t.Errorf("selector %v, affinity (-want +got)\n%s", tpl.Spec.NodeSelector, diff)
			}
		})
	}
}

func TestMatchLabelKeysThatWereMergedAreDropped(t *testing.T) {
	t.Parallel()
	raw := `{"metadata":{"labels":{"app":"web","pod-template-hash":"1"}},"spec":{"containers":[{"name":"c","image":"i"}],
	 "topologySpreadConstraints":[
	  {"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"ScheduleAnyway","matchLabelKeys":["pod-template-hash","app"],
	   "labelSelector":{"matchLabels":{"app":"web"},"matchExpressions":[{"key":"pod-template-hash","operator":"In","values":["1"]}]}},
	  {"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway","matchLabelKeys":["pod-template-hash"],"labelSelector":{"matchLabels":{"app":"web"}}}],
	 "affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"zone","matchLabelKeys":["pod-template-hash"],"mismatchLabelKeys":["app"],
	  "labelSelector":{"matchExpressions":[{"key":"pod-template-hash","operator":"In","values":["1"]},{"key":"app","operator":"NotIn","values":["web"]}]}}]}}}}`
	tpl, err := readPod([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := admitPod(tpl, Contract{PodSecurity: baseline}); err != nil {
		t.Fatal(err)
	}
	merged, open := tpl.Spec.TopologySpreadConstraints[0], tpl.Spec.TopologySpreadConstraints[1]
	term := tpl.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	if len(merged.MatchLabelKeys) > 0 || len(merged.LabelSelector.MatchExpressions) != 1 || len(term.MatchLabelKeys)+len(term.MismatchLabelKeys) > 0 {
		t.Errorf("keys that are merged stay: %v, %v %v", merged.MatchLabelKeys, term.MatchLabelKeys, term.MismatchLabelKeys)
	}
	if !slices.Equal(open.MatchLabelKeys, []string{"pod-template-hash"}) {
		t.Errorf("keys that are not merged yet are %v", open.MatchLabelKeys)
	}
}

// A pod that reads its own labels and annotations reads their values, though the
// provider's controllers do not see these labels.
func TestPodsReadLabelsThatDoNotCross(t *testing.T) {
	t.Parallel()
	const index = "batch.kubernetes.io/job-completion-index"
	raw := `{"metadata":{"labels":{"app":"work","` + index + `":"7"},"annotations":{"` + index + `":"7","iam.amazonaws.com/role":"admin","example.org/unread":"x"}},
	 "spec":{"containers":[{"name":"c","image":"i","env":[
	   {"name":"INDEX","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['` + index + `']"}}},
	   {"name":"ROLE","valueFrom":{"fieldRef":{"fieldPath":"metadata.annotations['iam.amazonaws.com/role']"}}},
	   {"name":"APP","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['app']"}}},
	   {"name":"NONE","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['example.org/none']"}}},
	   {"name":"IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}}]}],
	  "volumes":[
	   {"name":"d","downwardAPI":{"items":[{"path":"index","fieldRef":{"fieldPath":"metadata.annotations['` + index + `']"}},{"path":"all","fieldRef":{"fieldPath":"metadata.labels"}}]}},
	   {"name":"p","projected":{"sources":[{"downwardAPI":{"items":[{"path":"index","fieldRef":{"fieldPath":"metadata.labels['` + index + `']"}}]}}]}}]}}`
	tpl, err := readPod([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := admitPod(tpl, Contract{PodSecurity: baseline}); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		of, key, ok := fieldKey(path)
		switch {
		case !ok:
			return "field " + path
		case of == "labels":
			return tpl.Metadata.Labels[key]
		}
		return tpl.Metadata.Annotations[key]
	}
	env := tpl.Spec.Containers[0].Env
	for i, want := range []string{"7", "admin", "work", "", "field status.podIP"} {
		if got := read(env[i].ValueFrom.FieldRef.FieldPath); got != want {
			t.Errorf("%s is %q, want %q", env[i].Name, got, want)
		}
	}
	for _, ref := range []*corev1.ObjectFieldSelector{tpl.Spec.Volumes[0].DownwardAPI.Items[0].FieldRef, tpl.Spec.Volumes[1].Projected.Sources[0].DownwardAPI.Items[0].FieldRef} {
		if got := read(ref.FieldPath); got != "7" {
			t.Errorf("%s is %q, want 7", ref.FieldPath, got)
		}
	}
	if path := tpl.Spec.Volumes[0].DownwardAPI.Items[1].FieldRef.FieldPath; path != "metadata.labels" {
		t.Errorf("all labels became %s", path)
	}
	for key := range tpl.Metadata.Labels {
		if key != "app" {
			t.Errorf("label %s crossed", key)
		}
	}
	for key := range tpl.Metadata.Annotations {
		if !strings.HasPrefix(key, fieldPrefix) {
			t.Errorf("annotation %s crossed", key)
		}
	}
}

func TestLooserLevel(t *testing.T) {
	t.Parallel()
	for _, tc := range [][3]api.PodSecurityLevel{
		{restricted, restricted, restricted}, {restricted, baseline, baseline}, {privileged, baseline, privileged}, {"", baseline, baseline}, {"", restricted, restricted},
	} {
		if looser(tc[0], tc[1]) != tc[2] || looser(tc[1], tc[0]) != tc[2] {
			t.Errorf("of %q and %q not %q is looser", tc[0], tc[1], tc[2])
		}
	}
}

// As many endpoints as a consumer sends are kept, with UIDs that do not repeat.
func TestServicesKeepAllEndpointsThatCross(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	in := peering.ServiceObject{Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}}
	for n := range peering.MaxServiceEndpoints + 1 {
		in.Endpoints = append(in.Endpoints, peering.ServiceEndpoint{
			Address: netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}).String(), Ready: true, Serving: true, Ports: map[string]int32{"http": 8080},
			PodUID: fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", random.Uint32(), random.IntN(1<<16), random.IntN(1<<12), random.IntN(1<<12), random.Int64N(1<<48)),
		})
	}
	for n, ok := range map[int]bool{1: true, 2001: true, peering.MaxServiceEndpoints: true, peering.MaxServiceEndpoints + 1: false} {
		some := in
		some.Endpoints = in.Endpoints[:n]
		b, err := json.Marshal(some)
		if err != nil {
			t.Fatal(err)
		}
		svc, count, err := readService(thing(peering.KindService, "shop", "web", "u", string(b)))
		if !ok {
			refused(t, err, peering.RefusedInvalid, false, "endpoints")
			continue
		}
		if err != nil || count.Endpoints != n {
			t.Fatalf("%d endpoints: %d, %v", n, count.Endpoints, err)
		}
		got, err := readNote(svc.Annotations[noteService])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(some, got); diff != "" {
			t.Errorf("%d endpoints changed by being kept: %s", n, diff[:min(len(diff), 500)])
		}
	}
}

func TestRuntimeClassesAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		class *string
		want  bool
	}{
		"none": {nil, true}, "the empty one": {new(""), true}, "one of the contract": {new("gvisor"), true}, "another": {new("runc-debug"), false},
	} {
		tpl := &template{Spec: corev1.PodSpec{RuntimeClassName: tc.class, Containers: []corev1.Container{{Name: "c"}}}}
		err := admitPod(tpl, Contract{PodSecurity: baseline, RuntimeClasses: []string{"gvisor", "kata"}})
		if (err == nil) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && tpl.Spec.RuntimeClassName != tc.class {
			t.Errorf("%s: it is another now", name)
		}
	}
}

func TestVolumesOutsideTheNamespaceAreRefused(t *testing.T) {
	tests := map[string]struct {
		volume string
		level  api.PodSecurityLevel
		want   string
	}{
		"emptyDir":                               {`{"name":"v","emptyDir":{}}`, restricted, ""},
		"nothing is emptyDir":                    {`{"name":"v"}`, restricted, ""},
		"configMap":                              {`{"name":"v","configMap":{"name":"x"}}`, restricted, ""},
		"projected secrets":                      {`{"name":"v","projected":{"sources":[{"secret":{"name":"x"}},{"downwardAPI":{}}]}}`, restricted, ""},
		"a token of this cluster":                {`{"name":"v","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}`, privileged, "token"},
		"a trust bundle":                         {`{"name":"v","projected":{"sources":[{"clusterTrustBundle":{"path":"t"}}]}}`, privileged, "projects"},
		"a claim of the provider's":              {`{"name":"v","persistentVolumeClaim":{"claimName":"x"}}`, privileged, "no volume of the contract"},
		"a volume of the contract":               {`{"name":"v","persistentVolumeClaim":{"claimName":"entente-x"}}`, restricted, ""},
		"a claim made on the spot":               {`{"name":"v","ephemeral":{}}`, privileged, "does not cross"},
		"a file server":                          {`{"name":"v","nfs":{"server":"10.0.0.1","path":"/"}}`, baseline, "does not cross"},
		"the node's files":                       {`{"name":"v","hostPath":{"path":"/"}}`, baseline, "does not cross"},
		"the node's files, where that is agreed": {`{"name":"v","hostPath":{"path":"/"}}`, privileged, ""},
		"a driver":                               {`{"name":"v","csi":{"driver":"x"}}`, baseline, "does not cross"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var v corev1.Volume
			if err := json.Unmarshal([]byte(tc.volume), &v); err != nil {
				t.Fatal(err)
			}
			err := checkVolume(&v, tc.level)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("checkVolume: %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPodSecurityIsTheContracts(t *testing.T) {
	ps, err := newPodSecurity()
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
		{plain, restricted, false},
		{host, privileged, true},
		{host, baseline, false},
		{host, restricted, false},
		{plain, securityLevel(""), false},
		{plain, securityLevel("else"), false},
	} {
		tpl, err := readPod([]byte(tc.pod))
		if err != nil {
			t.Fatal(err)
		}
		got := ps.check(tpl, tc.level)
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
	tests := map[string]struct {
		o    *api.OffloadedPod
		pod  *corev1.Pod
		want podStep
	}{
		"a new one without finalizer gets it":         {made(func(o *api.OffloadedPod) { o.Finalizers = nil }), nil, podHold},
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
		"a solved problem is recorded":                  {made(func(o *api.OffloadedPod) { running(o); o.Status.Reason = "Refused" }), pod("p1", "o1", runs), podRecord},
		"another form is brought to the pod":            {made(func(o *api.OffloadedPod) { running(o); o.Spec.Hash = "h2" }), pod("p1", "o1", runs), podUpdate},
		"a pod that went is lost":                       {made(running), nil, podLost},
		"a pod that was replaced is lost":               {made(running), pod("p2", "o1", runs), podLost},
		"one that ended stays ended":                    {made(func(o *api.OffloadedPod) { o.Status.Phase = corev1.PodSucceeded }), nil, podWait},
		"one that ended without a pod is not made":      {made(func(o *api.OffloadedPod) { o.Status.Phase = corev1.PodFailed }), nil, podWait},
		"being deleted, the pod is deleted":             {made(ends), pod("p1", "o1", runs), podDelete},
		"being deleted, an ended pod is deleted":        {made(func(o *api.OffloadedPod) { ends(o); o.Status.Phase = corev1.PodSucceeded }), pod("p1", "o1", nil), podDelete},
		"being deleted, a pod that ends is waited for":  {made(ends), pod("p1", "o1", func(p *corev1.Pod) { p.DeletionTimestamp = &now }), podWait},
		"being deleted, a pod that is in hurry is told": {made(func(o *api.OffloadedPod) { ends(o); o.Annotations = map[string]string{noteGrace: "0"} }), pod("p1", "o1", func(p *corev1.Pod) { p.DeletionTimestamp = &now; p.DeletionGracePeriodSeconds = new(int64(30)) }), podDelete},
		"being deleted, without a pod it may go":        {made(ends), nil, podRelease},
		"being deleted, another's pod is let be":        {made(ends), pod("p2", "o1", runs), podRelease},
		"being deleted before its pod was recorded":     {made(func(o *api.OffloadedPod) { o.DeletionTimestamp = &now }), pod("p1", "o1", nil), podDelete},
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

func TestSecretsThatAreCredentialsOfAClusterAreRefused(t *testing.T) {
	for typ, ok := range map[string]bool{
		"": true, "Opaque": true, "kubernetes.io/tls": true, "example.org/own": true,
		"kubernetes.io/service-account-token": false, "bootstrap.kubernetes.io/token": false,
	} {
		_, err := readConfig(peering.Object{
			Ref: peering.ObjectRef{Kind: peering.KindSecret, Namespace: "shop", Name: "s", UID: "u"}, JSON: fmt.Appendf(nil, `{"type":%q}`, typ),
		})
		if (err == nil) != ok {
			t.Errorf("type %q: %v", typ, err)
		}
	}
	_, err := readConfig(peering.Object{Ref: peering.ObjectRef{Kind: peering.KindSecret, Name: "s"}, JSON: []byte(`{"data":{"k":"!hunter2!"}}`)})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an error that quotes a secret: %v", err)
	}
}

// FuzzReadPod: no pod makes the agent fall over, and none keeps what it must not
// have.
func FuzzReadPod(f *testing.F) {
	f.Add([]byte(`{"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1"}}}]}}`))
	f.Add([]byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"nodeName":"n","containers":[{}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{}}},"volumes":[{"projected":{"sources":[{}]}}]}}`))
	ps, err := newPodSecurity()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1e2147483647"}}}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		tpl, err := readPod(b)
		if err != nil || admitPod(tpl, Contract{PodSecurity: baseline}) != nil {
			return
		}
		need, err := demand(&tpl.Spec)
		if err != nil {
			return
		}
		for name, q := range need {
			if q.Sign() < 0 {
				t.Fatalf("%s: %s", name, q.String())
			}
		}
		ps.check(tpl, restricted)
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

// FuzzReadService: no Service makes the agent fall over.
func FuzzReadService(f *testing.F) {
	b, _ := json.Marshal(service(true, end("10.0.0.1", 80)))
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		o := peering.Object{Ref: peering.ObjectRef{Kind: peering.KindService, Namespace: "shop", Name: "web", UID: "u"}, JSON: b}
		svc, _, err := readService(o)
		if err != nil {
			return
		}
		if svc.Spec.Selector != nil || svc.Spec.Type != corev1.ServiceTypeClusterIP || len(svc.Spec.ExternalIPs) > 0 {
			t.Fatalf("%+v", svc.Spec)
		}
		var in peering.ServiceObject
		if err := json.Unmarshal([]byte(svc.Annotations[noteService]), &in); err != nil {
			t.Fatal(err)
		}
		for _, s := range must(endpoints.Slices(svc, in, func(e peering.ServiceEndpoint) (netip.Addr, bool) {
			a, err := netip.ParseAddr(e.Address)
			return a, err == nil
		})) {
			if len(s.Endpoints) > endpoints.SliceSize {
				t.Fatal("a slice is too large")
			}
		}
	})
}

func must[A, B any](a A, _ B) A { return a }

package podspec

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// Levels of Pod Security.
const (
	baseline   api.PodSecurityLevel = "baseline"
	restricted api.PodSecurityLevel = "restricted"
)

func read(raw []byte) (*Template, error) {
	var t Template
	return &t, json.Unmarshal(raw, &t)
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
	tpl, err := read([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	gpu := corev1.Toleration{Key: "gpu", Operator: "Exists", Effect: "NoSchedule"}
	if err := Admit(tpl, Terms{PodSecurity: baseline, Tolerations: []corev1.Toleration{gpu}}); err != nil {
		t.Fatal(err)
	}
	want := Template{Spec: corev1.PodSpec{
		ServiceAccountName: "default", AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(MaxGrace),
		RestartPolicy: "Always", Hostname: "web-0",
		Tolerations: []corev1.Toleration{{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(5))}, gpu},
		Containers:  []corev1.Container{{Name: "c", Image: "i"}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: api.LabelVirtualNode, Operator: "DoesNotExist"}}}},
		}}},
	}}
	want.Metadata.Labels = map[string]string{
		"app": "web", "app.kubernetes.io/name": "web", "home.entente.dev/entente.dev_peer": "other", "home.entente.dev/app.kubernetes.io_managed-by": "Helm",
		"home.entente.dev/azure.workload.identity_use": "true", "home.entente.dev/sidecar.istio.io_inject": "true",
	}
	want.Metadata.Annotations = map[string]string{"note": "x", "container.apparmor.security.beta.kubernetes.io/c": "runtime/default"}
	want.Notes = priorityNotes("system-node-critical", Terms{})
	if diff := cmp.Diff(&want, tpl); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

// The contract decides on which nodes a consumer's pods run. A pod that could choose would choose
// its neighbours.
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
			tpl := &Template{Spec: *tc.pod.DeepCopy()}
			tpl.Spec.Containers = []corev1.Container{{Name: "c"}}
			if err := Admit(tpl, Terms{PodSecurity: baseline, NodeSelector: tc.contract}); err != nil {
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
	  {"maxSkew":1,"topologyKey":"topology.kubernetes.io/zone","whenUnsatisfiable":"ScheduleAnyway","matchLabelKeys":["pod-template-hash"],"labelSelector":{"matchLabels":{"app":"web"}}}],
	 "affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"topology.kubernetes.io/zone","matchLabelKeys":["pod-template-hash"],"mismatchLabelKeys":["app"],
	  "labelSelector":{"matchExpressions":[{"key":"pod-template-hash","operator":"In","values":["1"]},{"key":"app","operator":"NotIn","values":["web"]}]}}]}}}}`
	tpl, err := read([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := Admit(tpl, Terms{PodSecurity: baseline}); err != nil {
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
	tpl, err := read([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := Admit(tpl, Terms{PodSecurity: baseline}); err != nil {
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
	if path := env[3].ValueFrom.FieldRef.FieldPath; !strings.Contains(path, fieldPrefix) {
		t.Errorf("a field without a value yet is read from %s, which will have none", path)
	}
	if path := tpl.Spec.Volumes[0].DownwardAPI.Items[1].FieldRef.FieldPath; path != "metadata.labels" {
		t.Errorf("all labels became %s", path)
	}
	for key := range tpl.Metadata.Labels {
		if key != "app" && !strings.HasPrefix(key, api.PrefixHomeLabel) {
			t.Errorf("label %s crossed", key)
		}
	}
	for key := range tpl.Metadata.Annotations {
		if !strings.HasPrefix(key, fieldPrefix) {
			t.Errorf("annotation %s crossed", key)
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
		tpl := &Template{Spec: corev1.PodSpec{RuntimeClassName: tc.class, Containers: []corev1.Container{{Name: "c"}}}}
		err := Admit(tpl, Terms{PodSecurity: baseline, RuntimeClasses: []string{"gvisor", "kata"}})
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
		"an empty source means emptyDir":         {`{"name":"v"}`, restricted, ""},
		"configMap":                              {`{"name":"v","configMap":{"name":"x"}}`, restricted, ""},
		"projected secrets":                      {`{"name":"v","projected":{"sources":[{"secret":{"name":"x"}},{"downwardAPI":{}}]}}`, restricted, ""},
		"a token of this cluster":                {`{"name":"v","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}`, privileged, "token"},
		"a trust bundle":                         {`{"name":"v","projected":{"sources":[{"clusterTrustBundle":{"path":"t"}}]}}`, privileged, "projects"},
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

package podspec

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

var update = flag.Bool("update", false, "rewrite testdata")

// walk calls f for the path of each field below a type. Containers of any sort
// are walked as containers[].
func walk(t reflect.Type, path string, seen []reflect.Type, f func(path string)) {
	switch t.Kind() {
	case reflect.Pointer:
		walk(t.Elem(), path, seen, f)
		return
	case reflect.Slice, reflect.Map:
		if t.Elem().Kind() == reflect.Struct && t != reflect.TypeFor[corev1.ResourceList]() {
			walk(t.Elem(), path+"[]", seen, f)
			return
		}
	case reflect.Struct:
		if t == reflect.TypeFor[metav1.Time]() || t == reflect.TypeFor[resource.Quantity]() || t == reflect.TypeFor[intstr.IntOrString]() {
			break
		}
		if slices.Contains(seen, t) {
			f(path + "…")
			return
		}
		for field := range t.Fields() {
			name, rest, _ := strings.Cut(field.Tag.Get("json"), ",")
			sub := path
			if name != "" && !strings.Contains(rest, "inline") {
				sub += "." + name
			}
			walk(field.Type, sub, append(seen, t), f)
		}
		return
	}
	f(path)
}

func podSpecFields() []string {
	var out []string
	walk(reflect.TypeFor[corev1.PodSpec](), "spec", nil, func(p string) { out = append(out, p) })
	return out
}

// canonical maps init and ephemeral containers' paths to those of containers.
func canonical(path string) string {
	for _, c := range []string{"spec.initContainers[]", "spec.ephemeralContainers[]"} {
		if rest, ok := strings.CutPrefix(path, c); ok {
			return "spec.containers[]" + rest
		}
	}
	return path
}

// fateOf returns the decision on a path: the longest that matches.
func fateOf(path string) (fieldDecision, bool) {
	best, found := fieldDecision{}, false
	for _, d := range fieldDecisions() {
		rest, ok := strings.CutPrefix(canonical(path), d.path)
		if ok && (rest == "" || rest[0] == '.' || rest[0] == '[') && len(d.path) >= len(best.path) {
			best, found = d, true
		}
	}
	return best, found
}

// The golden file has every field that existed when the table was written: what home does with it,
// and its value at the provider after both halves. A Kubernetes that adds a field fails here:
// decide, add a row, then run with -update.
func TestEveryFieldOfAPodSpecIsDecided(t *testing.T) {
	const golden = "testdata/podspec-fields.txt"
	seen := throughBothHalves(t)
	var lines []string
	for _, p := range podSpecFields() {
		d, ok := fateOf(p)
		if !ok {
			t.Errorf("there is no decision on %s: add a row to fieldDecisions", p)
		}
		lines = append(lines, strings.Join([]string{p, string(d.fate), seen(p, d.fate)}, " "))
	}
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the fields of a PodSpec changed: decide on each in fieldDecisions (-want +got):\n%s", diff)
	}
}

// throughBothHalves sends a pod with every field set that may cross, and returns a field's value at
// the provider.
func throughBothHalves(t *testing.T) func(path string, decided fate) string {
	t.Helper()
	pod := filled(t)
	portable(pod)
	in := leaves(t, &pod.Spec)
	tpl, err := abroad(t, pod, Terms{PodSecurity: privileged, Classes: Classes{
		Runtime:  []api.ClassMapping{{From: *pod.Spec.RuntimeClassName, To: "here"}},
		Priority: []api.PriorityMapping{{From: pod.Spec.PriorityClassName, To: "here"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	out := leaves(t, &tpl.Spec)
	below := func(m map[string]string, path string) (value string, found bool) {
		for _, p := range slices.Sorted(maps.Keys(m)) {
			if rest, ok := strings.CutPrefix(p, path); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
				value, found = value+rest+m[p], true
			}
		}
		return value, found
	}
	return func(path string, decided fate) string {
		was, sent := below(in, path)
		is, there := below(out, path)
		switch {
		case decided == refused:
			return string(refused)
		case sent && !there:
			return string(dropped)
		case !sent && there:
			return "added"
		case !sent: // one of several alternatives, of which the pod has others
			return "-"
		case was != is:
			return string(rewritten)
		}
		return string(kept)
	}
}

// Home's decision and the result may differ only where the provider decides for itself.
func TestTheHalvesDisagreeOnlyWhereTheProviderDecides(t *testing.T) {
	seen := throughBothHalves(t)
	provider := []string{
		"spec.affinity.nodeAffinity", // the contract's nodes
		"spec.preemptionPolicy",      // Never, if the policy maps the priority class
		"spec.serviceAccountName",    // default
		"spec.tolerations[]",         // of nodes that are away, and its pool's
	}
	for _, p := range podSpecFields() {
		d, _ := fateOf(p)
		if slices.ContainsFunc(provider, func(own string) bool { return strings.HasPrefix(p, own) }) {
			continue
		}
		switch got := seen(p, d.fate); {
		case d.fate == kept && got != string(kept) && got != "-",
			d.fate == dropped && got != string(dropped) && got != "-":
			t.Errorf("%s is %s by the table, and %s at the provider", p, d.fate, got)
		}
	}
}

func TestTheGuideHasEveryPodField(t *testing.T) {
	guide, err := os.ReadFile("../../docs/offloading.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, d := range fieldDecisions() {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", d.path, d.fate, d.why))
	}
	sort.Strings(rows)
	table := strings.Join(rows, "\n")
	if !strings.Contains(string(guide), table) {
		t.Errorf("docs/offloading.md has another table than fieldDecisions; it should have:\n%s", table)
	}
}

// filled returns a pod of which every field is set.
func filled(t *testing.T) *corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	fill(reflect.ValueOf(&pod.Spec).Elem(), "spec", map[reflect.Type]int{})
	pod.ObjectMeta = metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}}
	return &pod
}

// fill sets every field below v, slices with one element.
func fill(v reflect.Value, path string, depth map[reflect.Type]int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), path, depth)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path, depth)
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k, path, depth)
		fill(e, path, depth)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.Struct:
		switch v.Type() {
		case reflect.TypeFor[resource.Quantity]():
			v.Set(reflect.ValueOf(resource.MustParse("1")))
			return
		case reflect.TypeFor[metav1.Time]():
			v.Set(reflect.ValueOf(metav1.Unix(1, 0)))
			return
		case reflect.TypeFor[intstr.IntOrString]():
			v.Set(reflect.ValueOf(intstr.FromInt32(1)))
			return
		}
		if depth[v.Type()] > 1 {
			return
		}
		depth[v.Type()]++
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), path+"."+v.Type().Field(i).Name, depth)
			}
		}
		depth[v.Type()]--
	case reflect.String:
		v.SetString("x")
		if strings.HasSuffix(path, ".TopologyKey") {
			v.SetString(corev1.LabelHostname)
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(1)
	case reflect.Uint8:
		v.SetUint(1)
	}
}

// leaves returns the leaves of a JSON value by path, as walk names them.
func leaves(t *testing.T, spec *corev1.PodSpec) map[string]string {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	var visit func(path string, v any)
	visit = func(path string, v any) {
		switch x := v.(type) {
		case map[string]any:
			for k, e := range x {
				visit(path+"."+k, e)
			}
		case []any:
			for _, e := range x {
				visit(path+"[]", e)
			}
		default:
			out[path] += fmt.Sprint(v)
		}
	}
	visit("spec", v)
	return out
}

// portable removes the fields that are refused from a filled pod.
func portable(pod *corev1.Pod) {
	s := &pod.Spec
	s.HostNetwork, s.HostPID, s.HostIPC, s.ResourceClaims, s.Resources.Claims = false, false, false, nil, nil
	s.SecurityContext.WindowsOptions.HostProcess = nil
	s.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].NamespaceSelector = nil
	s.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].NamespaceSelector = nil
	EachContainer(s, func(_ string, c *corev1.Container) {
		c.Ports[0].HostPort, c.Ports[0].HostIP, c.VolumeDevices, c.Resources.Claims = 0, "", nil, nil
		c.SecurityContext.WindowsOptions.HostProcess = nil
	})
	v := s.Volumes[0]
	v.Projected.Sources[0].ClusterTrustBundle, v.Projected.Sources[0].PodCertificate = nil, nil
	v.Projected.Sources = append(v.Projected.Sources, corev1.VolumeProjection{Secret: v.Projected.Sources[0].Secret})
	v.Projected.Sources[0] = corev1.VolumeProjection{ServiceAccountToken: v.Projected.Sources[0].ServiceAccountToken}
	v.VolumeSource = corev1.VolumeSource{
		ConfigMap: v.ConfigMap, Secret: v.Secret, Projected: v.Projected, DownwardAPI: v.DownwardAPI, EmptyDir: v.EmptyDir, Image: v.Image,
	}
	s.Volumes[0] = v
}

func TestAFullPodIsTranslatedAsTheTableSays(t *testing.T) {
	pod := filled(t)
	portable(pod)
	before := pod.DeepCopy()
	got, refusal := Leave(pod)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("Leave changed its argument (-want +got):\n%s", diff)
	}
	in, out := leaves(t, &pod.Spec), leaves(t, &got.Pod.Spec)
	for path, was := range in {
		d, _ := fateOf(path)
		is, there := out[path]
		switch d.fate {
		case kept:
			if is != was {
				t.Errorf("%s is %q, the table keeps it: %q", path, is, was)
			}
		case dropped:
			if there {
				t.Errorf("%s crossed as %q, the table drops it", path, is)
			}
		case refused:
			t.Errorf("%s crossed, the table refuses it", path)
		}
	}
	for path := range out {
		if _, was := in[path]; !was {
			if d, _ := fateOf(path); d.fate != rewritten {
				t.Errorf("%s was made up", path)
			}
		}
	}
}

func TestRefusedFieldsAreRefused(t *testing.T) {
	for _, d := range fieldDecisions() {
		if d.fate != refused {
			continue
		}
		t.Run(d.path, func(t *testing.T) {
			full, pod := filled(t), filled(t)
			portable(pod)
			if !graft(reflect.ValueOf(&pod.Spec).Elem(), reflect.ValueOf(&full.Spec).Elem(), strings.Split(strings.TrimPrefix(d.path, "spec."), ".")) {
				t.Fatalf("there is no field %s", d.path)
			}
			if _, refusal := Leave(pod); refusal == nil || refusal.Reason != peering.RefusedInvalid || refusal.Retryable {
				t.Errorf("a pod with %s gave %v, want a final refusal", d.path, refusal)
			}
		})
	}
}

// graft copies the field at a path of JSON names from one value to another.
func graft(to, from reflect.Value, path []string) bool {
	for to.Kind() == reflect.Pointer {
		if to.IsNil() {
			to.Set(reflect.New(to.Type().Elem()))
		}
		to, from = to.Elem(), from.Elem()
	}
	name, list := strings.CutSuffix(path[0], "[]")
	for i := range to.NumField() {
		field := to.Type().Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if tag == "" && graft(to.Field(i), from.Field(i), path) {
			return true
		}
		if tag != name {
			continue
		}
		if len(path) == 1 {
			to.Field(i).Set(from.Field(i))
			return true
		}
		if list {
			if to.Field(i).Len() == 0 {
				to.Field(i).Set(from.Field(i))
				return true
			}
			return graft(to.Field(i).Index(0), from.Field(i).Index(0), path[1:])
		}
		return graft(to.Field(i), from.Field(i), path[1:])
	}
	return false
}

func TestTranslateFollowsTheTable(t *testing.T) {
	yes := true
	injected := corev1.Volume{Name: "kube-api-access-abcde", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: rootCAConfigMap}}},
	}}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-0", Namespace: "shop", UID: "u1", Labels: map[string]string{"app": "web"},
			Annotations:     map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "team": "a"},
			OwnerReferences: []metav1.OwnerReference{{Name: "web"}}, Finalizers: []string{"f"}, ResourceVersion: "7",
		},
		Spec: corev1.PodSpec{
			NodeName: "office", ServiceAccountName: "robot", Volumes: []corev1.Volume{injected},
			InitContainers: []corev1.Container{{Name: "i", VolumeMounts: []corev1.VolumeMount{{Name: injected.Name, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}}}},
			Containers: []corev1.Container{{
				Name: "c",
				VolumeMounts: []corev1.VolumeMount{
					{Name: injected.Name, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}, {Name: "data", MountPath: "/data"},
				},
				Env: []corev1.EnvVar{
					fieldEnv("NAME", "metadata.name"), fieldEnv("NS", "metadata.namespace"), fieldEnv("UID", "metadata.uid"),
					fieldEnv("NODE", "spec.nodeName"), fieldEnv("SA", "spec.serviceAccountName"), fieldEnv("IP", "status.podIP"),
					{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k"}}},
				},
				EnvFrom: []corev1.EnvFromSource{
					{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Optional: &yes}},
					{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Optional: &yes}},
				},
			}},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
			Tolerations: []corev1.Toleration{
				{Operator: corev1.TolerationOpExists}, {Key: "entente.dev/virtual-node", Operator: corev1.TolerationOpExists}, {Key: "gpu", Operator: corev1.TolerationOpExists},
			},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, MaxSkew: 1},
				{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 2},
				{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, MaxSkew: 1, MinDomains: new(int32)},
				{TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule, MaxSkew: 1},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	no := false
	want := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"team": "a"}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no,
			InitContainers:               []corev1.Container{{Name: "i"}},
			Containers: []corev1.Container{{
				Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				Env: []corev1.EnvVar{
					{Name: "NAME", Value: "web-0"},
					{Name: "NS", Value: "shop"},
					{Name: "UID", Value: "u1"},
					{Name: "NODE", Value: "office"},
					{Name: "SA", Value: "robot"},
					fieldEnv("IP", "status.podIP"), pod.Spec.Containers[0].Env[6],
				},
				EnvFrom: pod.Spec.Containers[0].EnvFrom,
			}},
			ImagePullSecrets: pod.Spec.ImagePullSecrets,
			Tolerations:      []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
				{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 2}, {TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 1},
			},
		},
	}
	got, refusal := Leave(pod)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if diff := cmp.Diff(want, got.Pod); diff != "" {
		t.Errorf("pod as it crosses (-want +got):\n%s", diff)
	}
	refs := []Reference{
		{Kind: peering.KindConfigMap, Name: "cm", Optional: true},
		{Kind: peering.KindSecret, Name: "pull", Optional: true},
		{Kind: peering.KindSecret, Name: "s"}, // needed by one, so needed
	}
	if diff := cmp.Diff(refs, got.References); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func TestLabelsAndAnnotationsInTheEnvironmentAreReadWhereThePodRuns(t *testing.T) {
	const index = "metadata.labels['batch.kubernetes.io/job-completion-index']"
	env := []corev1.EnvVar{fieldEnv("INDEX", index), fieldEnv("PLAIN", "metadata.annotations['plain']"), fieldEnv("NAMESPACE", "metadata.namespace")}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Annotations: map[string]string{"plain": "p"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Env: env}}},
	}
	got, refusal := Leave(pod)
	if refusal != nil {
		t.Fatal(refusal)
	}
	want := []corev1.EnvVar{env[0], env[1], {Name: "NAMESPACE", Value: "shop"}}
	if diff := cmp.Diff(want, got.Pod.Spec.Containers[0].Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestTheHostOfAPodIsTheVirtualNode(t *testing.T) {
	spec := &corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i", Env: []corev1.EnvVar{fieldEnv("HOST", "status.hostIP")}}},
		Containers:     []corev1.Container{{Name: "c", Env: []corev1.EnvVar{fieldEnv("HOSTS", "status.hostIPs"), fieldEnv("POD", "status.podIP"), {Name: "PLAIN", Value: "x"}}}},
	}
	HostAtHome(spec, netip.MustParseAddr("10.1.2.3"))
	want := [][]corev1.EnvVar{{{Name: "HOST", Value: "10.1.2.3"}}, {{Name: "HOSTS", Value: "10.1.2.3"}, fieldEnv("POD", "status.podIP"), {Name: "PLAIN", Value: "x"}}}
	if diff := cmp.Diff(want, [][]corev1.EnvVar{spec.InitContainers[0].Env, spec.Containers[0].Env}); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestMatchLabelKeysBecomePartOfTheSelector(t *testing.T) {
	const key = "pod-template-hash"
	merged := metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{"x1"}}
	for name, expressions := range map[string][]metav1.LabelSelectorRequirement{
		"merged by the API server":     {merged},
		"not merged by the API server": nil,
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", key: "x1"}},
				Spec: corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
					TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MatchLabelKeys: []string{key, "absent"},
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}, MatchExpressions: expressions},
				}}},
			}
			got, refusal := Leave(pod)
			if refusal != nil {
				t.Fatal(refusal)
			}
			want := []corev1.TopologySpreadConstraint{{
				TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}, MatchExpressions: []metav1.LabelSelectorRequirement{merged}},
			}}
			if diff := cmp.Diff(want, got.Pod.Spec.TopologySpreadConstraints); diff != "" {
				t.Errorf("constraints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestATokenInAnOrdinaryVolumeIsDroppedWithANote(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "vault", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
		},
	}}}}}}
	got, refusal := Leave(pod)
	if refusal != nil {
		t.Fatal(refusal)
	}
	if len(got.Pod.Spec.Volumes) != 1 || len(got.Pod.Spec.Volumes[0].Projected.Sources) != 1 || len(got.Notes) != 1 {
		t.Errorf("got volumes %+v and notes %q, want the volume without the token, and a note", got.Pod.Spec.Volumes, got.Notes)
	}
}

// A ServiceAccount that was chosen for a pod says that it calls the API server.
func TestATokenOfAChosenServiceAccountIsDroppedWithANote(t *testing.T) {
	for _, tt := range []struct {
		account, annotation string
		notes               int
	}{{"", "", 0}, {"default", "", 0}, {"operator", "", 1}, {"operator", "true", 0}} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: tt.account, Volumes: []corev1.Volume{{
			Name: tokenVolumePrefix + "x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
			}},
		}}}}
		if tt.annotation != "" {
			pod.Annotations = map[string]string{api.AnnotationHomeAPI: tt.annotation}
		}
		got, refusal := Leave(pod)
		if refusal != nil || len(got.Notes) != tt.notes || tt.notes == 1 && !strings.Contains(got.Notes[0], "ServiceAccount operator") {
			t.Errorf("%+v: notes %q, refusal %v", tt, got.Notes, refusal)
		}
	}
	withoutToken := &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: "operator"}}
	if got, refusal := Leave(withoutToken); refusal != nil || len(got.Notes) > 0 {
		t.Errorf("a pod without a token: notes %q, refusal %v", got.Notes, refusal)
	}
}

// Whatever a pod is like, its translation carries no identity and is the same
// each time.
func FuzzTranslate(f *testing.F) {
	full, err := json.Marshal(filledForFuzz())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte(`{"spec":{"volumes":[{"name":"v","projected":{"sources":[{"serviceAccountToken":{"path":"t"}}]}}],"containers":[{"name":"c"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var pod corev1.Pod
		if json.Unmarshal(data, &pod) != nil {
			return
		}
		got, refusal := Leave(&pod)
		if refusal != nil {
			return
		}
		s := got.Pod.Spec
		if s.ServiceAccountName != "" || s.NodeName != "" || s.HostNetwork || *s.AutomountServiceAccountToken {
			t.Errorf("identity or host access crossed: %+v", s)
		}
		for _, v := range s.Volumes {
			if v.HostPath != nil {
				t.Error("a host path crossed")
			}
			if v.Projected == nil {
				continue
			}
			for _, p := range v.Projected.Sources {
				if p.ServiceAccountToken != nil {
					t.Error("a token crossed")
				}
			}
		}
		again, _ := Leave(&pod)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Errorf("two translations differ (-first +second):\n%s", diff)
		}
	})
}

func filledForFuzz() *corev1.Pod {
	var pod corev1.Pod
	fill(reflect.ValueOf(&pod.Spec).Elem(), "spec", map[reflect.Type]int{})
	portable(&pod)
	return &pod
}

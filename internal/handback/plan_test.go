package handback

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
)

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func virtualNode(name, peer string, edit ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		v1alpha1.LabelVirtualNode: "true", v1alpha1.LabelPeer: peer, corev1.LabelHostname: name,
	}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range edit {
		f(&n)
	}
	return n
}

func lost(n *corev1.Node)     { n.Status.Conditions[0].Status = corev1.ConditionFalse }
func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

// stuck is a pod of a ReplicaSet that its provider took and has no node for.
func stuck(name string, edit ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(start),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
	}}
	p.Spec.NodeName = "office"
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{{
		Type: v1alpha1.PodOffloaded, Status: corev1.ConditionTrue, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(start),
	}}
	for _, f := range edit {
		f(&p)
	}
	return p
}

func owned(kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences[0].Kind = kind
		if kind == "Job" {
			p.OwnerReferences[0].APIVersion = "batch/v1"
		}
	}
}

func requiring(r ...corev1.NodeSelectorRequirement) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: r}},
		}}}
	}
}

func abroad(p *corev1.Pod) {
	requiring(corev1.NodeSelectorRequirement{Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}})(p)
}

func entry(times int32, since time.Time, edit ...func(*v1alpha1.PlacementBackoff)) v1alpha1.PlacementBackoff {
	k := v1alpha1.PlacementBackoff{
		OwnerUID: "rs", Kind: "ReplicaSet", Name: "web", Node: "office", Count: times,
		Since: metav1.NewTime(since), Until: metav1.NewTime(since.Add(pause(times))),
	}
	for _, f := range edit {
		f(&k)
	}
	return k
}

func over(k *v1alpha1.PlacementBackoff) { k.Expired = true }

func at(node string) func(*v1alpha1.PlacementBackoff) {
	return func(k *v1alpha1.PlacementBackoff) { k.Node = node }
}

func TestDecideHandsBackWhatCannotBeScheduled(t *testing.T) {
	t.Parallel()
	due := start.Add(defaultAfter)
	office, barn := virtualNode("office", "abc"), virtualNode("barn", "def")
	shed := virtualNode("shed", "abc", func(n *corev1.Node) { n.Labels[v1alpha1.LabelPool] = "cpu" })
	waiting := func(created time.Time) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Conditions, p.CreationTimestamp = "", nil, metav1.NewTime(created)
			requiring(placement.NotOn("office"))(p)
		}
	}
	back := start.Add(firstPause) // when the entry of start is over
	ignoring := map[types.UID]jobRules{"rs": {rules: []batchv1.PodFailurePolicyRule{on(batchv1.PodFailurePolicyActionIgnore, corev1.DisruptionTarget)}}}
	ofJobs := func(k *v1alpha1.PlacementBackoff) { k.Kind = "Job" }
	for name, tc := range map[string]struct {
		at     time.Time
		pod    corev1.Pod
		policy *v1alpha1.Unschedulable
		nodes  []corev1.Node
		jobs   map[types.UID]jobRules
		kept   []v1alpha1.PlacementBackoff

		want   []v1alpha1.PlacementBackoff
		evicts bool
		stays  string
	}{
		"before its time it waits":               {at: due.Add(-time.Second), pod: stuck("p")},
		"then its controller is kept away first": {at: due, pod: stuck("p"), want: []v1alpha1.PlacementBackoff{entry(1, due)}},
		"it waits until placement knows":         {at: due.Add(placementLag - 1), pod: stuck("p"), kept: []v1alpha1.PlacementBackoff{entry(1, due)}, want: []v1alpha1.PlacementBackoff{entry(1, due)}},
		"and is evicted":                         {at: due.Add(placementLag), pod: stuck("p"), kept: []v1alpha1.PlacementBackoff{entry(1, due)}, want: []v1alpha1.PlacementBackoff{entry(1, due)}, evicts: true},
		"with a time of its own":                 {at: start.Add(time.Minute), pod: stuck("p"), policy: &v1alpha1.Unschedulable{After: &metav1.Duration{Duration: time.Minute}}, want: []v1alpha1.PlacementBackoff{entry(1, start.Add(time.Minute))}},
		"where pods wait":                        {at: due, pod: stuck("p"), policy: &v1alpha1.Unschedulable{Action: v1alpha1.UnschedulableWait}},
		"one that ends goes on ending":           {at: due, pod: stuck("p", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: due} })},
		"one that runs stays":                    {at: due, pod: stuck("p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
		"one that the provider has a node for":   {at: due, pod: stuck("p", func(p *corev1.Pod) { p.Status.Conditions[0].Reason = "Accepted" })},
		"one that the provider did not take":     {at: due, pod: stuck("p", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })},
		"of a provider that does not answer":     {at: due, pod: stuck("p"), nodes: []corev1.Node{virtualNode("office", "abc", lost)}},
		"on a node that is not virtual":          {at: due, pod: stuck("p", func(p *corev1.Pod) { p.Spec.NodeName = "worker" })},
		"without a controller":                   {at: due, pod: stuck("p", func(p *corev1.Pod) { p.OwnerReferences = nil }), stays: "no controller"},
		"of a Job":                               {at: due, pod: stuck("p", owned("Job")), jobs: map[types.UID]jobRules{"rs": {}}, stays: "count it as failed"},
		"of a Job that was not read yet":         {at: due, pod: stuck("p", owned("Job"))},
		"of a Job that ignores disruptions":      {at: due, pod: stuck("p", owned("Job")), jobs: ignoring, want: []v1alpha1.PlacementBackoff{entry(1, due, ofJobs)}},
		"of such a Job, when placement knows":    {at: due.Add(placementLag), pod: stuck("p", owned("Job")), jobs: ignoring, kept: []v1alpha1.PlacementBackoff{entry(1, due)}, want: []v1alpha1.PlacementBackoff{entry(1, due)}, evicts: true},
		"of such a Job, with a volume": {at: due, pod: stuck("p", owned("Job"), func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}), jobs: ignoring, stays: "a volume"},
		"of an unknown controller": {at: due, pod: stuck("p", owned("Workflow")), stays: "its Workflow"},
		"of a StatefulSet":         {at: due, pod: stuck("p", owned("StatefulSet")), want: []v1alpha1.PlacementBackoff{entry(1, due, func(k *v1alpha1.PlacementBackoff) { k.Kind = "StatefulSet" })}},
		"with a volume": {at: due, pod: stuck("p", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}), stays: "a volume"},
		"that may run abroad only":                  {at: due, pod: stuck("p", abroad), stays: "no other virtual node"},
		"with another provider":                     {at: due, pod: stuck("p", abroad), nodes: []corev1.Node{office, barn}, want: []v1alpha1.PlacementBackoff{entry(1, due)}},
		"with another that is lost":                 {at: due, pod: stuck("p", abroad), nodes: []corev1.Node{office, virtualNode("barn", "def", lost)}, stays: "no other virtual node"},
		"with another that takes no pods":           {at: due, pod: stuck("p", abroad), nodes: []corev1.Node{office, virtualNode("barn", "def", cordoned)}, stays: "no other virtual node"},
		"with another pool of the same":             {at: due, pod: stuck("p", abroad), nodes: []corev1.Node{office, shed}, want: []v1alpha1.PlacementBackoff{entry(1, due)}},
		"with another pool that it does not select": {at: due, pod: stuck("p", abroad, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{v1alpha1.LabelPool: "gpu"} }), nodes: []corev1.Node{office, shed}, stays: "no other virtual node"},
		"kept away from another pool of the same":   {at: due, pod: stuck("p"), nodes: []corev1.Node{office, shed}, kept: []v1alpha1.PlacementBackoff{entry(1, start, at("shed"))}, want: []v1alpha1.PlacementBackoff{entry(1, start, at("shed")), entry(1, due)}},
		"kept away from all pools of the same":      {at: due, pod: stuck("p", abroad), nodes: []corev1.Node{office, shed}, kept: []v1alpha1.PlacementBackoff{entry(1, start, at("shed"))}, want: []v1alpha1.PlacementBackoff{entry(1, start, at("shed"))}, stays: "no other virtual node"},
		"with another that it must not run at":      {at: due, pod: stuck("p", abroad, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} }), nodes: []corev1.Node{office, barn}, stays: "no other virtual node"},
		"with another that it is kept away from":    {at: due, pod: stuck("p", abroad), nodes: []corev1.Node{office, barn}, kept: []v1alpha1.PlacementBackoff{entry(1, due, at("barn"))}, want: []v1alpha1.PlacementBackoff{entry(1, due, at("barn"))}, stays: "no other virtual node"},
		"again, for twice as long":                  {at: back.Add(time.Minute), pod: stuck("p"), kept: []v1alpha1.PlacementBackoff{entry(1, start, over)}, want: []v1alpha1.PlacementBackoff{entry(2, back.Add(time.Minute))}},
		"after long":                                {at: back.Add(firstPause), pod: stuck("p"), kept: []v1alpha1.PlacementBackoff{entry(1, start, over)}, want: []v1alpha1.PlacementBackoff{entry(1, back.Add(firstPause))}},
		"when the time is over":                     {at: back, pod: stuck("p", waiting(start)), kept: []v1alpha1.PlacementBackoff{entry(1, start)}, want: []v1alpha1.PlacementBackoff{entry(1, start, over)}},
		"when placement knows that":                 {at: back.Add(2 * placementLag), pod: stuck("p", waiting(start)), kept: []v1alpha1.PlacementBackoff{entry(1, start, over)}, want: []v1alpha1.PlacementBackoff{entry(1, start, over)}, evicts: true},
		"of a Job, when placement knows that":       {at: back.Add(2 * placementLag), pod: stuck("p", owned("Job"), waiting(start)), jobs: ignoring, kept: []v1alpha1.PlacementBackoff{entry(1, start, over)}, want: []v1alpha1.PlacementBackoff{entry(1, start, over)}, evicts: true},
		"of a Job that fails if it waits at home":   {at: back.Add(2 * placementLag), pod: stuck("p", owned("Job"), waiting(start)), jobs: map[types.UID]jobRules{"rs": {}}, kept: []v1alpha1.PlacementBackoff{entry(1, start, over)}, want: []v1alpha1.PlacementBackoff{entry(1, start, over)}},
		"one that was made since":                   {at: back.Add(time.Minute), pod: stuck("p", waiting(back.Add(time.Minute))), kept: []v1alpha1.PlacementBackoff{entry(1, start, over)}, want: []v1alpha1.PlacementBackoff{entry(1, start, over)}},
		"one that is kept away and found its place": {at: back.Add(time.Minute), pod: stuck("p", waiting(start), func(p *corev1.Pod) { p.Spec.NodeName = "worker" }), kept: []v1alpha1.PlacementBackoff{entry(1, start, over)}, want: []v1alpha1.PlacementBackoff{entry(1, start, over)}},
		"one that waits for another reason":         {at: back.Add(time.Minute), pod: stuck("p", waiting(start), requiring(placement.NotOn("barn"))), kept: []v1alpha1.PlacementBackoff{entry(1, start, over)}, want: []v1alpha1.PlacementBackoff{entry(1, start, over)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.nodes == nil {
				tc.nodes = []corev1.Node{office}
			}
			o := &v1alpha1.NamespaceOffloading{Spec: v1alpha1.NamespaceOffloadingSpec{Unschedulable: tc.policy}, Status: v1alpha1.NamespaceOffloadingStatus{PlacementBackoffs: tc.kept}}
			d := decide(&facts{now: tc.at, offloading: o, pods: []corev1.Pod{tc.pod}, nodes: byName(tc.nodes...), jobs: tc.jobs})
			if diff := cmp.Diff(tc.want, d.kept); diff != "" {
				t.Errorf("kept away (-want +got):\n%s", diff)
			}
			if (len(d.evict) == 1) != tc.evicts {
				t.Errorf("evicted: %v", d.evict)
			}
			if (len(d.stay) == 1) != (tc.stays != "") || len(d.stay) == 1 && !strings.Contains(d.stay[0].why, tc.stays) {
				t.Errorf("it stays, since %v", d.stay)
			}
		})
	}
}

func TestTheMemoryOfMovesIsBounded(t *testing.T) {
	t.Parallel()
	o, f := &v1alpha1.NamespaceOffloading{}, &facts{now: start.Add(time.Hour), nodes: byName(virtualNode("office", "abc"))}
	for i := range maxKept + 10 {
		f.pods = append(f.pods, stuck(fmt.Sprint(i), func(p *corev1.Pod) { p.OwnerReferences[0].UID = types.UID(fmt.Sprint(i)) }))
	}
	f.offloading = o
	d := decide(f)
	if len(d.kept) != maxKept || len(d.stay) != 10 || len(d.evict) != 0 {
		t.Fatalf("%d are kept away, %d stay, %d evicted", len(d.kept), len(d.stay), len(d.evict))
	}
	o.Status.PlacementBackoffs, f.now = d.kept, f.now.Add(placementLag)
	if d = decide(f); len(d.evict) != maxEvictions {
		t.Errorf("%d are evicted at once", len(d.evict))
	}
	if p := pause(1 << 30); p != maxPause {
		t.Errorf("the pause is %s at most", p)
	}
}

// world is a home cluster of one node, a provider that has no node for any pod but in the pool runs, and a
// ReplicaSet.
type world struct {
	t          *testing.T
	now        time.Time
	offloading *v1alpha1.NamespaceOffloading
	// knows is what placement knows about it: it lags.
	knows    *v1alpha1.NamespaceOffloading
	nodes    []corev1.Node
	homeFull bool
	runs     string
	pods     []corev1.Pod
	made     int
	abroad   int
}

// step simulates one step: the ReplicaSet creates missing pods, placement and the scheduler do their work,
// and pods are handed back.
func (w *world) step(replicas int) {
	for len(w.pods) < replicas {
		w.made++
		p := stuck(fmt.Sprint("p", w.made), func(p *corev1.Pod) {
			p.Spec.NodeName, p.CreationTimestamp, p.Status.Conditions = "", metav1.NewTime(w.now), nil
		})
		w.pods = append(w.pods, w.admit(p))
	}
	for i := range w.pods {
		w.schedule(&w.pods[i])
	}
	d := decide(&facts{now: w.now, offloading: w.offloading, pods: w.pods, nodes: byName(w.nodes...)})
	w.knows = w.offloading.DeepCopy()
	w.offloading.Status.PlacementBackoffs = d.kept
	for _, v := range d.evict {
		if v.pod.Status.Phase != corev1.PodPending {
			w.t.Errorf("%s runs and is evicted", v.pod.Name)
		}
	}
	gone := map[types.UID]bool{}
	for _, v := range d.evict {
		gone[v.pod.UID] = true
	}
	w.pods = slices.DeleteFunc(w.pods, func(p corev1.Pod) bool { return gone[p.UID] })
	w.now = w.now.Add(reconcileInterval)
}

func (w *world) admit(p corev1.Pod) corev1.Pod {
	raw, _ := json.Marshal(p)
	operations, _ := json.Marshal(placement.Decide(&p, w.knows))
	patch, err := jsonpatch.DecodePatch(operations)
	if err != nil {
		w.t.Fatal(err)
	}
	if raw, err = patch.Apply(raw); err != nil {
		w.t.Fatal(err)
	}
	var out corev1.Pod
	if err := json.Unmarshal(raw, &out); err != nil {
		w.t.Fatal(err)
	}
	return out
}

// schedule prefers the virtual node, as one with much room does.
func (w *world) schedule(p *corev1.Pod) {
	if p.Spec.NodeName != "" {
		return
	}
	for _, n := range append(slices.Clone(w.nodes), corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}) {
		if ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(&n); err != nil || !ok || n.Name == "worker" && w.homeFull {
			continue
		}
		p.Spec.NodeName = n.Name
		if n.Name != "worker" {
			w.abroad++
		}
		if n.Name == "worker" || n.Name == w.runs {
			p.Status.Phase = corev1.PodRunning
			return
		}
		p.Status.Conditions = stuck("").Status.Conditions
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
		return
	}
}

func newWorld(t *testing.T) *world {
	o := &v1alpha1.NamespaceOffloading{Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyLocalAndRemote}}
	return &world{t: t, now: start, offloading: o, knows: o, nodes: []corev1.Node{virtualNode("office", "abc")}}
}

func TestPodsRunAtHomeInTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for w.now.Before(start.Add(time.Hour)) {
		w.step(3)
	}
	if len(w.pods) != 3 || w.made != 6 || w.abroad != 3 || slices.ContainsFunc(w.pods, func(p corev1.Pod) bool { return p.Spec.NodeName != "worker" }) {
		t.Errorf("after an hour %d pods of %d that were made, %d abroad: %+v", len(w.pods), w.made, w.abroad, w.pods)
	}
}

// What one pool of a provider has no node for, another one of the same provider runs, also where home may not.
func TestAnotherPoolOfTheProviderRunsWhatOneHasNoNodeFor(t *testing.T) {
	t.Parallel()
	for _, strategy := range []v1alpha1.PodStrategy{v1alpha1.StrategyLocalAndRemote, v1alpha1.StrategyRemote} {
		w := newWorld(t)
		w.homeFull, w.offloading.Spec.PodStrategy = true, strategy
		w.nodes, w.runs = []corev1.Node{virtualNode("office-gpu", "abc"), virtualNode("office-cpu", "abc")}, "office-cpu"
		var from []string
		for w.now.Before(start.Add(time.Hour)) {
			w.step(3)
			for _, k := range w.offloading.Status.PlacementBackoffs {
				from = append(from, k.Node)
			}
		}
		if from = slices.Compact(from); !slices.Equal(from, []string{"office-gpu"}) {
			t.Errorf("%s: they are kept away from %q", strategy, from)
		}
		if w.made != 6 || w.abroad != 6 || slices.ContainsFunc(w.pods, func(p corev1.Pod) bool { return p.Spec.NodeName != w.runs }) {
			t.Errorf("%s: after an hour %d pods were made, %d of them abroad: %+v", strategy, w.made, w.abroad, w.pods)
		}
	}
}

// With a full home a pod goes to the provider again when its time is over, ever more seldom.
func TestAPodWithoutAPlaceIsTriedEverMoreSeldom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.homeFull = true
	for w.now.Before(start.Add(24 * time.Hour)) {
		w.step(1)
	}
	// 10, 20, 40, 80, 160, 320 and 640 minutes kept away: seven within a day.
	if w.abroad < 6 || w.abroad > 8 || w.made > 2*w.abroad+1 {
		t.Errorf("within a day a pod was abroad %d times, and made %d times", w.abroad, w.made)
	}
	w.homeFull = false
	for end := w.now.Add(24 * time.Hour); w.now.Before(end); {
		w.step(1)
	}
	if len(w.pods) != 1 || w.pods[0].Spec.NodeName != "worker" {
		t.Errorf("with room at home it is %+v", w.pods)
	}
}

func byName(nodes ...corev1.Node) map[string]*corev1.Node {
	out := map[string]*corev1.Node{}
	for i := range nodes {
		out[nodes[i].Name] = &nodes[i]
	}
	return out
}

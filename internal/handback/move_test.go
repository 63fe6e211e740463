package handback

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

// running is a pod of a ReplicaSet that serves on a node.
func running(name, node string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := stuck(name, append([]func(*corev1.Pod){func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}}, edit...)...)
	return &p
}

func own(strategy string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationPodStrategy: strategy} }
}

func TestAMisplacedPodIsFound(t *testing.T) {
	t.Parallel()
	near := &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelLatency: "5"}}
	office := virtualNode("office", "abc", func(n *corev1.Node) { n.Labels[v1alpha1.LabelLatency] = "50" })
	fresh := virtualNode("fresh", "abc")
	other := &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelPeer: "def"}}
	for name, tc := range map[string]struct {
		strategy v1alpha1.PodStrategy
		selector *metav1.LabelSelector
		pod      *corev1.Pod
		node     *corev1.Node
		want     bool
	}{
		"at home with Local":                           {v1alpha1.StrategyLocal, nil, running("p", "worker"), nil, false},
		"abroad with Local":                            {v1alpha1.StrategyLocal, nil, running("p", "office"), &office, true},
		"abroad with Local, which it may not overrule": {v1alpha1.StrategyLocal, nil, running("p", "office", own("Remote")), &office, true},
		"at home with Remote":                          {v1alpha1.StrategyRemote, nil, running("p", "worker"), nil, true},
		"at home with Remote, by its own word":         {v1alpha1.StrategyRemote, nil, running("p", "worker", own("Local")), nil, false},
		"abroad with Remote":                           {v1alpha1.StrategyRemote, nil, running("p", "office"), &office, false},
		"abroad with Remote, elsewhere":                {v1alpha1.StrategyRemote, other, running("p", "office"), &office, true},
		"anywhere":                                     {v1alpha1.StrategyLocalAndRemote, nil, running("p", "office"), &office, false},
		"at home with a selector":                      {v1alpha1.StrategyLocalAndRemote, other, running("p", "worker"), nil, false},
		"abroad, where it is not selected":             {v1alpha1.StrategyLocalAndRemote, other, running("p", "office"), &office, true},
		"abroad, too far away":                         {v1alpha1.StrategyLocalAndRemote, near, running("p", "office"), &office, true},
		"abroad, at an unknown distance":               {v1alpha1.StrategyLocalAndRemote, near, running("p", "fresh"), &fresh, false},
		"abroad, with an annotation against it":        {v1alpha1.StrategyLocalAndRemote, nil, running("p", "office", own("Local")), &office, true},
		"at home, with an annotation against it":       {v1alpha1.StrategyLocalAndRemote, nil, running("p", "worker", own("Remote")), nil, true},
		"with an unknown strategy, it remains":         {"", nil, running("p", "office"), &office, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := misplaced(&v1alpha1.NamespaceOffloadingSpec{PodStrategy: tc.strategy, ClusterSelector: tc.selector}, tc.pod, tc.node); got != tc.want {
				t.Errorf("it is misplaced: %t", got)
			}
		})
	}
}

// moving is a reconciler of a namespace whose strategy became Remote, on a cluster with these pods.
func moving(t *testing.T, refuse func(*corev1.Pod) error, pods ...*corev1.Pod) (reconcile func() *v1alpha1.MisplacedPods, left func() []string, c client.Client) {
	t.Helper()
	o := &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "offloading", Generation: 2},
		Spec:       v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyRemote, Misplaced: v1alpha1.MisplacedMove},
	}
	office := virtualNode("office", "abc")
	objects := []client.Object{o, &office}
	for _, p := range pods {
		objects = append(objects, p)
	}
	evicting := interceptor.NewClient(peertest.Client(t, objects...), interceptor.Funcs{
		SubResourceCreate: func(ctx context.Context, c client.Client, _ string, o, e client.Object, _ ...client.SubResourceCreateOption) error {
			if err := refuse(o.(*corev1.Pod)); err != nil {
				return err
			}
			return c.Delete(ctx, o, client.Preconditions(*e.(*policyv1.Eviction).DeleteOptions.Preconditions))
		},
	})
	now := start
	r := &Reconciler{Client: evicting, Direct: evicting, Events: &peertest.Recorder{}, Now: func() time.Time { return now }}
	reconcile = func() *v1alpha1.MisplacedPods {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(reconcileInterval)
		var is v1alpha1.NamespaceOffloading
		if err := evicting.Get(t.Context(), client.ObjectKeyFromObject(o), &is); err != nil {
			t.Fatal(err)
		}
		return is.Status.Misplaced
	}
	left = func() (names []string) {
		var list corev1.PodList
		if err := evicting.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names
	}
	return reconcile, left, evicting
}

func willing(*corev1.Pod) error { return nil }

func TestPodsMoveAFewAtATime(t *testing.T) {
	t.Parallel()
	var pods []*corev1.Pod
	for i := range 8 {
		pods = append(pods, running(fmt.Sprint("p", i), "worker"))
	}
	reconcile, left, c := moving(t, willing, pods...)
	if m := reconcile(); m == nil || m.Pods != 8 || len(left()) != 8 {
		t.Fatalf("before placement knows that, %+v", m)
	}
	for round := range 6 {
		before := len(left())
		reconcile()
		gone := before - len(left())
		if gone > 2 {
			t.Fatalf("%d of 8 went at once", gone)
		}
		for i := range gone { // its controller creates others, which serve at the next reconcile
			if err := c.Create(t.Context(), running(fmt.Sprint("new-", round, "-", i), "office")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if m := reconcile(); m != nil || slices.ContainsFunc(left(), func(name string) bool { return strings.HasPrefix(name, "p") }) {
		t.Errorf("in the end there are %v, %+v", left(), m)
	}
}

func TestPodsThatWouldBeLostDoNotMove(t *testing.T) {
	t.Parallel()
	reconcile, left, _ := moving(
		t, willing,
		running("bare", "worker", func(p *corev1.Pod) { p.OwnerReferences = nil }),
		running("job", "worker", owned("Job")),
		running("daemon", "worker", owned("DaemonSet")),
		running("abroad", "office"),
		running("host", "worker", func(p *corev1.Pod) { p.Spec.HostNetwork, p.OwnerReferences[0].UID = true, "other" }),
		running("volume", "worker", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
			p.OwnerReferences[0].UID = "third"
		}),
		running("waits", ""),
		running("remade", "barn.entente.dev"),
		running("done", "worker", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	)
	reconcile()
	for range 3 {
		m := reconcile()
		if m == nil || m.Pods != 4 || m.NotMoved != 4 || m.Message == "" {
			t.Errorf("it says %+v", m)
		}
	}
	if n := len(left()); n != 9 {
		t.Errorf("left are %v", left())
	}
}

func TestAMoveSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	reconcile, left, _ := moving(t, func(p *corev1.Pod) error {
		if p.UID == types.UID("uid-guarded") {
			return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		}
		return nil
	}, running("guarded", "worker"), running("sick", "worker", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }))
	reconcile()
	reconcile() // the one that does not serve goes first
	if got := left(); !slices.Equal(got, []string{"guarded"}) {
		t.Errorf("left are %v", got)
	}
	if m := reconcile(); m == nil || m.Pods != 1 || m.NotMoved != 0 || !strings.Contains(m.Message, "disruption budget") {
		t.Errorf("it says %+v", m)
	}
}

// Why a pod stays depends on the strategy, too.
func TestAPodThatStayedMovesWithAnotherStrategy(t *testing.T) {
	t.Parallel()
	reconcile, left, c := moving(t, willing, running("abroad", "office", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	}))
	say := func(edit func(*v1alpha1.NamespaceOffloadingSpec)) *v1alpha1.MisplacedPods {
		t.Helper()
		var o v1alpha1.NamespaceOffloading
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "offloading"}, &o); err != nil {
			t.Fatal(err)
		}
		edit(&o.Spec)
		o.Generation++
		if err := c.Update(t.Context(), &o); err != nil {
			t.Fatal(err)
		}
		reconcile()
		return reconcile()
	}
	m := say(func(o *v1alpha1.NamespaceOffloadingSpec) {
		o.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "other"}}
	})
	if m == nil || m.NotMoved != 1 {
		t.Fatalf("for pods in another cluster the status is %+v", m)
	}
	m = say(func(o *v1alpha1.NamespaceOffloadingSpec) { o.PodStrategy = v1alpha1.StrategyLocal })
	if m == nil || m.NotMoved != 0 || len(left()) != 0 {
		t.Errorf("for pods at home the status is %+v, and left are %v", m, left())
	}
}

func TestAPodWhoseVolumeIsAbroadIsToldWhatToDo(t *testing.T) {
	t.Parallel()
	waits := func(claim string, edit ...func(*corev1.Pod)) *corev1.Pod {
		return running(claim, "", append([]func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		}}, edit...)...)
	}
	volume := func(name string, source corev1.PersistentVolumeSource) []client.Object {
		return []client.Object{
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name}},
			&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}},
		}
	}
	there := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.VolumeDriver}}
	var objects []client.Object
	for _, name := range []string{"abroad", "goes", "tolerates", "placed"} {
		objects = append(objects, volume(name, there)...)
	}
	objects = append(objects, volume("here", corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}})...)
	objects = append(objects, waits("abroad"), waits("here"), waits("unbound"), waits("goes", own("Remote")),
		waits("tolerates", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.LabelVirtualNode, Operator: corev1.TolerationOpExists}}
		}),
		waits("placed", func(p *corev1.Pod) { p.Spec.NodeName = "worker" }),
		&v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "offloading"}, Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyLocalAndRemote}})
	c, said := peertest.Client(t, objects...), events.NewFakeRecorder(10)
	r := &Reconciler{Client: c, Direct: c, Events: said, Now: func() time.Time { return start }}
	for range 3 {
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "offloading"}}); err != nil {
			t.Fatal(err)
		}
	}
	close(said.Events)
	var all []string
	for e := range said.Events {
		all = append(all, e)
	}
	if len(all) != 1 || !strings.Contains(all[0], "VolumeAbroad") || !strings.Contains(all[0], "claim abroad is in another cluster") || !strings.Contains(all[0], "entente.dev/pod-strategy: Remote") {
		t.Errorf("it says %q", all)
	}
}

package handback

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

// waitingFor is a pod of a StatefulSet that finds no node, with a claim.
func waitingFor(name, claim string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := stuck(name, append([]func(*corev1.Pod){owned("StatefulSet"), func(p *corev1.Pod) {
		p.Spec.NodeName, p.CreationTimestamp = "", metav1.NewTime(start.Add(-time.Hour))
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}}, edit...)...)
	return &p
}

// bound is a claim and its volume, which is of this driver.
func bound(claim, driver string) []client.Object {
	return []client.Object{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: claim}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + claim},
		},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver}},
		}},
	}
}

// afterwards returns the pods that are left some time after their namespace was offloaded, and the reasons of the events.
func afterwards(t *testing.T, strategy v1alpha1.PodStrategy, pods ...*corev1.Pod) (left, said []string) {
	t.Helper()
	o := &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "offloading", Generation: 1}, Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: strategy},
	}
	objects := slices.Concat([]client.Object{o}, bound("abroad", v1alpha1.VolumeDriver), bound("here", "disks.example"))
	for _, p := range pods {
		objects = append(objects, p)
	}
	c := interceptor.NewClient(peertest.Client(t, objects...), interceptor.Funcs{
		SubResourceCreate: func(ctx context.Context, c client.Client, _ string, o, e client.Object, _ ...client.SubResourceCreateOption) error {
			return c.Delete(ctx, o, client.Preconditions(*e.(*policyv1.Eviction).DeleteOptions.Preconditions))
		},
	})
	now, events := start, &peertest.Recorder{}
	r := &Reconciler{Client: c, Direct: c, Events: events, Now: func() time.Time { return now }}
	for round := range 4 {
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
			t.Fatal(err)
		}
		var list corev1.PodList
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		if left = nil; round == 0 && len(list.Items) != len(pods) {
			t.Fatal("a pod went before placement knew that the namespace is offloaded")
		}
		for i := range list.Items {
			left = append(left, list.Items[i].Name)
		}
		now = now.Add(reconcileInterval)
	}
	return left, events.Events
}

func TestAPodIsMadeAgainWhereItsVolumeIs(t *testing.T) {
	t.Parallel()
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.LabelVirtualNode, Operator: corev1.TolerationOpExists}}
	}
	left, said := afterwards(t, v1alpha1.StrategyRemote,
		waitingFor("db-0", "abroad"),
		waitingFor("here", "here"),
		waitingFor("home", "abroad", own("Local")),
		waitingFor("tolerates", "abroad", tolerant),
		waitingFor("bare", "abroad", func(p *corev1.Pod) { p.OwnerReferences = nil }),
		waitingFor("placed", "abroad", func(p *corev1.Pod) { p.Spec.NodeName = "worker" }),
		waitingFor("later", "abroad", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(start.Add(time.Minute)) }),
	)
	if want := []string{"bare", "here", "home", "later", "placed", "tolerates"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
	slices.Sort(said)
	if want := []string{"Normal HandedBack", "Warning VolumeAbroad", "Warning VolumeAbroad"}; !slices.Equal(said, want) {
		t.Errorf("events: %q, want %q", said, want)
	}
}

func TestAPodWithAVolumeAbroadStaysUnlessItMayRunThere(t *testing.T) {
	t.Parallel()
	for _, strategy := range []v1alpha1.PodStrategy{v1alpha1.StrategyLocalAndRemote, v1alpha1.StrategyLocal} {
		left, said := afterwards(t, strategy, waitingFor("db-0", "abroad"))
		if !slices.Equal(left, []string{"db-0"}) || !slices.Equal(said, []string{"Warning VolumeAbroad"}) {
			t.Errorf("%s: left are %q, events %q", strategy, left, said)
		}
	}
	left, _ := afterwards(t, v1alpha1.StrategyLocalAndRemote, waitingFor("db-0", "abroad", own("Remote")))
	if len(left) > 0 {
		t.Errorf("one whose template says Remote stays: %q", left)
	}
}

// The cache may be behind: a pod that has a node by now, since its volume was moved home, runs.
func TestAPodThatFoundANodeMeanwhileIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	found := waitingFor("db-0", "abroad", func(p *corev1.Pod) { p.Spec.NodeName = "worker" })
	behind := waitingFor("db-0", "abroad")
	o := &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: v1alpha1.NamespaceOffloadingName, Generation: 1}, Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyRemote},
	}
	api := peertest.Client(t, append(bound("abroad", v1alpha1.VolumeDriver), o, found)...)
	cache := interceptor.NewClient(api, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if pods, ok := list.(*corev1.PodList); ok {
				pods.Items = []corev1.Pod{*behind}
				return nil
			}
			return c.List(ctx, list, opts...)
		},
		SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
			t.Error("it is evicted")
			return nil
		},
	})
	now, events := start, &peertest.Recorder{}
	r := &Reconciler{Client: cache, Direct: api, Events: events, Now: func() time.Time { return now }}
	for range 3 {
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(reconcileInterval)
	}
	if len(events.Events) > 0 {
		t.Errorf("events: %q", events.Events)
	}
}

package namespaces

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

// placed is a pod of a controller, made before the end, that placement bound to
// virtual nodes and that no node took yet.
func placed(name string, end time.Time, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(end.Add(-time.Minute)),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}},
	}}
	virtual := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: v1alpha1.LabelVirtualNode, Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}},
	}}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{virtual, virtual}},
	}}
	p.Status.Phase = corev1.PodPending
	if edit != nil {
		edit(p)
	}
	return p
}

func TestPodsThatWaitForAVirtualNodeAreReplacedWhenTheirNamespaceIsClosed(t *testing.T) {
	t.Parallel()
	end := peertest.Now.Truncate(time.Second)
	for strategy, gone := range map[v1alpha1.PodStrategy][]string{
		v1alpha1.StrategyRemote:         {"late", "waits"},
		v1alpha1.StrategyLocalAndRemote: nil,
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			offloading := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "offloading", Finalizers: []string{v1alpha1.Finalizer}, DeletionTimestamp: &metav1.Time{Time: end},
			}}
			offloading.Spec.PodStrategy = strategy
			terms := func(p *corev1.Pod) []corev1.NodeSelectorTerm {
				return p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			}
			created := func(after time.Duration) func(*corev1.Pod) {
				return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(end.Add(after)) }
			}
			pods := []*corev1.Pod{
				placed("waits", end, nil),
				placed("late", end, created(time.Second)), // placement did not know of the end
				placed("asks-itself", end, created(placementLag+time.Second)),
				placed("bare", end, func(p *corev1.Pod) { p.OwnerReferences = nil }),
				placed("bound", end, func(p *corev1.Pod) { p.Spec.NodeName = "office" }),
				placed("ended", end, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
				placed("anywhere", end, func(p *corev1.Pod) { p.Spec.Affinity = nil }),
				placed("home-too", end, func(p *corev1.Pod) { terms(p)[1].MatchExpressions[0].Operator = corev1.NodeSelectorOpDoesNotExist }),
				placed("elsewhere", end, func(p *corev1.Pod) { p.Namespace = "bank" }),
			}
			objects := []client.Object{offloading}
			want := map[string]bool{}
			for _, p := range pods {
				objects = append(objects, p)
				want[p.Name] = true
			}
			for _, name := range gone {
				delete(want, name)
			}
			said := &peertest.Recorder{}
			c := evicting(peertest.Client(t, objects...))
			r := &Reconciler{
				Client: c, Events: said, Changed: func() {},
				Evict: func(context.Context, string) (int, error) { return 0, nil },
			}
			for range 3 {
				if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(offloading)}); err != nil {
					t.Fatal(err)
				}
			}
			var left corev1.PodList
			if err := c.List(t.Context(), &left); err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for i := range left.Items {
				got[left.Items[i].Name] = true
			}
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Errorf("what is left (-want +got):\n%s", diff)
			}
			if told := len(said.Events) > 0; told != (gone != nil) {
				t.Errorf("events: %v", said.Events)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(offloading), offloading); client.IgnoreNotFound(err) != nil || err == nil {
				t.Errorf("the namespace is not let go: %v", err)
			}
		})
	}
}

// A pod that the scheduler gave a node in between is not the one that was seen.
func TestAPodThatGetsANodeMeanwhileIsNotDeleted(t *testing.T) {
	t.Parallel()
	end := peertest.Now.Truncate(time.Second)
	c := evicting(peertest.Client(t, placed("waits", end, nil)))
	seen := &corev1.Pod{}
	key := client.ObjectKey{Namespace: "shop", Name: "waits"}
	if err := c.Get(t.Context(), key, seen); err != nil {
		t.Fatal(err)
	}
	bound := seen.DeepCopy()
	bound.Spec.NodeName = "office"
	if err := c.Update(t.Context(), bound); err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: staleList{c, corev1.PodList{Items: []corev1.Pod{*seen}}}, Events: &peertest.Recorder{}}
	offloading := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", DeletionTimestamp: &metav1.Time{Time: end}}}
	offloading.Spec.PodStrategy = v1alpha1.StrategyRemote
	if made, err := r.replace(t.Context(), offloading); err != nil || !made {
		t.Errorf("made %t, %v", made, err)
	}
	if err := c.Get(t.Context(), key, seen); err != nil || seen.Spec.NodeName != "office" {
		t.Errorf("the pod: %v on %q", err, seen.Spec.NodeName)
	}
}

// evicting has evictions keep their preconditions, as an API server does.
func evicting(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		SubResourceCreate: func(ctx context.Context, c client.Client, _ string, o, e client.Object, _ ...client.SubResourceCreateOption) error {
			return c.Delete(ctx, o, client.Preconditions(*e.(*policyv1.Eviction).DeleteOptions.Preconditions))
		},
	})
}

// staleList is a cache that lags.
type staleList struct {
	client.Client
	pods corev1.PodList
}

func (s staleList) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.pods.DeepCopyInto(list.(*corev1.PodList))
	return nil
}

// The reconciler runs each few seconds for each namespace, and writes only what is
// missing.
func TestNamespaceIsBoundOnce(t *testing.T) {
	t.Parallel()
	offloading := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "offloading"}}
	creates := 0
	c := interceptor.NewClient(peertest.Client(t, offloading, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			creates++
			return c.Create(ctx, o, opts...)
		},
	})
	r := &Reconciler{Client: c, States: func(string, *metav1.LabelSelector) []v1alpha1.NamespaceInCluster { return nil }, Changed: func() {}}
	reconcile := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(offloading)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		reconcile()
	}
	if creates != 1 {
		t.Errorf("%d attempts to create the role binding, want 1", creates)
	}
	if err := c.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: ConsumerClusterRole}}); err != nil {
		t.Fatal(err)
	}
	reconcile()
	if creates != 2 {
		t.Error("a role binding that went was not made again")
	}
}

func TestNamespaceStateIsTheWorstOfItsClusters(t *testing.T) {
	t.Parallel()
	at := func(name, state, message string) v1alpha1.NamespaceInCluster {
		return v1alpha1.NamespaceInCluster{ForeignCluster: name, State: state, Message: message}
	}
	all := []v1alpha1.ForeignCluster{{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"tier": "gold"}}}}
	selecting := func(tier string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"tier": tier}}
	}
	const none = "spec.clusterSelector selects no ForeignCluster, so new pods run here or wait: compare it with `kubectl get foreignclusters --show-labels`"
	for name, tt := range map[string]struct {
		selector       *metav1.LabelSelector
		clusters       []v1alpha1.NamespaceInCluster
		state, message string
	}{
		"no provider":               {nil, nil, "NoProvider", "no cluster provides resources to this one: see `kubectl get peeringrequests`"},
		"none of those selected":    {selecting("gold"), nil, "NoProvider", "no cluster that spec.clusterSelector selects provides resources to this one: see `kubectl get peeringrequests`"},
		"none is selected":          {selecting("lead"), nil, "NoProvider", none},
		"none is any more":          {selecting("lead"), []v1alpha1.NamespaceInCluster{at("a", "Ready", "")}, "NoProvider", none},
		"a selector that is wrong":  {&metav1.LabelSelector{MatchLabels: map[string]string{"-": ""}}, nil, "NoProvider", none},
		"it is selected":            {selecting("gold"), []v1alpha1.NamespaceInCluster{at("a", "Ready", "")}, "Ready", ""},
		"all ready":                 {nil, []v1alpha1.NamespaceInCluster{at("a", "Ready", ""), at("b", "Ready", "")}, "Ready", ""},
		"one pending":               {nil, []v1alpha1.NamespaceInCluster{at("a", "Ready", ""), at("b", "Pending", "")}, "Pending", "b"},
		"one is selected no longer": {nil, []v1alpha1.NamespaceInCluster{at("a", "Ready", ""), at("b", "Terminating", "pods")}, "Ready", ""},
		"only such a one":           {nil, []v1alpha1.NamespaceInCluster{at("b", "Terminating", "pods")}, "NoProvider", "no cluster provides resources to this one: see `kubectl get peeringrequests`"},
		"refused is worst":          {nil, []v1alpha1.NamespaceInCluster{at("a", "Pending", "x"), at("b", "Refused", "names")}, "Refused", "b: names"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if state, message := stateOf(tt.selector, tt.clusters, all); state != tt.state || message != tt.message {
				t.Errorf("stateOf = %q, %q, want %q, %q", state, message, tt.state, tt.message)
			}
		})
	}
}

func TestAStatusNamesANamespaceThatNothingIsOpenedTo(t *testing.T) {
	t.Parallel()
	of := func(namespace string, openTo ...string) *v1alpha1.NamespaceOffloading {
		return &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "offloading"}, Spec: v1alpha1.NamespaceOffloadingSpec{OpenTo: openTo}}
	}
	const soph = "openTo: namespace soph is not offloaded, so no pod of it runs abroad"
	const unusable = "label a/b of ForeignCluster both selects no node: nodes have a/b and a_b under one key, peer.entente.dev/a_b, and the values differ"
	both := func() *v1alpha1.ForeignCluster {
		return &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "both", Labels: map[string]string{"a/b": "x", "a_b": "y"}}}
	}
	one := func() *v1alpha1.ForeignCluster {
		return &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"a/b": "x"}}}
	}
	placing := func(problem string) func() string { return func() string { return problem } }
	for name, tt := range map[string]struct {
		openTo    []string
		selects   map[string]string
		notPlaced func() string
		want      string
	}{
		"all are offloaded":                     {openTo: []string{"shop"}},
		"all that there are":                    {openTo: []string{"shop", "*"}},
		"one is not":                            {openTo: []string{"shop", "soph", "bank"}, want: soph},
		"a label that selects no node":          {openTo: []string{"shop"}, selects: map[string]string{"a/b": "x"}, want: unusable},
		"one is not, and such a label":          {openTo: []string{"soph"}, selects: map[string]string{"a/b": "x"}, want: unusable + "; " + soph},
		"nothing is placed, and all of it":      {openTo: []string{"soph"}, selects: map[string]string{"a/b": "x"}, notPlaced: placing("no webhook"), want: "no webhook; " + unusable + "; " + soph},
		"pods are placed, and one is not there": {openTo: []string{"soph"}, notPlaced: placing(""), want: soph},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := of("data", tt.openTo...)
			if tt.selects != nil {
				data.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: tt.selects}
			}
			c := interceptor.NewClient(peertest.Client(t, data, of("shop"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "data"}},
				both(), one()), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if key.Namespace == v1alpha1.AllNamespaces {
						t.Errorf("it reads %s of a namespace that cannot be", key)
					}
					return c.Get(ctx, key, o, opts...)
				},
			})
			r := &Reconciler{Client: c, Changed: func() {}, NotPlaced: tt.notPlaced, States: func(string, *metav1.LabelSelector) []v1alpha1.NamespaceInCluster {
				return []v1alpha1.NamespaceInCluster{{ForeignCluster: "a", Contract: "c", State: v1alpha1.OffloadingReady}}
			}}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(data)}); err != nil {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(data), data); err != nil {
				t.Fatal(err)
			}
			if got := data.Status.Message; data.Status.State != v1alpha1.OffloadingReady || got != tt.want {
				t.Errorf("the state is %s, %q; want Ready, %q", data.Status.State, got, tt.want)
			}
		})
	}
}

func TestTheRightToTokensLastsAsLongAsTheOptIn(t *testing.T) {
	t.Parallel()
	offloading := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "offloading"}}
	c := peertest.Client(t, offloading, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	r := &Reconciler{Client: c, States: func(string, *metav1.LabelSelector) []v1alpha1.NamespaceInCluster { return nil }, Changed: func() {}}
	for _, opt := range []v1alpha1.HomeAPI{"", v1alpha1.HomeAPIAllowed, v1alpha1.HomeAPIDenied, v1alpha1.HomeAPIAllowed} {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(offloading), offloading); err != nil {
			t.Fatal(err)
		}
		offloading.Spec.HomeAPI = opt
		if err := c.Update(t.Context(), offloading); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(offloading)}); err != nil {
			t.Fatal(err)
		}
		err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: HomeAPIClusterRole}, &rbacv1.RoleBinding{})
		if bound := err == nil; bound != (opt == v1alpha1.HomeAPIAllowed) {
			t.Errorf("with homeAPI %q bound is %t: %v", opt, bound, err)
		}
	}
}

// What a namespace opens to others is closed before its pods leave, which takes a while, and also when it is gone at once.
func TestTheEndOfAnOffloadingIsKnownBeforeItsPodsLeave(t *testing.T) {
	t.Parallel()
	changed := 0
	ending := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{
		Namespace: "data", Name: "offloading", Finalizers: []string{v1alpha1.Finalizer}, DeletionTimestamp: &metav1.Time{Time: peertest.Now},
	}}
	r := &Reconciler{
		Client: peertest.Client(t, ending, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "data"}}), Changed: func() { changed++ },
		Evict: func(context.Context, string) (int, error) {
			if changed == 0 {
				t.Error("its pods are evicted before its end is known")
			}
			return 1, nil
		},
	}
	for _, name := range []string{"data", "gone"} {
		changed = 0
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: name, Name: "offloading"}}); err != nil {
			t.Fatal(err)
		}
		if changed == 0 {
			t.Errorf("nothing says that the offloading of %s ends", name)
		}
	}
}

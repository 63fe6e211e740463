package cleanup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/store"
)

const namespace = "entente-system"

func newCleanup(cfg Config, objects ...client.Object) *cleanup {
	cfg.Namespace = namespace
	return &cleanup{cfg: cfg, client: fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).Build()}
}

// has lists the objects that exist, by kind and name.
func (w *cleanup) has(t *testing.T, lists ...client.ObjectList) (out []string) {
	t.Helper()
	for _, list := range lists {
		found, err := w.list(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range found {
			out = append(out, o.GetName())
		}
	}
	slices.Sort(out)
	return out
}

// What an agent that no longer runs left is removed by its labels, with the
// finalizers that no controller would remove, and nothing else is.
func TestForceRemovesLabelledObjects(t *testing.T) {
	t.Parallel()
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u"}, Spec: corev1.PodSpec{NodeName: node}}
	}
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	}
	secret := func(namespace, name string, labels map[string]string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	}
	for keep, secrets := range map[bool][]string{true: {"elsewhere", "other", store.IdentitySecret}, false: {"elsewhere", "other"}} {
		slices.Sort(secrets)
		w := newCleanup(Config{KeepIdentity: keep},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "real"}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual", UID: "n", Labels: map[string]string{v1alpha1.LabelVirtualNode: "true"}}},
			pod("here", "real"), pod("abroad", "virtual"), lease("real"), lease("virtual"),
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "completes", UID: "c", Labels: managed, Finalizers: []string{v1alpha1.Finalizer}}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "another's finalizer", UID: "f", Labels: managed, Finalizers: []string{"example.com/x", v1alpha1.Finalizer}}},
			&v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "fc", Finalizers: []string{"entente.dev/x"}}},
			&v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "contract", Finalizers: []string{"entente.dev/x"}}},
			&mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "imported", Labels: managed}},
			&mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "another's"}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: managed}},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{v1alpha1.LabelOffloading: "enabled", "team": "a"}}},
			secret(namespace, store.IdentitySecret, managed), secret(namespace, "token", managed), secret(namespace, "other", nil), secret("shop", "elsewhere", managed),
		)
		if err := w.force(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left, err := w.left(t.Context()); err != nil || len(left) > 0 {
			t.Errorf("left are %q, %v", left, err)
		}
		if got := w.has(t, &corev1.NodeList{}, &corev1.PodList{}, &coordinationv1.LeaseList{}, &v1alpha1.ForeignClusterList{}, &v1alpha1.ContractList{}, &mcs.ServiceImportList{}); !slices.Equal(got, []string{"another's", "another's finalizer", "here", "real", "real"}) {
			t.Errorf("there are %q", got)
		}
		if got := w.has(t, &corev1.SecretList{}); !slices.Equal(got, secrets) {
			t.Errorf("with the identity kept, %t, the secrets are %q", keep, got)
		}
		var shop corev1.Namespace
		if err := w.client.Get(t.Context(), client.ObjectKey{Name: "shop"}, &shop); err != nil || len(shop.Labels) != 1 || shop.Labels["team"] != "a" {
			t.Errorf("the offloaded namespace has %v, %v", shop.Labels, err)
		}
	}
}

// An agent that does nothing is not waited for as long as one that has something to wait for.
func TestAnAgentThatDoesNothingIsNotWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		course   func(t *testing.T, w *cleanup)
		least    time.Duration
		most     time.Duration
		complain string
	}{
		"it does nothing": {func(*testing.T, *cleanup) {}, agentActs, time.Minute, "did nothing within 45s; what it left is removed without it: 1 *v1alpha1.Contract, the first c, kept by finalizers entente.dev/x"},
		"it does all": {func(t *testing.T, w *cleanup) {
			time.Sleep(20 * time.Second)
			w.change(t, func(c *v1alpha1.Contract) { c.Finalizers = nil })
		}, 20 * time.Second, 25 * time.Second, ""},
		"it does something, and waits": {func(t *testing.T, w *cleanup) {
			time.Sleep(20 * time.Second)
			w.change(t, func(c *v1alpha1.Contract) { c.Annotations = map[string]string{"ending": "true"} })
		}, 4 * time.Minute, 5 * time.Minute, "not within 4m0s: 1 *v1alpha1.Contract"},
		"it does something, and dies": {func(t *testing.T, w *cleanup) {
			time.Sleep(20 * time.Second)
			w.change(t, func(c *v1alpha1.Contract) { c.Annotations = map[string]string{"ending": "true"} })
			w.ready(t, 0)
		}, 20*time.Second + agentBack, time.Minute, "no pod of the agent was ready for 30s"},
		"it is replaced": {func(t *testing.T, w *cleanup) {
			w.ready(t, 0)
			time.Sleep(20 * time.Second)
			w.ready(t, 1)
			time.Sleep(10 * time.Second)
			w.change(t, func(c *v1alpha1.Contract) { c.Finalizers = nil })
		}, 30 * time.Second, 35 * time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agentDeployment}, Status: appsv1.DeploymentStatus{ReadyReplicas: 1}}
				w := newCleanup(Config{}, agent, &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "c", Finalizers: []string{"entente.dev/x"}}})
				if err := w.endPeerings(t.Context()); err != nil {
					t.Fatal(err)
				}
				go test.course(t, w)
				begin := time.Now()
				err := w.await(t.Context(), 4*time.Minute, w.takenDown())
				if took := time.Since(begin); took < test.least || took > test.most {
					t.Errorf("it took %s, want %s to %s", took, test.least, test.most)
				}
				if (err == nil) != (test.complain == "") || err != nil && !strings.Contains(err.Error(), test.complain) {
					t.Errorf("the error is %v, want %q", err, test.complain)
				}
				synctest.Wait()
			})
		})
	}
}

// change is the agent that does something of the contract.
func (w *cleanup) change(t *testing.T, edit func(*v1alpha1.Contract)) {
	t.Helper()
	c := &v1alpha1.Contract{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "c"}, c); err != nil {
		t.Error(err)
	}
	edit(c)
	if err := w.client.Update(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// ready is how many pods of the agent are ready.
func (w *cleanup) ready(t *testing.T, n int32) {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: agentDeployment}, d); err != nil {
		t.Error(err)
	}
	d.Status.ReadyReplicas = n
	if err := w.client.Status().Update(t.Context(), d); err != nil {
		t.Error(err)
	}
}

// A consumer's volumes outlive the install: no administrator ordered to delete them.
func TestNamespacesWithVolumesStay(t *testing.T) {
	t.Parallel()
	claim := func(ns string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "entente-u"}}
		for _, f := range change {
			f(c)
		}
		return c
	}
	going := func(c *corev1.PersistentVolumeClaim) {
		c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kubernetes.io/pvc-protection"}
	}
	space := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: managed}}
	}
	w := newCleanup(Config{}, space("full"), space("empty"), space("emptied"), claim("full"), claim("emptied", going))
	if err := w.force(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.has(t, &corev1.NamespaceList{}); !slices.Equal(got, []string{"full"}) {
		t.Errorf("there are the namespaces %q, want the one with a volume", got)
	}
	var full corev1.Namespace
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "full"}, &full); err != nil || full.Labels[v1alpha1.LabelRetained] != "true" {
		t.Errorf("it has the labels %v, %v", full.Labels, err)
	}
	if left, err := w.left(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left are %q, %v: namespaces that are kept do not count", left, err)
	}
}

// A running agent is asked by the objects that users write: contracts end, and what asked for
// them and would do so again goes.
// The volume of a claim that is being moved would be lost to it without its finalizer.
func TestClaimsWhoseVolumesAreMovedAreNamed(t *testing.T) {
	t.Parallel()
	claim := func(name string, finalizers ...string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Finalizers: finalizers}}
	}
	var out strings.Builder
	w := newCleanup(Config{Out: &out}, claim("other", "kubernetes.io/pvc-protection"), claim("data", "kubernetes.io/pvc-protection", v1alpha1.FinalizerMove))
	if err := errors.Join(w.force(t.Context()), w.conclude(t.Context())); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "entente move volume data --namespace shop --abort") || strings.Contains(got, "other") {
		t.Errorf("it prints %q", got)
	}
	var kept corev1.PersistentVolumeClaim
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, &kept); err != nil || !slices.Contains(kept.Finalizers, v1alpha1.FinalizerMove) {
		t.Errorf("the claim has the finalizers %q, %v", kept.Finalizers, err)
	}
}

func TestPeeringsAreEndedInOrder(t *testing.T) {
	t.Parallel()
	automatic := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "automatic"}}
	automatic.Spec.Automatic = &v1alpha1.AutomaticPeering{}
	w := newCleanup(Config{}, automatic, &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "manual"}},
		&v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "contract", Finalizers: []string{"entente.dev/x"}}},
		&v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: "request"}},
		&v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Status: v1alpha1.FabricNodeStatus{
			ObservedAt: metav1.NewTime(time.Now().Add(-time.Minute)), Paths: []v1alpha1.FabricPath{{}},
		}},
	)
	if err := w.endPeerings(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := w.has(t, &v1alpha1.PeeringPolicyList{}, &v1alpha1.PeeringRequestList{}); !slices.Equal(got, []string{"manual"}) {
		t.Errorf("there are %q", got)
	}
	var c v1alpha1.Contract
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "contract"}, &c); err != nil || c.Spec.Termination != "Now" || c.DeletionTimestamp.IsZero() {
		t.Errorf("the contract is %+v, %v", c.Spec, err)
	}
	if waiting, err := w.takenDown()(t.Context()); err != nil || !strings.Contains(waiting, "1 *v1alpha1.Contract, the first contract") {
		t.Errorf("it waits for %q, %v", waiting, err)
	}
	if waiting, err := w.fabricClean(t.Context()); err != nil || waiting != "node node still has tunnels" {
		t.Errorf("it waits for %q, %v", waiting, err)
	}
	if w.agentLives(t.Context()) {
		t.Error("an agent that is not there lives")
	}
	if err := w.client.Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agentDeployment}, Status: appsv1.DeploymentStatus{ReadyReplicas: 1}}); err != nil {
		t.Fatal(err)
	}
	if !w.agentLives(t.Context()) {
		t.Error("the agent does not live")
	}
}

// A provider may run 10,000 pods for others, and they are read each second.
func TestOfOffloadedPodsOneIsRead(t *testing.T) {
	t.Parallel()
	w := newCleanup(Config{})
	left := int64(9999)
	read := 0
	w.client = interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			pods, is := list.(*v1alpha1.OffloadedPodList)
			if !is {
				return c.List(ctx, list, opts...)
			}
			o := (&client.ListOptions{}).ApplyOptions(opts)
			read += int(o.Limit)
			if left >= 0 {
				pods.Items = []v1alpha1.OffloadedPod{{ObjectMeta: metav1.ObjectMeta{Name: "first", UID: "u", ResourceVersion: "1"}}}
				pods.RemainingItemCount = new(left)
			}
			return nil
		},
	})
	waiting, before, err := w.peerings(t.Context())
	if err != nil || waiting != "10000 *v1alpha1.OffloadedPod, the first first" || read != 1 {
		t.Errorf("it waits for %q (%v), and read %d", waiting, err, read)
	}
	left--
	if _, now, _ := w.peerings(t.Context()); now == before {
		t.Error("one of them went, and that is not noticed")
	}
	left = -1
	if waiting, _, err := w.peerings(t.Context()); err != nil || waiting != "" {
		t.Errorf("with none left it waits for %q, %v", waiting, err)
	}
}

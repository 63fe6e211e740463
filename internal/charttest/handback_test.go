package charttest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/handback"
	"github.com/entente-dev/entente/internal/namespaces"
)

// testHandBack has the agent, with the rights that it has, hand back a pod that a provider has no node
// for, and the API server keep the next one away from there.
func (c cluster) testHandBack(t *testing.T) {
	ns, node := c.offloaded(t, v1alpha1.StrategyLocalAndRemote, nil), newVirtualNode()
	node.Labels[corev1.LabelHostname] = node.Name
	c.create(t, node, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespaces.ConsumerClusterRole, Namespace: ns},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: namespaces.ConsumerClusterRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "entente-agent"}},
	})
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := c.admin.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	taken := metav1.Now()
	stuck := func(owners ...metav1.OwnerReference) *corev1.Pod {
		p := newPod(ns, corev1.PodSpec{NodeName: node.Name, Tolerations: []corev1.Toleration{{Key: virtualNode, Operator: "Exists"}}})
		p.OwnerReferences = owners
		c.create(t, p)
		p.Status.Conditions = []corev1.PodCondition{{
			Type: v1alpha1.PodOffloaded, Status: corev1.ConditionTrue, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: taken,
		}}
		if err := c.admin.Status().Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "handed-back", Controller: new(true)}
	web, bare := stuck(owner), stuck()
	now, said := taken.Time, events.NewFakeRecorder(10)
	agent := c.as(t, "entente-agent", nil)
	r := &handback.Reconciler{Client: agent, Direct: agent, Events: said, Now: func() time.Time { return now }}
	reconcile := func(after time.Duration) {
		t.Helper()
		now = now.Add(after)
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: ns, Name: v1alpha1.NamespaceOffloadingName}}); err != nil {
			t.Fatal(err)
		}
	}
	ends := func(p *corev1.Pod) bool {
		t.Helper()
		if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			t.Fatal(err)
		}
		return p.DeletionTimestamp != nil
	}
	reconcile(time.Minute)
	reconcile(5 * time.Minute)
	if ends(web) || ends(bare) {
		t.Fatal("a pod was evicted before placement knows from where to keep the next one")
	}
	waitFor(t, "placement to keep pods away", func() error {
		next := newPod(ns, corev1.PodSpec{})
		next.OwnerReferences = []metav1.OwnerReference{owner}
		if got := text(c.admit(t, next).Spec.Affinity); !strings.Contains(got, `{"key":"kubernetes.io/hostname","operator":"NotIn","values":["`+node.Name+`"]}`) {
			return fmt.Errorf("the affinity is %s", got)
		}
		return nil
	})
	reconcile(time.Minute)
	if !ends(web) || ends(bare) {
		t.Errorf("the pod of a controller ends: %t, the other: %t", ends(web), ends(bare))
	}
	close(said.Events)
	var all []string
	for e := range said.Events {
		all = append(all, e)
	}
	if len(all) != 2 || !strings.Contains(all[0], "NotHandedBack") || !strings.Contains(all[1], "HandedBack") {
		t.Errorf("events: %q", all)
	}
}

package control

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/integration/eventually"
)

// Limits of waiting, on two busy cores.
const (
	// soon is for what happens at once.
	soon = time.Minute
	// later is for what waits for an agent that starts, or a namespace that goes.
	later = 90 * time.Second
)

// newNamespace makes a namespace that goes with the test.
func newNamespace(t *testing.T, c *cluster, prefix string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%06x", prefix, rand.Uint32()>>8)}}
	if err := c.client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, c, ns) })
	// Pods need the namespace's ServiceAccount.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name}}
	if err := eventually.Is(t.Context(), soon, "namespace "+ns.Name+" to be furnished", func(ctx context.Context) error { return c.get(ctx, "default", account) }); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// remove deletes an object that a test may have deleted already, and waits until it is gone, if an
// agent has to finish that.
func remove(t *testing.T, c *cluster, o ctrlclient.Object) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := c.client.Delete(ctx, o); ctrlclient.IgnoreNotFound(err) != nil {
		t.Errorf("delete %T %s: %v", o, o.GetName(), err)
		return
	}
	if _, ok := o.(*corev1.Namespace); ok {
		return // which takes seconds, and no other has its name
	}
	if !c.running() && len(o.GetFinalizers()) > 0 {
		return // the agent takes it down when it is back
	}
	if err := gone(ctx, c, o, later); err != nil {
		t.Error(err)
	}
}

// gone waits until an object is.
func gone(ctx context.Context, c *cluster, o ctrlclient.Object, limit time.Duration) error {
	key := ctrlclient.ObjectKeyFromObject(o)
	return eventually.Is(ctx, limit, fmt.Sprintf("%T %s of %s to be gone", o, key, c.name), func(ctx context.Context) error {
		err := c.client.Get(ctx, key, o)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it is there, deleted %v, finalizers %v", o.GetDeletionTimestamp(), o.GetFinalizers())
	})
}

// pod is a pod that does nothing, as the fake nodes like it.
func pod(namespace, name string, change func(*corev1.Pod)) *corev1.Pod {
	no := int64(0)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &no,
			Containers:                    []corev1.Container{{Name: "main", Image: "none.example/none:1"}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

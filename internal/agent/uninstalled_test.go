package agent

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestAnAgentEndsWithItsNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// A finalizer keeps it there for as long as pods and the like do.
		own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "entente-system", Finalizers: []string{"example.com/content"}}}
		other := own.DeepCopy()
		other.Name = "shop"
		c := fake.NewClientBuilder().WithObjects(own, other).Build()
		var stopped error
		u := &uninstalled{cache: c, namespace: own.Name, stop: func(why error) { stopped = why }}
		ended := make(chan error, 1)
		go func() { ended <- u.Start(t.Context()) }()
		if err := c.Delete(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(ended) > 0 || stopped != nil {
			t.Fatalf("it ended with another namespace: %v", stopped)
		}
		if err := c.Delete(t.Context(), own); err != nil {
			t.Fatal(err)
		}
		time.Sleep(namespacePoll)
		synctest.Wait()
		if stopped == nil {
			t.Fatal("it goes on")
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "entente-system is being deleted") {
			t.Errorf("it ended with %v", err)
		}
		// One that is started again finds its namespace like that.
		if err := u.Start(t.Context()); err == nil {
			t.Error("the next one goes on")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&uninstalled{cache: fake.NewClientBuilder().Build(), namespace: "entente-system"}).Start(ctx); err != nil {
		t.Errorf("at its end: %v", err)
	}
}

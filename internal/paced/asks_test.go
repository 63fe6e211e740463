package paced

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/peering"
)

// Reads, lists and dry runs count, and those of one peer for it alone.
func TestAFloodingPeerDelaysOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Client: fake.NewClientBuilder().Build(), Writes: Writes()})
		ask := func(peer peering.ClusterID, n int) time.Duration {
			begun := time.Now()
			for i := range n {
				ctx, o := For(t.Context(), peer), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "none"}}
				var err error
				switch i % 3 {
				case 0:
					err = client.IgnoreNotFound(c.Get(ctx, client.ObjectKeyFromObject(o), o))
				case 1:
					err = c.List(ctx, &corev1.ConfigMapList{})
				case 2:
					err = c.Create(ctx, o, client.DryRunAll)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(begun)
		}
		if took := ask("a", maxRequestsBurst); took > 0 {
			t.Errorf("what a peer may ask at once took %s", took)
		}
		if took := ask("a", 10*maxRequests); took < 10*time.Second-time.Millisecond || took > 11*time.Second {
			t.Errorf("ten seconds' worth took %s", took)
		}
		if took := ask("b", maxRequests); took > 0 {
			t.Errorf("another peer waited %s", took)
		}
		// Requests of the agent itself, as those of a reconciler, do not wait.
		if err := c.List(t.Context(), &corev1.ConfigMapList{}); err != nil {
			t.Error(err)
		}
		// Peers that ask no more are forgotten.
		time.Sleep(time.Hour)
		ask("c", 1)
		if n := len(c.asks.peers); n != 1 {
			t.Errorf("%d peers are remembered", n)
		}
	})
}

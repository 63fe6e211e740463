package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Truthful is for how long pods may not reach each other while Network is True.
const Truthful = 15 * time.Second

// WatchTruth requests a URL each second from the pod with an address in a cluster, until stop, and
// fails the test if Network is True there when that has failed for long.
func WatchTruth(ctx context.Context, t testing.TB, side *Side, from, url string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		var since time.Time
		told := false
		for ctx.Err() == nil {
			// What is mended may be so while a request still fails that began before.
			before := networkIsTrue(ctx, side)
			_, err := side.InNetworkOf(ctx, from, "curl", "-sf", "--max-time", "2", "-o", "/dev/null", url)
			now := time.Now()
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				since, told = time.Time{}, false
			case since.IsZero():
				since = now
			case now.Sub(since) >= Truthful && !told && before != nil:
				if c := networkIsTrue(ctx, side); c != nil {
					told = true
					t.Errorf("pods have not reached each other for %s, and Network is True: %s", now.Sub(since).Round(time.Second), c.Message)
				}
			}
			time.Sleep(time.Second)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// networkIsTrue returns the condition Network of a side's peer if it is True.
func networkIsTrue(ctx context.Context, side *Side) *metav1.Condition {
	peer, err := side.Peer(ctx)
	if err != nil || peer == nil || !meta.IsStatusConditionTrue(peer.Status.Conditions, v1alpha1.ConditionNetwork) {
		return nil
	}
	return meta.FindStatusCondition(peer.Status.Conditions, v1alpha1.ConditionNetwork)
}

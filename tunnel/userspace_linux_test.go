package tunnel

import (
	"os"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// Who asks WireGuard's tools about a device in a bad moment removes its socket, as they do with one that
// refuses connections.
func TestControlSocketThatWasRemovedComesBackToStay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.node("a", 1, "11")
	r.eventually("the device is there", func() error {
		_, err := r.try(a.ns, "wg show "+a.device)
		return err
	})
	for range 2 {
		if err := os.Remove(userspace.Socket(a.device)); err != nil {
			t.Fatal(err)
		}
		r.eventually("the socket is there again", func() error {
			_, err := os.Lstat(userspace.Socket(a.device))
			return err
		})
		for range 30 { // longer than the process looks for it again
			time.Sleep(100 * time.Millisecond)
			r.in(a.ns, "wg show "+a.device)
		}
	}
}

// A pod that floods a peer that is not there must not stop the others, however
// few buffers there are.
func TestFloodingADeadPeerDoesNotStopALiveOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	const aliasOfA, aliasOfB, aliasOfDead = "10.241.0.0/16", "10.242.0.0/16", "10.243.0.0/16"
	dead := peering(b, aliasOfA, aliasOfDead)
	dead.ClusterID = clusterID("z")
	dead.Gateways = []plan.Gateway{{Node: "gone", PublicKey: plan.PublicKey{77}, Endpoints: []string{"172.31.0.77:51820"}}}
	a.set(a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB), dead))
	b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA, openTo(b.podAddr))))
	b.up()

	// 20,000 packets per second: a flood, but not one of the processor.
	stop := r.flood(a.pod, remap(t, b.podAddr, aliasOfDead), 2*time.Millisecond)
	time.Sleep(time.Second)
	slowest, failed := time.Duration(0), 0
	for range 40 {
		began := time.Now()
		if _, err := r.ask(a.pod, "tcp", remap(t, b.podAddr, aliasOfB), 8080); err != nil {
			failed++
			t.Logf("after %v: %v", time.Since(began).Round(time.Millisecond), err)
		}
		slowest = max(slowest, time.Since(began))
	}
	stop()
	t.Logf("40 connections under the flood: %d failed, slowest took %v", failed, slowest.Round(time.Millisecond))
	if failed > 20 {
		t.Errorf("%d of 40 connections failed", failed)
	}
	t.Logf("tunnel process: at most %d MiB", peakMemory(t, a.wireguard))
}

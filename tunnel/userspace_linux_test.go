package tunnel

import (
	"os"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn/bindtest"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/entente-dev/entente/tunnel/plan"
)

// If this fails after an update of wireguard-go, limitBuffers must be adapted: the process
// would use as much memory as there is traffic.
func TestBuffersOfTheTunnelProcessAreLimited(t *testing.T) {
	gate := &gatedTUN{Device: tuntest.NewChannelTUN().TUN(), ready: make(chan struct{}), before: func() {}}
	dev := device.NewDevice(gate, bindtest.NewChannelBinds()[0], &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf})
	limit, err := limitBuffers(dev)
	if err != nil {
		t.Fatal(err)
	}
	var taken []*[device.MaxMessageSize]byte
	for range maxPackets {
		taken = append(taken, dev.GetMessageBuffer())
	}
	got := make(chan struct{})
	go func() {
		dev.PutMessageBuffer(dev.GetMessageBuffer())
		close(got)
	}()
	select {
	case <-got:
		t.Errorf("%d buffers were given, the limit is %d", maxPackets+1, maxPackets)
	case <-time.After(50 * time.Millisecond):
	}
	if n := limit.used(); n != maxPackets {
		t.Errorf("%d buffers are in use, want %d", n, maxPackets)
	}
	for _, b := range taken {
		dev.PutMessageBuffer(b)
	}
	<-got
	if n := limit.used(); n != 0 {
		t.Errorf("%d buffers are in use, want none", n)
	}
	close(gate.ready)
	dev.Close()
}

func TestControlSocketIsPrivateAndReplacesAStaleOne(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to write to " + socketDirectory)
	}
	path := controlPath("entente-test")
	t.Cleanup(func() { _ = os.Remove(path) })
	first, err := listenControl(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o, want 600", got)
	}
	if _, err := listenControl(t.Context(), path); err == nil {
		t.Error("a socket in use was taken over")
	}
	first.Close() // as a killed process: the file stays
	second, err := listenControl(t.Context(), path)
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	second.Close()
}

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
		if err := os.Remove(controlPath(a.device)); err != nil {
			t.Fatal(err)
		}
		r.eventually("the socket is there again", func() error {
			_, err := os.Lstat(controlPath(a.device))
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

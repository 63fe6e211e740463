package userspace

import (
	"os"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn/bindtest"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
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
		t.Skip("needs root to write to " + directory)
	}
	path := Socket("entente-test")
	t.Cleanup(func() { _ = os.Remove(path) })
	first, err := Listen(t.Context(), path)
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
	if _, err := Listen(t.Context(), path); err == nil {
		t.Error("a socket in use was taken over")
	}
	first.Close() // as a killed process: the file stays
	second, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	second.Close()
}

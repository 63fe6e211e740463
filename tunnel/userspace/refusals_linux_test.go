package userspace

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn/bindtest"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/tunnel/plan"
)

// cipherPair is two devices of wireguard-go that are connected. The first has the second one's packets
// refused unless they come from 10.1.0.0/16.
type cipherPair struct {
	tuns    [2]*tuntest.ChannelTUN
	devices [2]*device.Device
	keys    [2]plan.PublicKey
}

func newCipherPair(t *testing.T, logger *device.Logger) *cipherPair {
	t.Helper()
	var p cipherPair
	var private [2]wgtypes.Key
	for i := range private {
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		private[i], p.keys[i] = key, plan.PublicKey(key.PublicKey())
	}
	silent := &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf}
	allowed := [2]string{"10.1.0.0/16", "0.0.0.0/0"}
	for i, bind := range bindtest.NewChannelBinds() {
		p.tuns[i] = tuntest.NewChannelTUN()
		p.devices[i] = device.NewDevice(p.tuns[i].TUN(), bind, []*device.Logger{logger, silent}[i])
		t.Cleanup(p.devices[i].Close)
		err := p.devices[i].IpcSet(fmt.Sprintf("private_key=%x\nlisten_port=0\npublic_key=%x\nendpoint=127.0.0.1:%d\nallowed_ip=%s\n",
			private[i][:], p.keys[1-i][:], i+1, allowed[i]))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.devices[i].Up(); err != nil {
			t.Fatal(err)
		}
	}
	return &p
}

// send sends packets of the second device to the first, and then one that passes, until it has arrived.
func (p *cipherPair) send(t *testing.T, packets ...[]byte) {
	t.Helper()
	for _, b := range append(packets, tuntest.Ping(netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.1.0.1"))) {
		p.tuns[1].Outbound <- b
	}
	select {
	case <-p.tuns[0].Inbound:
	case <-time.After(10 * time.Second):
		t.Fatal("the packet that may pass did not arrive")
	}
}

// If this fails after an update of wireguard-go, its messages have changed: see refusals.
func TestPacketsThatTheCipherRefusesAreCountedByPeer(t *testing.T) {
	t.Parallel()
	var refused refusals
	p := newCipherPair(t, &device.Logger{Verbosef: refused.note, Errorf: device.DiscardLogf})
	p.send(t)
	if got := refused.read(p.devices[0]); len(got) != 0 {
		t.Errorf("%v were refused, want none", got)
	}
	four := tuntest.Ping(netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.3.0.1"))
	six := append([]byte{0x60, 0, 0, 0, 0, 0, 59, 64}, make([]byte, 32)...)
	six[8], six[24] = 0xfd, 0xfd // from and to addresses of fd00::/8
	if err := p.devices[1].IpcSet(fmt.Sprintf("public_key=%x\nallowed_ip=::/0\n", p.keys[0][:])); err != nil {
		t.Fatal(err)
	}
	p.send(t, four, four, six)
	if got := refused.read(p.devices[0])[device.NoisePublicKey(p.keys[1])]; got != 3 {
		t.Errorf("%d packets of the peer were counted, want 3", got)
	}

	// One that is gone is counted no more, and not kept.
	if err := p.devices[0].IpcSet(fmt.Sprintf("public_key=%s\nremove=true\n", hex.EncodeToString(p.keys[1][:]))); err != nil {
		t.Fatal(err)
	}
	if got := refused.read(p.devices[0]); len(got) != 0 || refused.peers.Load() != 0 {
		t.Errorf("%v and %d peers are kept of a device without peers", got, refused.peers.Load())
	}
}

func TestCountingWhatTheCipherRefusesTakesNoMemory(t *testing.T) {
	var refused refusals
	p := newCipherPair(t, &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf})
	args := []any{p.devices[0].LookupPeer(device.NoisePublicKey(p.keys[1]))}
	for _, format := range []string{"IPv4 packet with disallowed source address from %v", "%v - Receiving keepalive packet"} {
		if n := testing.AllocsPerRun(100, func() { refused.note(format, args...) }); n != 0 {
			t.Errorf("%q: %v allocations", format, n)
		}
	}
}

func TestTheTunnelProcessReportsWhatItsCipherRefuses(t *testing.T) {
	t.Parallel()
	var refused refusals
	p := newCipherPair(t, &device.Logger{Verbosef: refused.note, Errorf: device.DiscardLogf})
	p.send(t, tuntest.Ping(netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.3.0.1")))
	process := tunnelProcess{dev: p.devices[0], refused: &refused}
	ask := func(request string) string {
		ours, theirs := net.Pipe()
		go process.handle(theirs)
		defer ours.Close()
		_ = ours.SetDeadline(time.Now().Add(5 * time.Second))
		go func() { _, _ = ours.Write([]byte(request)) }()
		answer := make([]byte, 1<<16)
		n := 0
		for n < 2 || string(answer[n-2:n]) != "\n\n" {
			m, err := ours.Read(answer[n:])
			if n += m; err != nil {
				break
			}
		}
		return string(answer[:n])
	}
	report, err := parseReport(ask(ReportRequest))
	if err != nil || len(report.Refused) != 1 || report.Refused[p.keys[1]] != 1 {
		t.Errorf("reported %v, %v; want one packet of %v", report.Refused, err, p.keys[1])
	}
	if got := ask("get=1\n\n"); len(got) < 100 || got[len(got)-len("errno=0\n\n"):] != "errno=0\n\n" {
		t.Errorf("WireGuard's own request got %q", got)
	}
	for _, text := range []string{"", "errno=1\n\n", "public_key=00\nrefused_packets=1\nerrno=0\n\n", "refused_packets=x\nerrno=0\n\n"} {
		if r, err := parseReport(text); err == nil {
			t.Errorf("%q is a report: %v", text, r)
		}
	}
	if _, err := parseReport("something_new=1\nerrno=0\n\n"); err != nil {
		t.Errorf("a report of a newer process: %v", err)
	}
}

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/integration/only"
)

// repairLimit is how long traffic may stop: less than WireGuard waits before it begins a handshake again.
const repairLimit = 5 * time.Second

// harm is something that happens to a cluster's only node.
type harm struct {
	name string
	// do and undo are commands on the node, in a shell. undo ends what no fabric can, once traffic passes again.
	do, undo func(s *Side) string
}

// harms are what the fabric's parts, and the network under it, suffer.
func harms() []harm {
	command := func(text string) func(*Side) string { return func(*Side) string { return text } }
	readdress := func(s *Side, from, to netip.Addr) string {
		return fmt.Sprintf("ip addr del %[1]s/%[3]d dev eth0; ip addr add %[2]s/%[3]d dev eth0; ip route replace default via %[4]s", from, to, s.Plan.LAN.Bits(), s.Plan.Gateway)
	}
	other := func(s *Side) netip.Addr {
		a := s.Plan.Control().Address.As4()
		a[3] += 100
		return netip.AddrFrom4(a)
	}
	return []harm{
		{"the nftables table is deleted", command("nft delete table inet entente"), nil},
		{"all routes are flushed", command("ip route flush table all proto 141"), nil},
		{"the device is set down", command("ip link set entente0 down"), nil},
		{"the device is deleted", command("ip link del entente0"), nil},
		{"the link is down for half a second", func(s *Side) string {
			return "ip link set eth0 down; sleep 0.5; ip link set eth0 up; ip route replace default via " + s.Plan.Gateway.String()
		}, nil},
		{
			"the node has another address",
			func(s *Side) string { return readdress(s, s.Plan.Control().Address, other(s)) },
			func(s *Side) string { return readdress(s, other(s), s.Plan.Control().Address) },
		},
	}
}

// TestFabricRepairsItself does one harm after the other to the node of either cluster, under packets between pods and on
// one TCP connection that lives through all of them.
func TestFabricRepairsItself(t *testing.T) {
	only.Matrix(t, "a minute; package tunnel has the same harm repaired")
	ctx, w := theStage.On(t)
	node := peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	inn, _ := Web(shop, "inn", 1, AtHome)
	out, _ := Web(shop, "out", 1, Away)
	OK(t, w.Home.Create(ctx, inn, out))
	inns, err := w.Home.PodsReady(ctx, Scheduled, shop, inn.Labels, 1)
	OK(t, err)
	outs, err := w.Home.PodsReady(ctx, Scheduled, shop, out.Labels, 1)
	OK(t, err)
	url := "http://" + outs[0].Status.PodIP + ":8080/name"
	OK(t, w.Home.ReachesAll(ctx, Soon, shop, inns[0].Name, url, outs))
	stream, err := w.Home.StartStream(ctx, inns[0].Status.PodIP, outs[0].Status.PodIP)
	OK(t, err)
	for _, h := range harms() {
		t.Run(h.name, func(t *testing.T) {
			for _, s := range w.Sides() {
				harmed(ctx, t, s, stream, h)
			}
		})
	}
	result := stream.Stop()
	t.Log(result)
	if result.TCPError != nil {
		t.Errorf("the connection did not live through it: %s", result)
	}
	OK(t, w.Home.ReachesAll(ctx, Soon, shop, inns[0].Name, url, outs))
	if ready, err := w.Home.VirtualNodeReady(ctx, Restarted); err != nil || ready.Name != node {
		t.Errorf("node %v (%v)", ready, err)
	}
}

// harmed does harm to a cluster's node, measures for how long traffic stops, and waits until all is as before.
func harmed(ctx context.Context, t *testing.T, s *Side, stream *Stream, h harm) {
	t.Helper()
	before, err := s.snapshotNetwork(ctx)
	OK(t, err)
	stops := func(command string) time.Duration {
		stream.Pause()
		_, err := s.OnNode(ctx, "sh", "-c", command)
		OK(t, err)
		pause := mended(t, stream)
		if pause > repairLimit {
			t.Errorf("%s: nothing passed for %s, want %s at most", s.Name, pause, repairLimit)
		}
		return pause.Round(10 * time.Millisecond)
	}
	text := fmt.Sprintf("nothing passed for %s", stops(h.do(s)))
	if h.undo != nil {
		text += fmt.Sprintf(", and for %s when that was undone", stops(h.undo(s)))
	}
	begin := time.Now()
	OK(t, s.world.Until(ctx, Soon, "the fabric of "+s.Name+" to be as before", func(ctx context.Context) (string, error) {
		now, err := s.snapshotNetwork(ctx)
		if err != nil {
			return "", err
		}
		missing := slices.DeleteFunc(slices.Clone(before), func(line string) bool { return slices.Contains(now, line) })
		return strings.Join(missing, "; "), nil
	}))
	t.Logf("%s: %s; all was as before %s later", s.Name, text, time.Since(begin).Round(10*time.Millisecond))
	crossed, _ := stream.Exchanged()
	OK(t, s.world.Until(ctx, Soon, "the TCP connection to be answered", func(context.Context) (string, error) {
		now, err := stream.Exchanged()
		if now == crossed {
			return "it was not", err
		}
		return "", err
	}))
}

// mended waits until packets have passed for a second, and returns for how long none did.
func mended(t *testing.T, stream *Stream) (longest time.Duration) {
	t.Helper()
	for begin := time.Now(); ; {
		time.Sleep(time.Second)
		pause := stream.Pause()
		longest = max(longest, pause)
		if pause < time.Second/2 {
			return longest
		}
		if time.Since(begin) > Soon {
			t.Fatalf("nothing passes, for %s now", pause)
		}
	}
}

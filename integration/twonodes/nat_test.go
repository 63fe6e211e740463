package twonodes

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

// doors are where the borders of the clusters are seen from outside. Abroad lets TCP in at its own,
// which is among the endpoints of its peer API.
var doors = map[string]string{"home": "192.0.2.211", "abroad": "192.0.2.212"}

const (
	doorPort = 443
	// connectedWithin is how long it may take until packets pass, whatever is between the clusters.
	connectedWithin = 30 * time.Second
)

// border is what is between a cluster and others, on its first node, which is its gateway and runs
// its agent. The zero value is nothing.
type border struct {
	// translates says that all that leaves has another address, and nothing comes in but answers;
	// random that it also has another port, for each flow another. noUDP loses all UDP.
	translates, random, noUDP bool
}

// TestTunnelsPassObstaclesBetweenTheClusters connects both clusters through address translations
// and firewalls, and expects them to report which way packets take.
func TestTunnelsPassObstaclesBetweenTheClusters(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	for name, side := range map[string]*e2e.Side{"home": w.Home, "abroad": w.Abroad} {
		node := side.Plan.Control()
		ok(t, label(ctx, side, node.Name, "true"))
		_, err := w.OnInternet(ctx, "ip", "route", "add", doors[name]+"/32", "via", node.Address.String())
		ok(t, err)
		t.Cleanup(func() {
			after := context.WithoutCancel(ctx)
			ok(t, label(after, side, node.Name, ""))
			_, err := w.OnInternet(after, "ip", "route", "del", doors[name]+"/32")
			ok(t, err)
		})
		ok(t, areGateways(ctx, w, side, node.Name))
	}
	t.Cleanup(func() {
		after := context.WithoutCancel(ctx)
		ok(t, s.borders(after, border{}, border{}))
		_, err := w.Home.Entente(after, "network", "connect", w.Abroad.Name)
		ok(t, err)
		ok(t, s.outAnswers(after))
	})
	keeps, random := border{translates: true}, border{translates: true, random: true}
	for _, tt := range []struct {
		name         string
		home, abroad border
		// wayOut is how home reaches abroad, wayBack the reverse.
		wayOut, wayBack string
		always          bool
	}{
		{"the consumer behind a translation", random, border{}, "Direct", "Observed", true},
		{"the provider behind a translation", border{}, random, "Observed", "Direct", false},
		{"both behind translations that keep ports", keeps, keeps, "Observed", "Observed", false},
		{"both behind translations that choose ports", random, random, "Relayed", "Relayed", true},
		{"no UDP leaves the consumer", border{translates: true, noUDP: true}, border{}, "Relayed", "Relayed", false},
		{"the provider behind a load balancer for TCP", border{}, border{translates: true, noUDP: true}, "Relayed", "Relayed", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !tt.always {
				only.Matrix(t, "half a minute for each kind of network; package tunnel punches through translations that keep ports")
			}
			_, err := w.Home.Entente(ctx, "network", "disconnect", w.Abroad.Name, "--force")
			ok(t, err)
			for _, side := range w.Sides() {
				ok(t, hasWay(ctx, w, side, ""))
			}
			ok(t, s.borders(ctx, tt.home, tt.abroad))
			begin := time.Now()
			_, err = w.Home.Entente(ctx, "network", "connect", w.Abroad.Name)
			ok(t, err)
			passes := time.Since(begin)
			ok(t, hasWay(ctx, w, w.Home, tt.wayOut))
			ok(t, hasWay(ctx, w, w.Abroad, tt.wayBack))
			t.Logf("traffic passes after %s, %s and %s after %s", passes.Round(100*time.Millisecond), tt.wayOut, tt.wayBack, time.Since(begin).Round(100*time.Millisecond))
			if passes > connectedWithin {
				t.Errorf("connected after %s, want %s", passes, connectedWithin)
			}
			ok(t, s.outAnswers(ctx))
			ok(t, w.Abroad.ReachesAll(ctx, e2e.Soon, s.twin.Namespace, s.twin.Name, "http://"+s.innAbroad+":8080/name", []corev1.Pod{s.inn}))
			size := 10_000_000
			if tt.abroad == random && tt.home == random {
				size = 100_000_000
			}
			s.carries(ctx, t, size)
		})
	}
	t.Run("UDP is blocked on a way that works", func(t *testing.T) { s.blocksUDP(ctx, t) })
}

// blockedWithin is how long nothing may pass when UDP is blocked on a way that works.
const blockedWithin = 14 * time.Second

func (s *stage) blocksUDP(ctx context.Context, t *testing.T) {
	t.Helper()
	w := s.World
	_, err := w.Home.Entente(ctx, "network", "disconnect", w.Abroad.Name, "--force")
	ok(t, err)
	ok(t, s.borders(ctx, border{}, border{}))
	_, err = w.Home.Entente(ctx, "network", "connect", w.Abroad.Name)
	ok(t, err)
	ok(t, hasWay(ctx, w, w.Home, "Direct"))
	ok(t, s.outAnswers(ctx))
	_, err = w.Peered(ctx, e2e.Soon) // both sides had answers: the way works
	ok(t, err)
	_, err = w.On(ctx, w.Home.Plan.Nodes[0].Name, "nft", fmt.Sprintf(`table inet border {
	chain comes { type filter hook prerouting priority -150; ip saddr %[1]s meta l4proto udp drop; }
	chain goes { type filter hook postrouting priority 0; ip daddr %[1]s meta l4proto udp drop; }
}`, w.Abroad.Plan.LAN))
	ok(t, err)
	begin := time.Now()
	ok(t, s.outAnswers(ctx))
	took := time.Since(begin)
	t.Logf("traffic passes %s after UDP was blocked", took.Round(100*time.Millisecond))
	if took > blockedWithin {
		t.Errorf("traffic passes %s after UDP was blocked, want %s", took, blockedWithin)
	}
	ok(t, hasWay(ctx, w, w.Home, "Relayed"))
	ok(t, hasWay(ctx, w, w.Abroad, "Relayed"))
}

// borders puts the clusters behind borders.
func (s *stage) borders(ctx context.Context, home, abroad border) error {
	w := s.World
	agent, err := w.Abroad.AgentPod(ctx)
	if err != nil {
		return err
	}
	for _, b := range []struct {
		border
		side      *e2e.Side
		own, peer string
		door      string
	}{
		{home, w.Home, doors["home"], doors["abroad"], ""},
		{abroad, w.Abroad, doors["abroad"], doors["home"], agent.Status.PodIP},
	} {
		others := fmt.Sprintf("%s, %s", b.side.Other.Plan.LAN, b.peer)
		for i, node := range b.side.Plan.Nodes {
			rules := b.rules(b.own, others, b.door)
			if i > 0 {
				rules = b.closed(others)
			}
			if _, err := w.On(ctx, node.Name, "nft", "table inet border\ndelete table inet border\n"+rules); err != nil {
				return err
			}
			// Flows keep what they had. Those to the API server are to live on.
			for _, other := range append([]lab.NodePlan{{Address: netip.MustParseAddr(b.peer)}}, b.side.Other.Plan.Nodes...) {
				for _, end := range []string{"--orig-src", "--orig-dst"} {
					_, _ = w.On(ctx, node.Name, "conntrack", "--delete", end, other.Address.String()) // fails if there is none
				}
			}
		}
	}
	return nil
}

// rules are a border's for packets from and to others. own is its address outside, at which a door
// for TCP leads to an agent, if it is given.
func (b border) rules(own, others, agent string) string {
	if b == (border{}) {
		return ""
	}
	var open, udp, ports string
	if agent != "" {
		open = fmt.Sprintf("ip daddr %s tcp dport %d accept", own, doorPort)
		agent = fmt.Sprintf("chain door { type nat hook prerouting priority -110; ip daddr %s tcp dport %d dnat ip to %s:7443; }", own, doorPort, agent)
	}
	if b.noUDP {
		udp = "meta l4proto udp drop"
	}
	if b.random {
		ports = "fully-random"
	}
	return fmt.Sprintf(`table inet border {
	chain foreign {
		%[2]s
		ct state { established, related } accept
		%[3]s
		meta l4proto tcp reject with tcp reset
		drop
	}
	chain comes { type filter hook prerouting priority -150; iifname "eth0" ip saddr { %[1]s } jump foreign; }
	chain away {
		%[2]s
	}
	chain goes { type filter hook postrouting priority 0; oifname "eth0" ip daddr { %[1]s } jump away; }
	%[4]s
	chain outside { type nat hook postrouting priority 90; oifname "eth0" ip daddr { %[1]s } snat ip to %[5]s %[6]s; }
}`, others, udp, open, agent, own, ports)
}

// closed are the rules of nodes that are not the first: where there is a border nothing bypasses
// it.
func (b border) closed(others string) string {
	if b == (border{}) {
		return ""
	}
	return fmt.Sprintf(`table inet border {
	chain comes { type filter hook prerouting priority -150; iifname "eth0" ip saddr { %[1]s } drop; }
	chain goes { type filter hook postrouting priority 0; oifname "eth0" ip daddr { %[1]s } drop; }
}`, others)
}

// hasWay waits until the gateway of a cluster says that packets to the other cluster take a way, and
// pass, and until the command says so; without a way until there is no tunnel.
func hasWay(ctx context.Context, w *e2e.World, side *e2e.Side, way string) error {
	return w.Until(ctx, e2e.Restarted, fmt.Sprintf("the way from %s to be %q", side.Name, way), func(ctx context.Context) (string, error) {
		text, err := side.Entente(ctx, "network", "status")
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			// PEER NODE TO CONNECTION ENDPOINT STATE RTT MTU USE
			if len(f) < 9 || f[0] != side.Other.Name || f[1] != side.Node() || f[2] != side.Other.Node() {
				continue
			}
			if f[3] == way && f[5] == "Up" && f[8] == "carries" {
				return "", nil
			}
			return line, nil
		}
		if way == "" {
			return "", nil
		}
		return "no path:\n" + text, nil
	})
}

// carries has bytes come from abroad without a stall, and packets of all sizes.
func (s *stage) carries(ctx context.Context, t *testing.T, size int) {
	t.Helper()
	const stall = 2 * time.Second
	w := s.World
	conn, err := w.Home.DialFromPod(ctx, s.inn.Status.PodIP, "tcp", s.out.Status.PodIP+":8080")
	ok(t, err)
	defer func() { _ = conn.Close() }()
	ok(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	begin := time.Now()
	_, err = fmt.Fprintf(conn, "GET /bytes/%d HTTP/1.1\r\nHost: out\r\nConnection: close\r\n\r\n", size)
	ok(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	ok(t, err)
	defer func() { _ = resp.Body.Close() }()
	buffer, got, last, longest := make([]byte, 64<<10), 0, time.Now(), time.Duration(0)
	for {
		n, err := resp.Body.Read(buffer)
		longest, last = max(longest, time.Since(last)), time.Now()
		if got += n; err == io.EOF {
			break
		}
		ok(t, err)
	}
	took := time.Since(begin)
	t.Logf("%d MB in %s, %.0f Mbit/s; the longest pause was %s", got/1_000_000, took.Round(100*time.Millisecond), float64(got)*8/took.Seconds()/1e6, longest.Round(time.Millisecond))
	if got != size || longest > stall {
		t.Errorf("%d bytes came, want %d; the longest pause was %s", got, size, longest)
	}
	const least = 1400
	mtu := 0
	ok(t, w.Until(ctx, e2e.Soon, "the size of packets to be known", func(ctx context.Context) (string, error) {
		var n v1alpha1.FabricNode
		if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Name: w.Home.Node()}, &n); err != nil {
			return "", err
		}
		for _, p := range n.Status.Paths {
			if p.PeerID != n.Spec.ClusterID && !p.Standby {
				mtu = int(p.MTU)
			}
		}
		if mtu < least {
			return fmt.Sprintf("packets of %d bytes pass whole, want %d", mtu, least), nil
		}
		return "", nil
	}))
	// What is longer than the tunnel's packets comes in fragments.
	for _, whole := range []int{1400, 1472, 8000} {
		_, err := w.Home.InNetworkOf(ctx, s.inn.Status.PodIP, "ping", "-c", "3", "-i", "0.2", "-W", "2", "-M", "dont", "-s", fmt.Sprint(whole), s.out.Status.PodIP)
		ok(t, err)
	}
	_, err = w.Home.InNetworkOf(ctx, s.inn.Status.PodIP, "ping", "-c", "3", "-i", "0.2", "-W", "2", "-M", "do", "-s", fmt.Sprint(mtu-28), s.out.Status.PodIP)
	ok(t, err)
	t.Logf("packets of %d bytes pass whole", mtu)
}

package probe

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// world is a prober of a gateway that has another gateway, a worker, two gateways of a peer, a node
// of it that is reached directly, and a gateway of another peer. All answered just now.
func world(now time.Time) (*Prober, map[string]*trackedTarget) {
	p := New("none", 1, func() {}, func() {}, func(time.Time) {})
	targets := map[string]Target{
		"gateway":  {Overlay: netip.MustParseAddr("fd00::1"), Cluster: "home", Home: true},
		"worker":   {Overlay: netip.MustParseAddr("fd00::2"), Cluster: "home", Home: true},
		"peer1":    {Overlay: netip.MustParseAddr("fd01::1"), Cluster: "peer"},
		"peer2":    {Overlay: netip.MustParseAddr("fd01::2"), Cluster: "peer"},
		"direct":   {Overlay: netip.MustParseAddr("fd01::3"), Cluster: "peer", OnDemand: true},
		"entry":    {Overlay: netip.MustParseAddr("fd01::4"), Cluster: "peer", OnDemand: true, Enters: true},
		"stranger": {Overlay: netip.MustParseAddr("fd02::1"), Cluster: "another"},
	}
	var all []Target
	for _, t := range targets {
		all = append(all, t)
	}
	p.Set(netip.MustParseAddr("fd00::3"), 1, all, nil)
	tracked := map[string]*trackedTarget{}
	for name, t := range targets {
		s := p.tracked[t.Overlay]
		s.Path = Path{}.Sent(now).Answered(0, now)
		s.judge(now)
		s.due = now.Add(probeEvery)
		tracked[name] = s
	}
	tracked["gateway"].claims = map[PeerKey]Claim{PeerKeyOf("peer"): {Reach: ReachCarrier}}
	return p, tracked
}

// hurried is the names of those that are to be probed at once, and of those that are doubted.
func hurried(tracked map[string]*trackedTarget, now time.Time) (at, doubted []string) {
	for name, s := range tracked {
		if s.burst > 0 && !s.due.After(now) {
			at = append(at, name)
		}
		if s.Doubted.After(s.Path.LastResponse()) {
			doubted = append(doubted, name)
		}
	}
	slices.Sort(at)
	slices.Sort(doubted)
	return at, doubted
}

func TestReplacementsOfALostPathAreProbedAtOnce(t *testing.T) {
	for _, tt := range []struct {
		lost   string
		probed []string
		asked  []string // of this cluster
	}{
		{"peer1", []string{"peer1", "peer2"}, []string{"gateway"}},
		{"entry", []string{"entry", "peer1", "peer2"}, []string{"gateway"}},
		{"gateway", []string{"gateway"}, []string{"worker"}},
		{"worker", []string{"worker"}, nil},
		{"direct", []string{"direct"}, nil},
	} {
		t.Run(tt.lost, func(t *testing.T) {
			now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
			p, tracked := world(now)
			s := tracked[tt.lost]
			s.Path = s.Path.Sent(now)
			now = now.Add(firstPatience)
			if at := s.Path.Overdue(now.Add(-time.Millisecond)); at.After(now) {
				t.Fatalf("it is looked after at %v only", at)
			}
			p.judge(now)
			at, doubted := hurried(tracked, now)
			if !slices.Equal(at, tt.probed) || !slices.Equal(doubted, tt.probed) {
				t.Errorf("probed at once: %v, doubted: %v; want %v", at, doubted, tt.probed)
			}
			var asked []string
			for name, s := range tracked {
				if s.target.Home && name != tt.lost && s.Path.Next() > 1 {
					asked = append(asked, name)
				}
			}
			if !slices.Equal(asked, tt.asked) {
				t.Errorf("asked: %v, want %v", asked, tt.asked)
			}
		})
	}
}

// While a fabric is restarted the kernel of its node refuses its probes.
func TestAGatewayWhoseFabricIsRestartedIsNotDoubted(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	p, tracked := world(now)
	s := tracked["peer1"]
	s.Path = s.Path.Sent(now)
	p.refused(s.target.Overlay, now)
	p.judge(now.Add(firstPatience))
	if at, doubted := hurried(tracked, now.Add(firstPatience)); at != nil || doubted != nil || s.State != PathUp {
		t.Errorf("probed at once: %v, doubted: %v, it is %v", at, doubted, s.State)
	}
	now = now.Add(refusalValid)
	s.Path = s.Path.Sent(now)
	p.judge(now.Add(firstPatience))
	if _, doubted := hurried(tracked, now.Add(firstPatience)); !slices.Contains(doubted, "peer1") {
		t.Errorf("when it is not refused any more, %v are doubted", doubted)
	}
}

func TestANodeProbesWhatAnotherOfItsClusterSuspects(t *testing.T) {
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	gateway, stranger := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd02::1")
	p, tracked := world(start)
	hear := func(from netip.Addr, cluster string, now time.Time) (at, doubted []string) {
		t.Helper()
		m, ok := decodeProbe(probe{suspects: PeerKeyOf(cluster), seq: 7}.encode(probeLen))
		if !ok || m.suspects != PeerKeyOf(cluster) || m.agreement != 0 {
			t.Fatalf("%+v, %v", m, ok)
		}
		for _, s := range tracked {
			s.burst, s.due = 0, now.Add(probeEvery)
		}
		p.receive(from, m, probeLen, now)
		return hurried(tracked, now)
	}
	now := start.Add(time.Millisecond)
	if at, doubted := hear(stranger, "peer", now); at != nil || doubted != nil {
		t.Errorf("at the suspicion of another cluster: probed %v, doubted %v", at, doubted)
	}
	want := []string{"peer1", "peer2"}
	if at, doubted := hear(gateway, "peer", now); !slices.Equal(at, want) || !slices.Equal(doubted, want) {
		t.Errorf("probed at once: %v, doubted: %v; want %v", at, doubted, want)
	}
	if at, _ := hear(gateway, "peer", now.Add(probeEvery/2)); at != nil {
		t.Errorf("at a second suspicion in a second %v are probed at once", at)
	}
	if at, _ := hear(gateway, "unknown", now.Add(2*probeEvery)); at != nil {
		t.Errorf("at the suspicion of an unknown node %v are probed at once", at)
	}
	for _, name := range want {
		s := tracked[name]
		s.Path = s.Path.Sent(now).Answered(s.Path.Next(), now.Add(time.Millisecond))
	}
	if _, doubted := hurried(tracked, now); doubted != nil {
		t.Errorf("%v are doubted though they answered", doubted)
	}
}

// A thousand peers that all came in one moment are not all probed in one moment, then or later.
func TestProbesOfManyPeersAreSpread(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	p := New("none", 1, func() {}, func() {}, func(time.Time) {})
	var targets []Target
	for i := range 1000 {
		targets = append(targets, Target{Overlay: netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}), Cluster: "peer", Home: i < 100})
	}
	claims := map[PeerKey]Claim{}
	for i := range 500 {
		claims[PeerKey{byte(i), byte(i >> 8)}] = Claim{}
	}
	p.Set(netip.MustParseAddr("fd00::3"), 1, targets, claims)
	for second := range uint64(3) {
		end := now.Add(probeEvery)
		sent := func() (n int) {
			for _, s := range p.tracked {
				n += int(s.Path.Next())
				if s.claimsSent.Equal(now) {
					n += len(p.claims)
				}
			}
			return n
		}
		for now.Before(end) {
			before := sent()
			next := p.round(now)
			if n := sent() - before; n > roundMost+len(p.claims) {
				t.Fatalf("%d datagrams at a time, want %d at most", n, roundMost+len(p.claims))
			}
			for _, s := range p.tracked {
				if s.Path.Next() > 0 { // as if all answered
					s.Path = s.Path.Answered(s.Path.Next()-1, now)
				}
			}
			now = now.Add(max(next.Sub(now), probeTogether))
		}
		for a, s := range p.tracked {
			if s.Path.Next() < second || s.target.Home && now.Sub(s.claimsSent) > probeEvery+50*probeTogether {
				t.Fatalf("after %d seconds %v got %d probes, and claims %v ago", second+1, a, s.Path.Next(), now.Sub(s.claimsSent))
			}
		}
	}
}

package probe

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestEndStateFollowsTheLastProbes(t *testing.T) {
	for name, tt := range map[string]struct {
		probes string // one each second: a answered, x lost; A and X of full size; b says that pods are blocked
		want   EndState
	}{
		"nothing sent":                       {"", EndUnknown},
		"not answered yet":                   {"xxxxxxxxxxxxxxx", EndUnknown},
		"never answered":                     {strings.Repeat("x", 60), EndDown},
		"answered at last":                   {strings.Repeat("xX", 40) + "aa", EndUp},
		"answered once":                      {"xxxxxxxxa", EndUp},
		"a large one was answered":           {"A", EndUp},
		"lost, but not for long":             {"axxx", EndUp},
		"lost for long enough":               {"axxxxxx", EndDown},
		"now and then":                       {"axxaxxaxxaxxaxx", EndUp},
		"down, and one answered":             {"axxxxxxa", EndDown},
		"down, and back":                     {"axxxxxxaa", EndUp},
		"large ones are lost":                {"aXaXaXaXaXaXaX", EndLargeLost},
		"all are lost":                       {"aXxXxXxXxXx", EndDown},
		"large ones come back":               {"aXaXaXaXaXaXaXAA", EndUp},
		"down, and back, large ones too":     {"aXxXxXxXxXxxxxaa", EndUp},
		"the other end does not forward":     {"abb", EndBlocked},
		"it answered so once":                {"aba", EndUp},
		"it forwards again":                  {"abbaa", EndUp},
		"it is lost while it does not":       {"abbxxxxxx", EndDown},
		"down, and then it does not forward": {"axxxxxxbb", EndBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			var e EndPath
			now := time.Unix(1000, 0)
			for _, c := range tt.probes {
				sent := now
				now = now.Add(time.Second)
				switch c {
				case 'x', 'X':
					e = e.Lost(c == 'X', sent, now)
				default:
					e = e.Answered(c == 'A', c == 'b', now)
				}
			}
			if got, _ := e.State(); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// Of IPv6 the least size that has to pass is tried as well.
func TestLargePacketsOfIPv6AreThoseThatHaveToPass(t *testing.T) {
	for limit, want := range map[int]EndState{1420: EndUp, 1300: EndUp, 1200: EndLargeLost} {
		p := &endPath{target: EndTarget{Size: 1420}, EndPath: EndPath{six: true}}
		now := time.Unix(1000, 0)
		for i := range 120 {
			now = now.Add(time.Second)
			large := p.next()
			if passes := p.size(large)+endHeaders6 <= limit; passes {
				p.EndPath = p.Answered(large, false, now)
			} else {
				p.EndPath = p.Lost(large, now, now)
			}
			if got, _ := p.State(); got != want && i > map[EndState]int{EndUp: 3, EndLargeLost: 30}[want] {
				t.Fatalf("%d bytes pass, after %d probes: %v, want %v", limit, i, got, want)
			}
		}
		for range 6 { // and when more passes
			now = now.Add(time.Second)
			p.EndPath = p.Answered(p.next(), false, now)
		}
		if got, _ := p.State(); got != EndUp {
			t.Errorf("when all pass: %v", got)
		}
	}
}

// Whatever is lost, a node sends three probes a second to a peer at most, and each target has its turn.
func TestEndToEndProbesAreBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var to EndPeer
		for i := range rapid.IntRange(1, 8).Draw(t, "targets") {
			to.Targets = append(to.Targets, EndTarget{Node: fmt.Sprint(i), Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Size: 1420})
		}
		q := &endPeer{}
		q.set(to)
		now := time.Unix(1000, 0)
		turns := map[string]int{}
		for range 4 * len(to.Targets) {
			now = now.Add(time.Second)
			chosen := q.choose()
			if len(chosen) > 3 {
				t.Fatalf("%d probes at a time", len(chosen))
			}
			for _, p := range chosen {
				turns[p.target.Node]++
				p.waiting = append(p.waiting, endSent{at: now, large: p.next()})
				if rapid.Bool().Draw(t, "answered") {
					sent, _ := p.take(func(s endSent) bool { return s.at.Equal(now) })
					p.EndPath = p.Answered(sent.large, false, now)
				}
				p.overdue(now)
			}
		}
		if len(turns) != len(to.Targets) {
			t.Fatalf("%d of %d targets were probed: %v", len(turns), len(to.Targets), turns)
		}
	})
	for _, tt := range []struct {
		peers, nodes int
		want         time.Duration
	}{{1, 1, time.Second}, {8, 32, time.Second}, {250, 10, 31250 * time.Millisecond}, {1, 5000, 156250 * time.Millisecond}} {
		if got := endPace(tt.peers, tt.nodes); got != tt.want {
			t.Errorf("%d peers, %d nodes: %v, want %v", tt.peers, tt.nodes, got, tt.want)
		}
	}
}

func TestOnlyTheAnswerToAProbeCounts(t *testing.T) {
	addr, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	now := time.Unix(1000, 0)
	e := newEnds(7445, func() {})
	e.Set(EndSetup{Peers: []EndPeer{{Cluster: "peer", Targets: []EndTarget{{Node: "n", Addr: addr, Size: 1420}}}}})
	p := e.of[addr].paths[addr]
	send := func(large bool) endNonce {
		nonce := endNonce(random(16))
		p.waiting = append(p.waiting, endSent{nonce: nonce, at: now, large: large, size: p.size(large)})
		return nonce
	}
	nonce := send(false)
	e.answered(addr, endProbe{answer: true, nonce: endNonce{1}}, endLen, now)
	e.answered(other, endProbe{answer: true, nonce: nonce}, endLen, now)
	if s := e.Status("peer"); s.State != EndUnknown {
		t.Errorf("an answer to no probe counts: %+v", s)
	}
	e.answered(addr, endProbe{answer: true, nonce: send(true)}, endLen, now)
	if s := e.Status("peer"); s.State != EndUnknown {
		t.Errorf("a small answer to a large probe counts: %+v", s)
	}
	e.answered(addr, endProbe{answer: true, nonce: nonce}, endLen, now)
	if s := e.Status("peer"); s.State != EndUp || s.Known != 1 {
		t.Errorf("the answer does not count: %+v", s)
	}
	e.refused(other, now)
	e.Set(EndSetup{})
	if s := e.Status("peer"); s != (EndStatus{}) {
		t.Errorf("a peer that is gone: %+v", s)
	}
}

// A kernel which answers that the port is closed has received the packet, and shows nothing else.
func TestARefusalShowsOnlyThatThePacketPassed(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	now := time.Unix(1000, 0)
	e := newEnds(7445, func() {})
	e.Set(EndSetup{Peers: []EndPeer{{Cluster: "peer", Targets: []EndTarget{{Node: "n", Addr: addr, Size: 1420}}}}})
	p := e.of[addr].paths[addr]
	answer := func(refused, blocked bool) {
		now = now.Add(time.Second)
		sent := endSent{nonce: endNonce(random(16)), at: now, size: endLen}
		p.waiting = append(p.waiting, sent)
		if refused {
			e.refused(addr, now)
		} else {
			e.answered(addr, endProbe{answer: true, blocked: blocked, nonce: sent.nonce}, endLen, now)
		}
	}
	for range 3 {
		answer(false, true)
	}
	for range 5 {
		answer(true, false)
	}
	if s := e.Status("peer"); s.State != EndBlocked {
		t.Errorf("its fabric is restarted, and the node that does not forward is %v", s.State)
	}
	answer(false, false)
	answer(false, false)
	if s := e.Status("peer"); s.State != EndUp {
		t.Errorf("it forwards again: %v", s.State)
	}
}

// Probes that were lost while the tunnel went down do not count against the way behind it.
func TestLossInTheTunnelDoesNotCountAgainstTheNode(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.1")
	now := time.Unix(1000, 0)
	to := EndSetup{Peers: []EndPeer{{Cluster: "peer", Targets: []EndTarget{{Node: "n", Addr: addr}}}}}
	e := newEnds(7445, func() {})
	e.Set(to)
	p := e.of[addr].paths[addr]
	lose := func() {
		now = now.Add(time.Second)
		p.EndPath = p.Lost(false, now, now)
	}
	p.EndPath = p.Answered(false, false, now)
	lose()
	lose()
	p.waiting = append(p.waiting, endSent{at: now})
	to.Peers[0].Down = true
	e.Set(to)
	now = now.Add(time.Hour)
	e.round(now)
	to.Peers[0].Down = false
	e.Set(to)
	lose()
	if got, _ := p.State(); got != EndUp {
		t.Errorf("one probe was lost since the tunnel is up again: %v", got)
	}
	for range 8 {
		lose()
	}
	if got, _ := p.State(); got != EndDown {
		t.Errorf("all are lost: %v", got)
	}
	to.Peers[0].Down = true
	e.Set(to)
	if got, _ := p.State(); got != EndDown {
		t.Errorf("nothing is known to pass: %v", got)
	}
}

// A peer decides what it answers. Whatever it answers, a node reports changes of it only some times a
// minute, and in the end its current state.
func TestAPeerThatAnswersNowAndThenIsReportedAtAPace(t *testing.T) {
	pokes := 0
	e := newEnds(7445, func() { pokes++ })
	var targets []EndTarget
	for i := range 16 {
		targets = append(targets, EndTarget{Node: fmt.Sprint("n", i), Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})})
	}
	e.Set(EndSetup{Peers: []EndPeer{{Cluster: "peer", Targets: targets}}})
	q := e.peers["peer"]
	now := time.Unix(1000, 0)
	answer := func(p *endPath, blocked bool) {
		nonce := endNonce(random(16))
		p.waiting = append(p.waiting, endSent{nonce: nonce, at: now, size: endLen})
		e.answered(p.target.Addr, endProbe{answer: true, blocked: blocked, nonce: nonce}, endLen, now)
	}
	states, last := 0, q.status()
	for i := range 600 {
		now = now.Add(time.Second)
		answer(q.paths[targets[i/2%16].Addr], i/4%3 == 0)
		if s := q.status(); s.Differs(last) {
			states, last = states+1, s
		}
		e.round(now)
	}
	if most := endReports + int(600*time.Second/endReportEvery); states < 100 || pokes > most || pokes < most/2 {
		t.Errorf("of %d changes %d are reported, want at most %d", states, pokes, most)
	}
	for _, p := range q.paths {
		answer(p, false)
		answer(p, false)
	}
	now = now.Add(endReportEvery)
	e.round(now)
	if s := e.Status("peer"); s.Differs(q.status()) || s.State != EndUp {
		t.Errorf("in the end %+v is reported instead of %+v", s, q.status())
	}
}

// Of two peers one that sends all the time does not keep the other from being answered.
func TestProbesAreAnsweredOnlyToKnownPeers(t *testing.T) {
	good, evil, stranger := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.2.0.1")
	now := time.Unix(1000, 0)
	e := newEnds(7445, func() {})
	e.Set(EndSetup{Index: 7, Blocked6: true, Peers: []EndPeer{
		{Cluster: "good", From: []netip.Addr{good, netip.MustParseAddr("fd00::1")}}, {Cluster: "evil", From: []netip.Addr{evil}},
	}})
	answered := 0
	for range 10000 {
		if _, ok := e.mayAnswer(evil, 7, now); ok {
			answered++
		}
	}
	if answered > 200 {
		t.Errorf("%d answers in a second", answered)
	}
	if blocked, ok := e.mayAnswer(good, 7, now); !ok || blocked {
		t.Errorf("the other peer: answered %v, blocked %v", ok, blocked)
	}
	if blocked, ok := e.mayAnswer(netip.MustParseAddr("fd00::1"), 7, now); !ok || !blocked {
		t.Errorf("IPv6, which is not forwarded: answered %v, blocked %v", ok, blocked)
	}
	if _, ok := e.mayAnswer(good, 3, now); ok {
		t.Error("what came by another device is answered")
	}
	if _, ok := e.mayAnswer(stranger, 7, now); ok {
		t.Error("a stranger is answered")
	}
}

// A port that another program uses is reported, with what to do.
func TestAPortThatIsTakenIsReported(t *testing.T) {
	taken, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	e := newEnds(taken.LocalAddr().(*net.UDPAddr).Port, func() {})
	defer e.close()
	e.Set(EndSetup{Index: 1, Sources: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Peers: []EndPeer{{Cluster: "peer"}}})
	if readers := e.open(t.Context()); len(readers) > 0 || !strings.Contains(e.Trouble(), "no other program uses UDP port") {
		t.Errorf("%d sockets; it says %q", len(readers), e.Trouble())
	}
}

func FuzzEndProbe(f *testing.F) {
	f.Add(endProbe{nonce: endNonce{1, 2}}.encode(0))
	f.Add(endProbe{answer: true, blocked: true, nonce: endNonce{9}}.encode(1392))
	f.Add(probe{carries: true, seq: 7}.encode(0))
	f.Add([]byte("entp"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := decodeEndProbe(b)
		if !ok {
			return
		}
		back, ok := decodeEndProbe(m.encode(len(b)))
		if !ok || !reflect.DeepEqual(back, m) {
			t.Errorf("%+v came back as %+v", m, back)
		}
		if _, ok := decodeProbe(b); ok {
			t.Error("it is a probe inside the tunnel as well")
		}
		if n := len(m.encode(len(b))); n != len(b) {
			t.Errorf("an answer of %d bytes to %d", n, len(b))
		}
	})
}

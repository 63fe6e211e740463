package probe

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPathStateFollowsTheLastThreeProbes(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, tt := range map[string]struct {
		probes string // one per second: a answered at once, x lost
		after  time.Duration
		want   PathState
	}{
		"nothing sent":                           {"", time.Hour, PathUnknown},
		"one answered":                           {"a", 0, PathUp},
		"two lost at the start":                  {"xx", time.Second, PathUnknown},
		"three lost at the start":                {"xxx", time.Second, PathDown},
		"three lost, the last may still come":    {"axxx", 100 * time.Millisecond, PathUp},
		"three lost in a row":                    {"axxx", 600 * time.Millisecond, PathDown},
		"two lost between answers":               {"axxaxx", time.Second, PathUp},
		"down, then one answered":                {"xxxxxxa", 0, PathUp},
		"down for longer than is remembered":     {"axxxxxxxxxxxxxxxxxxxxxxxxxxxxx", time.Second, PathDown},
		"back after longer than is remembered":   {"axxxxxxxxxxxxxxxxxxxxxxxxxxxxxa", time.Second, PathUp},
		"up for longer than is remembered":       {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", time.Second, PathUp},
		"answered once and nothing sent for 1 h": {"a", time.Hour, PathUp},
	} {
		t.Run(name, func(t *testing.T) {
			var p Path
			now := start
			for _, c := range tt.probes {
				now = now.Add(time.Second)
				seq := p.Next()
				p = p.Sent(now)
				if c == 'a' {
					p = p.Answered(seq, now.Add(10*time.Millisecond))
				}
			}
			if got := p.State(now.Add(tt.after)); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAVerySlowPathIsNotDown(t *testing.T) {
	var p Path
	now := time.Unix(1000, 0)
	for i := range 60 {
		now = now.Add(time.Second)
		p = p.Sent(now)
		if i >= 4 { // answers take four seconds
			p = p.Answered(uint64(i-4), now)
		}
		if i > 10 && p.State(now) != PathUp {
			t.Fatalf("second %d: %v, round trip %v", i, p.State(now), p.RTT())
		}
	}
	if p.RTT() != 4*time.Second {
		t.Errorf("round trip %v, want 4s", p.RTT())
	}
}

func TestRoundTripIsThatOfThePathAndNotOfTheHandshake(t *testing.T) {
	var p Path
	now := time.Unix(1000, 0)
	answer := func(took time.Duration) {
		now = now.Add(time.Second)
		seq := p.Next()
		p = p.Sent(now).Answered(seq, now.Add(took))
	}
	answer(900 * time.Millisecond) // it waited for the handshake
	if p.RTT() != 0 || p.State(now) != PathUp {
		t.Errorf("after one answer the round trip is %v, want it unknown", p.RTT())
	}
	for range 5 {
		answer(400 * time.Microsecond)
		if p.RTT() != 400*time.Microsecond {
			t.Fatalf("the round trip is %v, want 400µs", p.RTT())
		}
	}
	for name, tt := range map[string]struct {
		a, b time.Duration
		want bool
	}{
		"equal":            {400 * time.Microsecond, 400 * time.Microsecond, true},
		"now known":        {0, 400 * time.Microsecond, false},
		"small on a LAN":   {300 * time.Microsecond, 900 * time.Microsecond, true},
		"no handshake now": {900 * time.Millisecond, 20 * time.Millisecond, false},
		"some jitter":      {20 * time.Millisecond, 31 * time.Millisecond, true},
	} {
		if Similar(tt.a, tt.b) != tt.want || Similar(tt.b, tt.a) != tt.want {
			t.Errorf("%s: similar is not %t", name, tt.want)
		}
	}
}

func TestTheRoundTripForgetsTheWaitForAHandshake(t *testing.T) {
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	var p Path
	for i := range 3 {
		p = p.Sent(start.Add(time.Duration(i) * time.Second))
	}
	for seq := range uint64(3) {
		p = p.Answered(seq, start.Add(2010*time.Millisecond))
	}
	if got := p.RTT(); got > 20*time.Millisecond {
		t.Errorf("the round trip is %s, want about 10ms", got)
	}
}

func TestAnswersToProbesThatWereNotSentChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Path
		now := time.Unix(1000, 0)
		for range rapid.IntRange(0, 40).Draw(t, "sent") {
			p = p.Sent(now)
		}
		seq := rapid.Uint64().Draw(t, "seq")
		q := p.Answered(seq, now)
		if seq >= p.Next() && q != p {
			t.Fatalf("answer %d of %d counted", seq, p.Next())
		}
		if again := q.Answered(seq, now.Add(time.Second)); again != q {
			t.Fatal("the same answer counted twice")
		}
	})
}

func FuzzProbe(f *testing.F) {
	f.Add(probe{carries: true, seq: 7}.encode(0))
	f.Add(probe{answer: true, large: true, seq: 1 << 63}.encode(1372))
	f.Add([]byte("entp"))
	f.Add(probe{agreement: 5, entry: 9, seq: 8}.encode(0))
	f.Add(probe{suspects: PeerKey{3}, entry: 9, seq: 8}.encode(0)[:probeLen]) // cut short
	f.Add(encodeClaims(map[PeerKey]Claim{{1}: {ReachCarrier, true}, {2}: {}})[0])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := decodeProbe(b)
		if !ok {
			return
		}
		if back, ok := decodeProbe(m.encode(len(b))); !ok || !reflect.DeepEqual(back, m) {
			t.Errorf("%+v came back as %+v", m, back)
		}
	})
}

// Versions that do not know what a node accepts for all of its cluster read the rest of a probe, and announce nothing.
func TestProbesWithAndWithoutAnEntryAreRead(t *testing.T) {
	for name, tt := range map[string]struct {
		datagram []byte
		want     uint64
		size     int
	}{
		"with one":             {probe{agreement: 5, entry: 9}.encode(probeLen), 9, entryLen},
		"with one, full size":  {probe{agreement: 5, entry: 9, large: true}.encode(1372), 9, 1372},
		"without":              {probe{agreement: 5}.encode(probeLen), 0, probeLen},
		"full size, without":   {probe{agreement: 5, large: true}.encode(1372), 0, 1372},
		"too short to have it": {probe{agreement: 5, entry: 9}.encode(probeLen)[:probeLen], 0, probeLen},
		"to a home node":       {probe{agreement: 5, claims: map[PeerKey]Claim{}, entry: 9}.encode(probeLen), 0, probeLen},
	} {
		m, ok := decodeProbe(tt.datagram)
		if !ok || m.agreement != 5 || m.entry != tt.want || len(tt.datagram) != tt.size {
			t.Errorf("%s: read as %+v (%v), want entry %d; %d bytes, want %d", name, m, ok, tt.want, len(tt.datagram), tt.size)
		}
	}
}

func TestALostProbeIsNoticedWhenItsTimeIsUp(t *testing.T) {
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	up := Path{}.Sent(at(0)).Answered(0, at(1)).Sent(at(10)).Answered(1, at(11))
	for name, tt := range map[string]struct {
		path Path
		now  int
		want time.Time
	}{
		"nothing was sent":                  {path: Path{}, now: 0},
		"all were answered":                 {path: up, now: 20},
		"a path of which nothing is known":  {path: Path{}.Sent(at(0)), now: 10},
		"the first of two":                  {path: up.Sent(at(100)).Sent(at(150)), now: 150, want: at(300)},
		"the second when the first is lost": {path: up.Sent(at(100)).Sent(at(150)), now: 300, want: at(350)},
		"none of those that are lost":       {path: up.Sent(at(100)).Sent(at(150)), now: 350},
		"a path that is down":               {path: up.Sent(at(100)).Sent(at(150)).Sent(at(200)).Sent(at(450)), now: 450},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.path.Overdue(at(tt.now)); !got.Equal(tt.want) {
				t.Errorf("the next counts as lost at %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAProbeWaitsLongerWhereItsProcessStalled(t *testing.T) {
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	path := Path{}.Sent(at(0)).Answered(0, at(1)).Sent(at(10)).Answered(1, at(11))
	for _, ms := range []int{100, 200, 300} {
		path = path.Sent(at(ms))
	}
	if now := at(1000); path.State(now) != PathDown || path.Stalled(at(250), at(1000)).State(now) != PathUp {
		t.Errorf("it is %v, and %v after a stall", path.State(now), path.Stalled(at(250), at(1000)).State(now))
	}
	if later := path.Stalled(at(700), at(1000)); later.State(at(1000)) != PathDown {
		t.Errorf("it is %v again after a stall that began when its probes were lost", later.State(at(1000)))
	}
	stalled := path.Stalled(at(250), at(650))
	if now := at(900); stalled.State(now) != PathDown {
		t.Errorf("it is %v when the longer time is up", stalled.State(now))
	}
	if answered := stalled.Answered(4, at(550)); answered.State(at(600)) != PathUp || answered.RTT() > time.Second {
		t.Errorf("it is %v after an answer, RTT %v", answered.State(at(600)), answered.RTT())
	}
}

package session

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

func TestKeepaliveActions(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1_700_000_000, 0)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	limits := intervals{open: 10 * time.Second, quiet: 4500 * time.Millisecond, measure: 30 * time.Second, answer: 8 * time.Second, behind: 20 * time.Second}
	for _, tt := range []struct {
		name  string
		state liveness
		now   float64
		want  actions
	}{
		{"no control stream yet", liveness{}, 1, actions{next: at(10)}},
		{"no control stream in time", liveness{}, 10, actions{ending: controlNotOpened, next: at(10)}},
		{"the stream came", liveness{open: true}, 1, actions{probe: true, show: true, next: at(1)}},
		{"both are on their way", liveness{open: true, shown: true, busy: true, probedAt: at(1)}, 1, actions{next: at(9)}},
		{"the probe is open", liveness{open: true, shown: true, probedAt: at(1)}, 8.9, actions{next: at(9)}},
		{"no answer in time", liveness{open: true, shown: true, probedAt: at(1)}, 9, actions{ending: probeUnanswered, next: at(9)}},
		{"no answer, but another message", liveness{open: true, shown: true, probedAt: at(1), messageAt: at(8.9)}, 9, actions{ending: probeUnanswered, next: at(9)}},
		{"no answer, but much else that it may be behind", liveness{open: true, shown: true, probedAt: at(1), read: at(8)}, 9, actions{next: at(16)}},
		{"much else stopped", liveness{open: true, shown: true, probedAt: at(1), read: at(8)}, 16, actions{ending: probeUnanswered, next: at(16)}},
		{"much else does not stop", liveness{open: true, shown: true, probedAt: at(1), read: at(20.9)}, 20.9, actions{next: at(21)}},
		{"much else for too long", liveness{open: true, shown: true, probedAt: at(1), read: at(20.9)}, 21, actions{ending: probeUnanswered, next: at(21)}},
		{"what came before the probe", liveness{open: true, shown: true, probedAt: at(1), read: at(0.5)}, 9, actions{ending: probeUnanswered, next: at(9)}},
		{"no answer while a proof waits for a peer that does not read", liveness{open: true, busy: true, probedAt: at(1)}, 9, actions{ending: probeUnanswered, next: at(9)}},
		{"answered", liveness{open: true, shown: true, messageAt: at(2), answered: at(2)}, 2, actions{next: at(6.5)}},
		{"quiet", liveness{open: true, shown: true, messageAt: at(2), answered: at(2)}, 6.5, actions{probe: true, next: at(6.5)}},
		{"quiet, and a message is being sent", liveness{open: true, shown: true, messageAt: at(2), answered: at(2), busy: true}, 6.5, actions{next: at(100)}},
		{"a message came", liveness{open: true, shown: true, messageAt: at(6), answered: at(2)}, 6.5, actions{next: at(10.5)}},
		{"messages come all the time", liveness{open: true, shown: true, messageAt: at(31), answered: at(2)}, 31, actions{next: at(32)}},
		{"messages come all the time, but long since it was measured", liveness{open: true, shown: true, messageAt: at(32), answered: at(2)}, 32, actions{probe: true, next: at(32)}},
		{"a new leaf", liveness{open: true, messageAt: at(2), answered: at(2)}, 3, actions{show: true, next: at(3)}},
		{"a new leaf and quiet", liveness{open: true, messageAt: at(2), answered: at(2)}, 7, actions{probe: true, show: true, next: at(6.5)}},
		{"a new leaf, and a message is being sent", liveness{open: true, messageAt: at(2), answered: at(2), busy: true}, 3, actions{next: at(100)}},
		{"a new leaf, and no stream", liveness{}, 3, actions{next: at(10)}},
		{"the peer's certificate ends before anything else", liveness{open: true, shown: true, messageAt: at(98), answered: at(98)}, 99, actions{next: at(100)}},
		{"it ended", liveness{open: true, shown: true, messageAt: at(98), answered: at(98)}, 100, actions{ending: certificateExpired, next: at(100)}},
		{"it ended, and the peer is silent", liveness{open: true, shown: true, probedAt: at(99)}, 107, actions{ending: certificateExpired, next: at(100)}},
	} {
		tt.state.since, tt.state.end = at(0), at(100)
		got := tt.state.due(at(tt.now), limits)
		// What ends needs nothing else.
		if got.ending != keepsOpen && got.ending == tt.want.ending {
			got.probe, got.show = false, false
		}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if mine, other := intervalsOf(true), intervalsOf(false); mine.quiet >= other.quiet || other.quiet+other.answer > 15*time.Second {
		t.Errorf("the dialling side asks after %s, the other after %s, and each waits %s", mine.quiet, other.quiet, other.answer)
	}
}

// paced has a node ask after quiet, and wait for an answer for so long. It is called
// before there are sessions.
func paced(n *node, quiet, answer time.Duration) {
	n.intervalsOf = func(dialled bool) intervals {
		i := intervalsOf(dialled)
		i.quiet, i.answer, i.behind = quiet, answer, answer
		return i
	}
}

func TestBothSidesEndASessionThatFallsSilent(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	for _, n := range []*node{a, b} {
		paced(n, 100*time.Millisecond, 2*time.Second)
	}
	proxy := newProxy(t, b.addr)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{proxy.addr}}})
	mustWho(t, a, b)
	time.Sleep(500 * time.Millisecond)
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		if s := pair[0].Status(pair[1].id).Session; s == nil || s.Number != 1 {
			t.Fatalf("the session became %+v", s)
		}
	}
	proxy.freeze() // both connections stay open, and are not read
	a.SetPeers(nil)
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		if err := closed(t, pair[0], pair[1]); !errors.Is(err, errSilent) || !strings.Contains(err.Error(), "no answer for 2s") {
			t.Errorf("status says %v", err)
		}
	}
}

// A peer that reads, and whose TCP and yamux live, but that answers nothing.
func TestTheSessionOfAPeerThatDoesNotAnswerEnds(t *testing.T) {
	t.Parallel()
	a, b, peer := start(t, dialOnly), start(t), start(t, dialOnly)
	for _, n := range []*node{a, b} {
		paced(n, 10*time.Millisecond, 500*time.Millisecond)
	}
	t.Run("dialled", func(t *testing.T) {
		t.Parallel()
		trustEachOther(t, a, b)
		cert, err := b.source.ClientTLS(a.id, nil, "").GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{impostor(t, b, cert, welcome, 0)}}})
		if err := closed(t, a, b); !errors.Is(err, errSilent) {
			t.Errorf("status says %v", err)
		}
	})
	t.Run("was dialled, and the peer talks", func(t *testing.T) {
		t.Parallel()
		trust(t, b, peer)
		h := openControl(t, peer, b)
		eventually(t, "the session is up", up(b, peer))
		began := time.Now()
		for up(b, peer)() && time.Since(began) < patience {
			h.send(kindProbe, make([]byte, 8))
			time.Sleep(300 * time.Millisecond) // within the rate
		}
		if err := closed(t, b, peer); !errors.Is(err, errSilent) {
			t.Errorf("status says %v", err)
		}
	})
}

// Calls for one link at the same time send nothing twice, and one that waits for the
// peer does not keep another from ending the session in time.
func TestOneCallSendsAndOthersWatch(t *testing.T) {
	t.Parallel()
	m, leaf := &Manager{}, &x509svid.SVID{}
	m.leaf.Store(leaf)
	l := &link{info: Info{Since: time.Now()}, notAfter: time.Now().Add(time.Hour), control: &control{}, timer: time.NewTimer(time.Hour), intervals: intervalsOf(true)}
	next := func() outgoing {
		t.Helper()
		out, err := m.next(l)
		if err != nil {
			t.Fatalf("%+v, %v", out, err)
		}
		return out
	}
	if out := next(); len(out.probe) != 8 || out.leaf != leaf || out.number != 1 {
		t.Errorf("first %+v", out)
	}
	renewed := &x509svid.SVID{}
	m.leaf.Store(renewed)
	if out := next(); out.probe != nil || out.leaf != nil {
		t.Errorf("while another sends: %+v", out)
	}
	l.busy = false
	if out := next(); out.probe != nil || out.leaf != renewed || out.number != 2 {
		t.Errorf("after that: %+v", out)
	}
	l.probedAt = l.probedAt.Add(-answerTimeout)
	if _, err := m.next(l); !errors.Is(err, errSilent) {
		t.Errorf("the time is over: %v", err)
	}
	l.ended = true
	m.keepAlive(t.Context(), l) // does nothing: it would find no connection to close
}

func TestASessionWithoutAControlStreamEnds(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly)
	victim.intervalsOf = func(dialled bool) intervals {
		i := intervalsOf(dialled)
		i.open = 300 * time.Millisecond
		return i
	}
	trust(t, victim, peer)
	overYamux(t, rawSession(t, peer, victim))
	if err := closed(t, victim, peer); !errors.Is(err, errSilent) || !strings.Contains(err.Error(), "no control stream") {
		t.Errorf("status says %v", err)
	}
}

func TestAPeerThatOnlyAnswersStays(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly)
	paced(victim, 20*time.Millisecond, patience/4)
	trust(t, victim, peer)
	h := openControl(t, peer, victim)
	eventually(t, "the session is up", up(victim, peer))
	_ = h.stream.SetReadDeadline(time.Now().Add(patience))
	for answered := 0; answered < 20; {
		kind, body, err := readMessage(h.stream)
		if err != nil {
			t.Fatal(err)
		}
		if kind == kindProbe {
			answered++
			// Slowly enough for the rate.
			time.Sleep(250 * time.Millisecond)
			h.send(kindAnswer, binary.BigEndian.AppendUint64(body, uint64(time.Now().UnixMilli())))
		}
	}
	if !up(victim, peer)() {
		t.Errorf("the session ended: %v", victim.Status(peer.id).Err)
	}
}

func TestTheDiallerProbesAndTheOtherAnswers(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	const quiet = 250 * time.Millisecond // as often as the rate of messages allows
	paced(a, quiet, patience/4)
	paced(b, 8*quiet, patience/4)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	probes := func(n, peer *node) uint64 {
		l := n.link(peer.id)
		if l == nil {
			return 0
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.probes
	}
	eventually(t, "both probed once", func() bool { return probes(a, b) > 0 && probes(b, a) > 0 })
	began, first, other := time.Now(), probes(a, b), probes(b, a)
	time.Sleep(12 * quiet)
	most := uint64(time.Since(began)/quiet) + 1
	if n := probes(a, b) - first; n < 3 || n > most {
		t.Errorf("the dialling side probed %d times, want %d", n, most)
	}
	if n := probes(b, a) - other; n > 1 {
		t.Errorf("the other side probed %d times", n)
	}
}

// A process that had no processor for long waits again for the answer that it could not
// read: once for each probe.
func TestADelayedProcessWaitsAgain(t *testing.T) {
	t.Parallel()
	for name, schedule := range map[string]bool{"a late timer": false, "another message before the timer": true} {
		synctest.Test(t, func(t *testing.T) {
			m := &Manager{}
			l := &link{
				info: Info{Since: time.Now()}, notAfter: time.Now().Add(time.Hour), control: &control{}, intervals: intervalsOf(true),
				timer: time.NewTimer(time.Hour), dueAt: time.Now(),
			}
			defer l.timer.Stop()
			next := func(want error) {
				t.Helper()
				if _, err := m.next(l); !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", name, err, want)
				}
				l.busy = false
			}
			next(nil) // which probes
			time.Sleep(answerTimeout + 20*time.Second)
			if schedule {
				m.schedule(l)
			}
			next(nil)
			time.Sleep(answerTimeout - time.Millisecond)
			next(nil)
			time.Sleep(time.Minute)
			next(errSilent)
		})
	}
}

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

func TestWhatIsDueForASession(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1_700_000_000, 0)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	limits := pace{open: 10 * time.Second, quiet: 4500 * time.Millisecond, measure: 30 * time.Second, answer: 8 * time.Second, behind: 20 * time.Second}
	for _, tt := range []struct {
		name  string
		pulse pulse
		now   float64
		want  care
	}{
		{"no control stream yet", pulse{}, 1, care{next: at(10)}},
		{"no control stream in time", pulse{}, 10, care{ending: isUnopened, next: at(10)}},
		{"the stream came", pulse{open: true}, 1, care{ask: true, show: true, next: at(1)}},
		{"both are on their way", pulse{open: true, shown: true, busy: true, asked: at(1)}, 1, care{next: at(9)}},
		{"the question is open", pulse{open: true, shown: true, asked: at(1)}, 8.9, care{next: at(9)}},
		{"no answer in time", pulse{open: true, shown: true, asked: at(1)}, 9, care{ending: isSilent, next: at(9)}},
		{"no answer, but other words", pulse{open: true, shown: true, asked: at(1), heard: at(8.9)}, 9, care{ending: isSilent, next: at(9)}},
		{"no answer, but much else that it may be behind", pulse{open: true, shown: true, asked: at(1), read: at(8)}, 9, care{next: at(16)}},
		{"much else stopped", pulse{open: true, shown: true, asked: at(1), read: at(8)}, 16, care{ending: isSilent, next: at(16)}},
		{"much else does not stop", pulse{open: true, shown: true, asked: at(1), read: at(20.9)}, 20.9, care{next: at(21)}},
		{"much else for too long", pulse{open: true, shown: true, asked: at(1), read: at(20.9)}, 21, care{ending: isSilent, next: at(21)}},
		{"what came before the question", pulse{open: true, shown: true, asked: at(1), read: at(0.5)}, 9, care{ending: isSilent, next: at(9)}},
		{"no answer while a proof waits for a peer that does not read", pulse{open: true, busy: true, asked: at(1)}, 9, care{ending: isSilent, next: at(9)}},
		{"answered", pulse{open: true, shown: true, heard: at(2), answered: at(2)}, 2, care{next: at(6.5)}},
		{"quiet", pulse{open: true, shown: true, heard: at(2), answered: at(2)}, 6.5, care{ask: true, next: at(6.5)}},
		{"quiet, and somebody sends", pulse{open: true, shown: true, heard: at(2), answered: at(2), busy: true}, 6.5, care{next: at(100)}},
		{"heard of", pulse{open: true, shown: true, heard: at(6), answered: at(2)}, 6.5, care{next: at(10.5)}},
		{"heard of all the time", pulse{open: true, shown: true, heard: at(31), answered: at(2)}, 31, care{next: at(32)}},
		{"heard of all the time, but long since it was measured", pulse{open: true, shown: true, heard: at(32), answered: at(2)}, 32, care{ask: true, next: at(32)}},
		{"a new leaf", pulse{open: true, heard: at(2), answered: at(2)}, 3, care{show: true, next: at(3)}},
		{"a new leaf and quiet", pulse{open: true, heard: at(2), answered: at(2)}, 7, care{ask: true, show: true, next: at(6.5)}},
		{"a new leaf, and somebody sends", pulse{open: true, heard: at(2), answered: at(2), busy: true}, 3, care{next: at(100)}},
		{"a new leaf, and no stream", pulse{}, 3, care{next: at(10)}},
		{"the peer's certificate ends before anything else", pulse{open: true, shown: true, heard: at(98), answered: at(98)}, 99, care{next: at(100)}},
		{"it ended", pulse{open: true, shown: true, heard: at(98), answered: at(98)}, 100, care{ending: hasExpired, next: at(100)}},
		{"it ended, and the peer is silent", pulse{open: true, shown: true, asked: at(99)}, 107, care{ending: hasExpired, next: at(100)}},
	} {
		tt.pulse.since, tt.pulse.end = at(0), at(100)
		got := tt.pulse.due(at(tt.now), limits)
		// What ends needs nothing else.
		if got.ending != goesOn && got.ending == tt.want.ending {
			got.ask, got.show = false, false
		}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if mine, other := paceOf(true), paceOf(false); mine.quiet >= other.quiet || other.quiet+other.answer > 15*time.Second {
		t.Errorf("the dialling side asks after %s, the other after %s, and each waits %s", mine.quiet, other.quiet, other.answer)
	}
}

// paced has a node ask after quiet, and wait for an answer for so long. It is called
// before there are sessions.
func paced(n *node, quiet, answer time.Duration) {
	n.pace = func(dialled bool) pace {
		p := paceOf(dialled)
		p.quiet, p.answer, p.behind = quiet, answer, answer
		return p
	}
}

func TestAPeerThatFallsSilentIsGivenUpByBothSides(t *testing.T) {
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
	proxy.freeze() // both connections stay open, and nobody reads from them
	a.SetPeers(nil)
	for _, pair := range [][2]*node{{a, b}, {b, a}} {
		if err := closed(t, pair[0], pair[1]); !errors.Is(err, errSilent) || !strings.Contains(err.Error(), "no answer for 2s") {
			t.Errorf("status says %v", err)
		}
	}
}

// A peer that reads, and whose TCP and yamux live, but that answers nothing.
func TestAPeerThatDoesNotAnswerIsGivenUp(t *testing.T) {
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
			h.send(kindAsk, make([]byte, 8))
			time.Sleep(300 * time.Millisecond) // within the rate
		}
		if err := closed(t, b, peer); !errors.Is(err, errSilent) {
			t.Errorf("status says %v", err)
		}
	})
}

// Looks at one link at the same time send nothing twice, and one that waits for the
// peer does not keep another from seeing that the time is over.
func TestOneLookSendsAndOthersWatch(t *testing.T) {
	t.Parallel()
	m, leaf := &Manager{}, &x509svid.SVID{}
	m.leaf.Store(leaf)
	l := &link{info: Info{Since: time.Now()}, notAfter: time.Now().Add(time.Hour), control: &control{}, timer: time.NewTimer(time.Hour), pace: paceOf(true)}
	look := func() errand {
		t.Helper()
		e, more, err := m.look(l)
		if err != nil || more != (e.question != nil || e.leaf != nil) {
			t.Fatalf("%+v, %t, %v", e, more, err)
		}
		return e
	}
	if e := look(); len(e.question) != 8 || e.leaf != leaf || e.number != 1 {
		t.Errorf("first %+v", e)
	}
	next := &x509svid.SVID{}
	m.leaf.Store(next)
	if e := look(); e.question != nil || e.leaf != nil {
		t.Errorf("while another sends: %+v", e)
	}
	l.busy = false
	if e := look(); e.question != nil || e.leaf != next || e.number != 2 {
		t.Errorf("after that: %+v", e)
	}
	l.askedAt = l.askedAt.Add(-answerTimeout)
	if _, _, err := m.look(l); !errors.Is(err, errSilent) {
		t.Errorf("the time is over: %v", err)
	}
	l.ended = true
	if l.begin() {
		t.Error("a look began after the end")
	}
}

func TestAPeerThatOpensNoControlStreamIsGivenUp(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly)
	victim.pace = func(dialled bool) pace {
		p := paceOf(dialled)
		p.open = 300 * time.Millisecond
		return p
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
		if kind == kindAsk {
			answered++
			// Slowly enough for the rate.
			time.Sleep(250 * time.Millisecond)
			h.send(kindTell, binary.BigEndian.AppendUint64(body, uint64(time.Now().UnixMilli())))
		}
	}
	if !up(victim, peer)() {
		t.Errorf("the session ended: %v", victim.Status(peer.id).Err)
	}
}

func TestAtRestTheDiallerAsksAndTheOtherAnswers(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	const quiet = 250 * time.Millisecond // as often as the rate of messages allows
	paced(a, quiet, patience/4)
	paced(b, 8*quiet, patience/4)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	asked := func(n, peer *node) uint64 {
		l := n.link(peer.id)
		if l == nil {
			return 0
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.asked
	}
	eventually(t, "both asked once", func() bool { return asked(a, b) > 0 && asked(b, a) > 0 })
	began, first, other := time.Now(), asked(a, b), asked(b, a)
	time.Sleep(12 * quiet)
	most := uint64(time.Since(began)/quiet) + 1
	if n := asked(a, b) - first; n < 3 || n > most {
		t.Errorf("the dialling side asked %d times, want %d", n, most)
	}
	if n := asked(b, a) - other; n > 1 {
		t.Errorf("the other side asked %d times", n)
	}
}

// Who had no processor for long gives a peer the time to answer that it did not have
// itself to listen: once for each question.
func TestOneThatWasAwayWaitsAnew(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]bool{"a look that is late": false, "another message before the look": true} {
		synctest.Test(t, func(t *testing.T) {
			m := &Manager{}
			l := &link{
				info: Info{Since: time.Now()}, notAfter: time.Now().Add(time.Hour), control: &control{}, pace: paceOf(true),
				timer: time.NewTimer(time.Hour), lookAt: time.Now(),
			}
			defer l.timer.Stop()
			look := func(want error) {
				t.Helper()
				if _, _, err := m.look(l); !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", name, err, want)
				}
				l.busy = false
			}
			look(nil) // which asks
			time.Sleep(answerTimeout + 20*time.Second)
			if plan {
				m.plan(l)
			}
			look(nil)
			time.Sleep(answerTimeout - time.Millisecond)
			look(nil)
			time.Sleep(time.Minute)
			look(errSilent)
		})
	}
}

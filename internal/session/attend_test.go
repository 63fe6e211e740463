package session

import (
	"errors"
	"testing"
	"time"
)

// A peer that is attended owes an answer within seconds of falling silent, in the
// session of now and in the next one.
func TestAttendedPeerIsProbedOften(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	proxy := newProxy(t, b.addr)
	trustEachOther(t, a, b)
	if _, connected := a.Silence(b.id); connected {
		t.Error("there is no session, but it is connected")
	}
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{proxy.addr}}})
	mustWho(t, a, b)
	if p := paceIn(a, b); p.quiet != quietAfterDialled {
		t.Fatalf("at rest it is asked after %s", p.quiet)
	}
	a.Attend(b.id, true)
	if p := paceIn(a, b); p.quiet != quietAttended || p.answer != answerTimeout {
		t.Fatalf("attended it is asked after %s and may take %s", p.quiet, p.answer)
	}
	time.Sleep(200 * time.Millisecond)
	proxy.freeze()
	began := time.Now()
	for {
		since, connected := a.Silence(b.id)
		if !connected {
			t.Fatalf("the session ended before the peer owed an answer: %v", a.Status(b.id).Err)
		}
		if !since.IsZero() && time.Since(since) > time.Second {
			break
		}
		if time.Since(began) > quietAttended+2*time.Second {
			t.Fatalf("after %s the peer owes no answer", time.Since(began))
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := closed(t, a, b); !errors.Is(err, errSilent) {
		t.Errorf("the session ended for %v", err)
	}
	a.Attend(b.id, false)
	if len(a.attended) > 0 {
		t.Error("it is remembered for ever")
	}
}

func paceIn(a, b *node) intervals {
	a.mu.Lock()
	l := a.links[b.id]
	a.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.intervals
}

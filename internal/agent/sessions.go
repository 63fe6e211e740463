package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// speech is what this cluster says to its peers over sessions, and what it does
// with what they say. It serves both directions of the exchange.
type speech struct {
	states *controller.States
	log    *slog.Logger

	mu      sync.Mutex
	changed map[peering.ClusterID]chan struct{}
	// said is the word to each peer, heard what was recorded of its own. Most
	// heartbeats say nothing new: those cost no look at what is stored.
	said, heard map[peering.ClusterID]word
	// lends is whether each peer lends this cluster anything, by its last word.
	lends map[peering.ClusterID]*lends
}

// lends is a peer's word on whether it lends anything; changed is closed when it says
// something else.
type lends struct {
	word    wire.Lending
	changed chan struct{}
}

// wordLasts is for how long a word holds that nobody said had changed: whoever
// changes it says so.
const wordLasts = time.Minute

// word is what one side said.
type word struct {
	state *ententev1.PeerState
	at    time.Time
}

// holds says whether a word need not be looked at again yet.
func (w word) holds() bool { return w.state != nil && time.Since(w.at) < wordLasts }

// says says whether a word is the same but for what counts and times messages.
func (w word) says(s *ententev1.PeerState) bool {
	sequence, at, echo := s.GetSequence(), s.GetSentAt(), s.GetEchoSequence()
	s.Sequence, s.SentAt, s.EchoSequence = w.state.GetSequence(), w.state.GetSentAt(), w.state.GetEchoSequence()
	same := proto.Equal(w.state, s)
	s.Sequence, s.SentAt, s.EchoSequence = sequence, at, echo
	return same
}

// State returns the word to a peer and a channel that is closed when that may be
// another one.
func (s *speech) State(ctx context.Context, peer peering.ClusterID) (*ententev1.PeerState, <-chan struct{}, error) {
	s.mu.Lock()
	changed := s.change(peer)
	last := s.said[peer]
	s.mu.Unlock()
	if last.holds() {
		return proto.CloneOf(last.state), changed, nil
	}
	state, err := s.states.State(ctx, peer)
	if err != nil {
		return nil, nil, err
	}
	now := wire.StateTo(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	// What changed while this looked is looked at again at once.
	if s.changed[peer] == changed {
		if s.said == nil {
			s.said = map[peering.ClusterID]word{}
		}
		s.said[peer] = word{proto.CloneOf(now), time.Now()}
	}
	return now, changed, nil
}

// Observe records a peer's word, and ends the exchange with one whose protocol
// revision is too far from this agent's: once that has heard this side, so that
// each can say by itself what is wrong.
func (s *speech) Observe(ctx context.Context, peer peering.ClusterID, state *ententev1.PeerState) error {
	if err := s.record(ctx, peer, state); err != nil || state.GetEchoSequence() == 0 {
		return err
	}
	return wire.CheckProtocol(controller.Protocol, state.GetProtocol())
}

// record records a peer's word.
func (s *speech) record(ctx context.Context, peer peering.ClusterID, state *ententev1.PeerState) error {
	s.mu.Lock()
	last, changed := s.heard[peer], s.change(peer)
	s.mu.Unlock()
	if last.holds() && last.says(state) {
		return nil
	}
	said, err := wire.StateFrom(state)
	if err != nil {
		return err
	}
	s.lent(peer, said.Lends)
	// What this cluster cannot record now it hears again with the next heartbeat:
	// its own API server's troubles are no reason to hang up on a peer.
	if err := s.states.Observe(ctx, peer, said); err != nil {
		if ctx.Err() == nil {
			s.log.Warn("cannot record what a peer says", "peer", peer, "err", err)
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// What changed while this wrote may have undone it.
	if s.changed[peer] == changed {
		if s.heard == nil {
			s.heard = map[peering.ClusterID]word{}
		}
		s.heard[peer] = word{proto.CloneOf(state), time.Now()}
	}
	return nil
}

// change returns what is closed once something changed for a peer. The lock is held.
func (s *speech) change(peer peering.ClusterID) chan struct{} {
	c, ok := s.changed[peer]
	if !ok {
		if s.changed == nil {
			s.changed = map[peering.ClusterID]chan struct{}{}
		}
		c = make(chan struct{})
		s.changed[peer] = c
	}
	return c
}

// Lends returns a peer's word on whether it lends anything, and a channel that is
// closed when it says something else.
func (s *speech) Lends(peer peering.ClusterID) (wire.Lending, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lendsOf(peer)
	return l.word, l.changed
}

// lent takes a peer's word on whether it lends anything.
func (s *speech) lent(peer peering.ClusterID, word wire.Lending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lendsOf(peer); l.word != word {
		close(l.changed)
		s.lends[peer] = &lends{word: word, changed: make(chan struct{})}
	}
}

// lendsOf is the peer's word, or that there is none. The lock is held.
func (s *speech) lendsOf(peer peering.ClusterID) *lends {
	l := s.lends[peer]
	if l == nil {
		if s.lends == nil {
			s.lends = make(map[peering.ClusterID]*lends)
		}
		l = &lends{changed: make(chan struct{})}
		s.lends[peer] = l
	}
	return l
}

// ended forgets what was said in a session.
func (s *speech) ended(peer peering.ClusterID) {
	s.lent(peer, wire.LendsUnknown)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.said, peer)
	delete(s.heard, peer)
}

// spoken makes the word to a peer, and the peer's, be looked at again.
func (s *speech) spoken(peer peering.ClusterID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.said, peer)
	delete(s.heard, peer)
	if changed, ok := s.changed[peer]; ok {
		close(changed)
		delete(s.changed, peer)
	}
}

// waker turns names into requests for a reconciler, without ever blocking: a
// name that does not fit is looked at by the reconciler's own requeue.
type waker chan event.GenericEvent

func (w waker) wake(object client.Object) {
	select {
	case w <- event.GenericEvent{Object: object}:
	default:
	}
}

func foreignClusterNamed(name string) client.Object {
	fc := &v1alpha1.ForeignCluster{}
	fc.Name = name
	return fc
}

func contractNamed(name string) client.Object {
	c := &v1alpha1.Contract{}
	c.Name = name
	return c
}

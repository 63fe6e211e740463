// Package exchange sends this cluster's state to its peers over sessions, and records theirs.
package exchange

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Exchange sends this cluster's state to its peers over sessions, and records theirs. It
// serves both directions.
type Exchange struct {
	states *controller.States
	log    *slog.Logger
	// retry is notified when a state has to be recorded again.
	retry notify.Channel

	mu    sync.Mutex
	peers map[peering.ClusterID]*peerExchange
}

// peerExchange is the state exchange with one peer. Exchange.mu guards all but recording.
type peerExchange struct {
	// recording serializes recording the peer's states.
	recording sync.Mutex

	// session is the newest session's number.
	session uint64
	// changes counts changes that may affect the state to the peer, or undo what was recorded.
	changes uint64
	// sent is the last state to the peer, received the last of the peer. Most states are
	// equal to the last: those need no read of stored objects. failures is how often
	// received could not be recorded, and notBefore when that is tried again.
	sent, received stateCopy
	failures       int
	notBefore      time.Time
	// offering is whether the peer offers this cluster anything, by its last state.
	offering peering.Offering
	// These are called when sent may have changed, when a state was received, and when
	// offering changed.
	onChange, onReceive, onOffering []*func()
}

const (
	// sentLasts is how long the state to a peer is not built again: every change of it calls
	// Changed. receivedLasts is how long a peer's state is not recorded again. Not every recorded
	// object is watched, so it is less than the pause between two states.
	sentLasts     = 5 * time.Minute
	receivedLasts = heartbeat.MaxInterval / 2
	// retryAfter is the pause before a state is recorded again because that failed or may
	// have been undone; it grows to maxRetryAfter. retryTimeout bounds one attempt, and
	// maxRetries the concurrent ones.
	retryAfter    = 2 * time.Second
	maxRetryAfter = time.Minute
	retryTimeout  = 10 * time.Second
	maxRetries    = 8
	// firstStateTimeout is how long a request waits for its peer's first state.
	firstStateTimeout = time.Second
)

// stateCopy is a state that was sent or received.
type stateCopy struct {
	state *ententev1.PeerState
	// at is when it was built, or recorded; zero if that has to be done again.
	at time.Time
}

// isFresh reports whether a state is not older than lasts, so that it need not be built or recorded again.
func (w stateCopy) isFresh(lasts time.Duration) bool {
	return w.state != nil && time.Since(w.at) < lasts
}

// equals compares states without the fields that count and time messages.
func (w stateCopy) equals(s *ententev1.PeerState) bool {
	sequence, at, echo := s.GetSequence(), s.GetSendTime(), s.GetEchoSequence()
	s.Sequence, s.SendTime, s.EchoSequence = w.state.GetSequence(), w.state.GetSendTime(), w.state.GetEchoSequence()
	same := proto.Equal(w.state, s)
	s.Sequence, s.SendTime, s.EchoSequence = sequence, at, echo
	return same
}

// New returns an Exchange of states as States builds and records them.
func New(states *controller.States, log *slog.Logger) *Exchange {
	return &Exchange{states: states, log: log, retry: notify.New(), peers: map[peering.ClusterID]*peerExchange{}}
}

// of returns the exchange with a peer, a new one if there is no exchange yet. s.mu must be held.
func (s *Exchange) of(peer peering.ClusterID) *peerExchange {
	c := s.peers[peer]
	if c == nil {
		c = &peerExchange{}
		s.peers[peer] = c
	}
	return c
}

// State returns this cluster's state for a peer.
func (s *Exchange) State(ctx context.Context, peer peering.ClusterID) (*ententev1.PeerState, error) {
	s.mu.Lock()
	c := s.of(peer)
	last, changes := c.sent, c.changes
	s.mu.Unlock()
	if last.isFresh(sentLasts) {
		return proto.CloneOf(last.state), nil
	}
	state, err := s.states.State(ctx, peer)
	if err != nil {
		return nil, err
	}
	now := wire.StateTo(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	// If something changed meanwhile the state is built again at once.
	if c.changes == changes {
		c.sent = stateCopy{proto.CloneOf(now), time.Now()}
	}
	return now, nil
}

// Watch calls changed whenever the state for a peer may have changed.
func (s *Exchange) Watch(peer peering.ClusterID, changed func()) (stop func()) {
	return s.watch(peer, func(c *peerExchange) *[]*func() { return &c.onChange }, changed)
}

// WatchOffering calls changed whenever Offering of a peer changes.
func (s *Exchange) WatchOffering(peer peering.ClusterID, changed func()) (stop func()) {
	return s.watch(peer, func(c *peerExchange) *[]*func() { return &c.onOffering }, changed)
}

func (s *Exchange) watch(peer peering.ClusterID, of func(*peerExchange) *[]*func(), call func()) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := of(s.of(peer))
	*list = append(*list, &call)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		list := of(s.of(peer))
		*list = slices.DeleteFunc(*list, func(f *func()) bool { return f == &call })
		s.forget(peer)
	}
}

// Observe records a peer's state. It ends the exchange with a peer whose protocol
// revision is too far from this agent's, once that peer received this side's state, so
// that both can report what is wrong.
func (s *Exchange) Observe(ctx context.Context, peer peering.ClusterID, state *ententev1.PeerState) error {
	if err := s.receive(ctx, peer, state); err != nil || state.GetEchoSequence() == 0 {
		return err
	}
	return peering.CheckProtocol(peering.Protocol, state.GetProtocol())
}

// CheckProtocol returns an error if a peer's protocol revision is too far from this
// agent's. A peer may send requests before its first state: CheckProtocol waits for the state
// for firstStateTimeout.
func (s *Exchange) CheckProtocol(ctx context.Context, peer peering.ClusterID) error {
	received := notify.New()
	defer s.watch(peer, func(c *peerExchange) *[]*func() { return &c.onReceive }, received.Notify)()
	late := time.NewTimer(firstStateTimeout)
	defer late.Stop()
	for {
		s.mu.Lock()
		state := s.of(peer).received.state
		s.mu.Unlock()
		if state != nil {
			return peering.CheckProtocol(peering.Protocol, state.GetProtocol())
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return nil
		case <-received:
		}
	}
}

func (s *Exchange) receive(ctx context.Context, peer peering.ClusterID, state *ententev1.PeerState) error {
	s.mu.Lock()
	c := s.of(peer)
	last := c.received
	s.mu.Unlock()
	if last.isFresh(receivedLasts) && last.equals(state) {
		return nil
	}
	parsed, err := wire.StateFrom(state)
	if err != nil {
		return err
	}
	c.recording.Lock()
	defer c.recording.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx) // while it waited, a newer stream's state may have been recorded
	}
	s.mu.Lock()
	c.received, c.failures = stateCopy{state: proto.CloneOf(state)}, 0
	callAll(c.onReceive)
	s.setOffering(c, parsed.Offering)
	s.mu.Unlock()
	s.record(ctx, peer, c, parsed)
	return nil
}

// record records the state that was received last, and later again if that fails: failures of
// this cluster's API server do not end a peer's session. c.recording must be held.
func (s *Exchange) record(ctx context.Context, peer peering.ClusterID, c *peerExchange, parsed peering.PeerState) {
	s.mu.Lock()
	changes := c.changes
	s.mu.Unlock()
	err := s.states.Observe(ctx, peer, parsed)
	later, paced := errors.AsType[*store.LaterError](err)
	if err != nil && !paced && ctx.Err() == nil {
		s.log.Warn("cannot record the state of a peer", "peer", peer, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case paced: // the last state is recorded later
		c.notBefore = time.Now().Add(later.After)
		s.retry.Notify()
	case err != nil:
		c.notBefore = time.Now().Add(min(retryAfter<<min(c.failures, 8), maxRetryAfter))
		c.failures++
		s.retry.Notify()
	case c.changes != changes: // a change may have undone it
		s.retry.Notify()
	default:
		c.received.at, c.failures, c.notBefore = time.Now(), 0, time.Time{}
	}
}

// Run records states again whose recording failed or may have been undone, until ctx
// ends: peers repeat them too seldom to wait for that.
func (s *Exchange) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.retry:
		}
		if !notify.Pause(ctx, retryAfter) {
			return nil
		}
		due, others := s.dueStates(time.Now())
		var tasks errgroup.Group
		tasks.SetLimit(maxRetries)
		for _, peer := range due {
			tasks.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, retryTimeout)
				defer cancel()
				s.recordAgain(ctx, peer)
				return nil
			})
		}
		_ = tasks.Wait()
		if others {
			s.retry.Notify()
		}
	}
}

// dueStates returns the peers whose states are due to be recorded again, and whether
// others are due later.
func (s *Exchange) dueStates(now time.Time) (due []peering.ClusterID, others bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for peer, c := range s.peers {
		switch {
		case c.received.state == nil || !c.received.at.IsZero():
		case now.Before(c.notBefore):
			others = true
		default:
			due = append(due, peer)
		}
	}
	return due, others
}

// recordAgain records a peer's last state unless that was done meanwhile.
func (s *Exchange) recordAgain(ctx context.Context, peer peering.ClusterID) {
	s.mu.Lock()
	c := s.peers[peer]
	s.mu.Unlock()
	if c == nil {
		return
	}
	c.recording.Lock()
	defer c.recording.Unlock()
	s.mu.Lock()
	last := c.received
	s.mu.Unlock()
	if last.state == nil || !last.at.IsZero() {
		return
	}
	if parsed, err := wire.StateFrom(last.state); err == nil { // it was parsed before
		s.record(ctx, peer, c, parsed)
	}
}

// Offering returns whether a peer offers anything, by its last state.
func (s *Exchange) Offering(peer peering.ClusterID) peering.Offering {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.peers[peer]; c != nil {
		return c.offering
	}
	return peering.OfferingUnknown
}

// Carries reports whether a peer has announced that it carries sessions of others.
func (s *Exchange) Carries(peer peering.ClusterID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.peers[peer]
	return c != nil && slices.Contains(c.received.state.GetCapabilities(), peering.CapabilityCarry)
}

// setOffering sets whether a peer offers anything. s.mu must be held.
func (s *Exchange) setOffering(c *peerExchange, offering peering.Offering) {
	if c.offering != offering {
		c.offering = offering
		callAll(c.onOffering)
	}
}

// callAll calls functions that do not block.
func callAll(list []*func()) {
	for _, f := range list {
		(*f)()
	}
}

// Started notes a new session with a peer.
func (s *Exchange) Started(peer peering.ClusterID, session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of(peer)
	c.session = max(c.session, session)
	c.sent = stateCopy{} // it contains the session's address
}

// Ended forgets the states of a session, unless there is a newer one.
func (s *Exchange) Ended(peer peering.ClusterID, session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of(peer)
	if c.session == session {
		c.session, c.sent, c.received = 0, stateCopy{}, stateCopy{}
		s.setOffering(c, peering.OfferingUnknown)
	}
	s.forget(peer)
}

// forget forgets a peer without session and watchers. s.mu must be held.
func (s *Exchange) forget(peer peering.ClusterID) {
	if c := s.peers[peer]; c.session == 0 && len(c.onChange) == 0 && len(c.onReceive) == 0 && len(c.onOffering) == 0 {
		delete(s.peers, peer)
	}
}

// Changed makes the state for a peer be built again, and the peer's state be recorded again.
func (s *Exchange) Changed(peer peering.ClusterID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.peers[peer]
	if c == nil {
		return
	}
	c.changes++
	c.sent, c.received.at = stateCopy{}, time.Time{}
	if c.received.state != nil {
		s.retry.Notify()
	}
	callAll(c.onChange)
}

// ChangedAll makes the states for all peers be built again.
func (s *Exchange) ChangedAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.peers {
		c.changes++
		c.sent = stateCopy{}
		callAll(c.onChange)
	}
}

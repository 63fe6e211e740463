package agent

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
	"github.com/entente-dev/entente/internal/lending"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// speech is what this cluster says to its peers over sessions, and what it does
// with what they say. It serves both directions of the exchange.
type speech struct {
	states *controller.States
	log    *slog.Logger
	// undone is poked when there is a word that has to be recorded again.
	undone notify.Channel

	mu    sync.Mutex
	peers map[peering.ClusterID]*conversation
}

// conversation is what this cluster and a peer say to each other. What is not
// recording is the speech's to lock.
type conversation struct {
	// recording is held while a word of the peer is recorded: one after the other.
	recording sync.Mutex

	// session is the newest session's number.
	session uint64
	// changes counts what may have changed what is said or undone what was recorded.
	changes uint64
	// said is the word to the peer, heard its own. Most states say nothing new: those
	// cost no look at what is stored. undone is how often heard could not be recorded,
	// and notBefore when that is tried again.
	said, heard word
	undone      int
	notBefore   time.Time
	// lends is whether the peer lends this cluster anything, by its last word.
	lends peering.Lending
	// change, hearing and lending are who is to hear of another said, of another heard,
	// and of another lends.
	change, hearing, lending []*func()
}

const (
	// wordLasts is for how long the word to a peer holds that nobody said had changed:
	// whoever changes it says so. heardLasts is that for a peer's own, of which not all
	// that is recorded is watched: less than the pause between two.
	wordLasts  = 5 * time.Minute
	heardLasts = heartbeat.MaxInterval / 2
	// againAfter is the pause before a word is recorded again that could not be, or that
	// may have been undone; it grows to againMost. againTimeout is how long that may
	// take, and againAtOnce how many are under way.
	againAfter   = 2 * time.Second
	againMost    = time.Minute
	againTimeout = 10 * time.Second
	againAtOnce  = 8
	// firstWordWithin is how long an ask waits for its peer's first word.
	firstWordWithin = time.Second
)

// word is what one side said.
type word struct {
	state *ententev1.PeerState
	// at is when it was made, or recorded; zero if it has to be looked at again.
	at time.Time
}

// holds says whether a word that lasts so long need not be looked at again yet.
func (w word) holds(lasts time.Duration) bool { return w.state != nil && time.Since(w.at) < lasts }

// says says whether a word is the same but for what counts and times messages.
func (w word) says(s *ententev1.PeerState) bool {
	sequence, at, echo := s.GetSequence(), s.GetSentAt(), s.GetEchoSequence()
	s.Sequence, s.SentAt, s.EchoSequence = w.state.GetSequence(), w.state.GetSentAt(), w.state.GetEchoSequence()
	same := proto.Equal(w.state, s)
	s.Sequence, s.SentAt, s.EchoSequence = sequence, at, echo
	return same
}

func newSpeech(states *controller.States, log *slog.Logger) *speech {
	return &speech{states: states, log: log, undone: notify.New(), peers: map[peering.ClusterID]*conversation{}}
}

// with returns the conversation with a peer. The lock is held.
func (s *speech) with(peer peering.ClusterID) *conversation {
	c := s.peers[peer]
	if c == nil {
		c = &conversation{}
		s.peers[peer] = c
	}
	return c
}

// State returns the word to a peer.
func (s *speech) State(ctx context.Context, peer peering.ClusterID) (*ententev1.PeerState, error) {
	s.mu.Lock()
	c := s.with(peer)
	last, changes := c.said, c.changes
	s.mu.Unlock()
	if last.holds(wordLasts) {
		return proto.CloneOf(last.state), nil
	}
	state, err := s.states.State(ctx, peer)
	if err != nil {
		return nil, err
	}
	now := wire.StateTo(state)
	s.mu.Lock()
	defer s.mu.Unlock()
	// What changed while this looked is looked at again at once.
	if c.changes == changes {
		c.said = word{proto.CloneOf(now), time.Now()}
	}
	return now, nil
}

// Watch has changed called whenever the word to a peer may be another.
func (s *speech) Watch(peer peering.ClusterID, changed func()) (stop func()) {
	return s.watch(peer, func(c *conversation) *[]*func() { return &c.change }, changed)
}

// WatchLends has changed called whenever a peer's word is another on whether it lends
// anything.
func (s *speech) WatchLends(peer peering.ClusterID, changed func()) (stop func()) {
	return s.watch(peer, func(c *conversation) *[]*func() { return &c.lending }, changed)
}

func (s *speech) watch(peer peering.ClusterID, of func(*conversation) *[]*func(), call func()) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := of(s.with(peer))
	*list = append(*list, &call)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		list := of(s.with(peer))
		*list = slices.DeleteFunc(*list, func(f *func()) bool { return f == &call })
		s.forget(peer)
	}
}

// Observe records a peer's word, and ends the exchange with one whose protocol
// revision is too far from this agent's: once that has heard this side, so that
// each can say by itself what is wrong.
func (s *speech) Observe(ctx context.Context, peer peering.ClusterID, state *ententev1.PeerState) error {
	if err := s.hear(ctx, peer, state); err != nil || state.GetEchoSequence() == 0 {
		return err
	}
	return peering.CheckProtocol(peering.Protocol, state.GetProtocol())
}

// speaks returns why nothing can be agreed with a peer: its protocol revision is too far
// from this agent's. A peer asks as soon as its session is up, which may be before its
// first word is here: that is waited for, for a moment.
func (s *speech) speaks(ctx context.Context, peer peering.ClusterID) error {
	heard := notify.New()
	defer s.watch(peer, func(c *conversation) *[]*func() { return &c.hearing }, heard.Notify)()
	late := time.NewTimer(firstWordWithin)
	defer late.Stop()
	for {
		s.mu.Lock()
		said := s.with(peer).heard.state
		s.mu.Unlock()
		if said != nil {
			return peering.CheckProtocol(peering.Protocol, said.GetProtocol())
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return nil
		case <-heard:
		}
	}
}

// negotiator negotiates with peers whose protocol this agent speaks. It implements
// server.Negotiator.
type negotiator struct {
	*lending.Lender
	server.Contracts
	speaks func(ctx context.Context, peer peering.ClusterID) error
}

func (n negotiator) Advertise(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.Advertisement, error) {
	if err := n.speaks(ctx, peer); err != nil {
		return peering.Advertisement{}, err
	}
	return n.Lender.Advertise(ctx, peer, ask)
}

func (n negotiator) Sign(ctx context.Context, peer peering.ClusterID, envelope peering.Envelope) (peering.Envelope, error) {
	if err := n.speaks(ctx, peer); err != nil {
		return peering.Envelope{}, err
	}
	return n.Lender.Sign(ctx, peer, envelope)
}

func (s *speech) hear(ctx context.Context, peer peering.ClusterID, state *ententev1.PeerState) error {
	s.mu.Lock()
	c := s.with(peer)
	last := c.heard
	s.mu.Unlock()
	if last.holds(heardLasts) && last.says(state) {
		return nil
	}
	said, err := wire.StateFrom(state)
	if err != nil {
		return err
	}
	c.recording.Lock()
	defer c.recording.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx) // it waited, and a newer stream's word may have been recorded
	}
	s.mu.Lock()
	c.heard, c.undone = word{state: proto.CloneOf(state)}, 0
	call(c.hearing)
	s.lent(c, said.Lends)
	s.mu.Unlock()
	s.record(ctx, peer, c, said)
	return nil
}

// record records the word that was heard last. What this cluster cannot record now it
// records later: its own API server's troubles are no reason to hang up on a peer.
// recording is held.
func (s *speech) record(ctx context.Context, peer peering.ClusterID, c *conversation, said peering.PeerState) {
	s.mu.Lock()
	changes := c.changes
	s.mu.Unlock()
	err := s.states.Observe(ctx, peer, said)
	later, paced := errors.AsType[*store.LaterError](err)
	if err != nil && !paced && ctx.Err() == nil {
		s.log.Warn("cannot record what a peer says", "peer", peer, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case paced: // whatever it says last is recorded then
		c.notBefore = time.Now().Add(later.After)
		s.undone.Notify()
	case err != nil:
		c.notBefore = time.Now().Add(min(againAfter<<min(c.undone, 8), againMost))
		c.undone++
		s.undone.Notify()
	case c.changes != changes: // which may have undone it
		s.undone.Notify()
	default:
		c.heard.at, c.undone, c.notBefore = time.Now(), 0, time.Time{}
	}
}

// Run records again, until ctx ends, what peers said and could not be recorded, or
// may have been undone: they repeat it too seldom to wait for that.
func (s *speech) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.undone:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(againAfter):
		}
		due, others := s.toRecord(time.Now())
		var tasks errgroup.Group
		tasks.SetLimit(againAtOnce)
		for _, peer := range due {
			tasks.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, againTimeout)
				defer cancel()
				s.recordAgain(ctx, peer)
				return nil
			})
		}
		_ = tasks.Wait()
		if others {
			s.undone.Notify()
		}
	}
}

// toRecord returns whose words are to be recorded again now, and whether there are
// others whose time has not come.
func (s *speech) toRecord(now time.Time) (due []peering.ClusterID, others bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for peer, c := range s.peers {
		switch {
		case c.heard.state == nil || !c.heard.at.IsZero():
		case now.Before(c.notBefore):
			others = true
		default:
			due = append(due, peer)
		}
	}
	return due, others
}

// recordAgain records a peer's last word if that is still to be done.
func (s *speech) recordAgain(ctx context.Context, peer peering.ClusterID) {
	s.mu.Lock()
	c := s.peers[peer]
	s.mu.Unlock()
	if c == nil {
		return
	}
	c.recording.Lock()
	defer c.recording.Unlock()
	s.mu.Lock()
	last := c.heard
	s.mu.Unlock()
	if last.state == nil || !last.at.IsZero() {
		return
	}
	if said, err := wire.StateFrom(last.state); err == nil { // it was read before
		s.record(ctx, peer, c, said)
	}
}

// Lends returns a peer's word on whether it lends anything.
func (s *speech) Lends(peer peering.ClusterID) peering.Lending {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.peers[peer]; c != nil {
		return c.lends
	}
	return peering.LendsUnknown
}

// lent takes a peer's word on whether it lends anything. The lock is held.
func (s *speech) lent(c *conversation, word peering.Lending) {
	if c.lends != word {
		c.lends = word
		call(c.lending)
	}
}

// call calls each; none of them waits.
func call(list []*func()) {
	for _, f := range list {
		(*f)()
	}
}

// begun says that a session with a peer came up.
func (s *speech) begun(peer peering.ClusterID, session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.with(peer)
	c.session = max(c.session, session)
}

// ended forgets what was said in a session, unless there is a newer one.
func (s *speech) ended(peer peering.ClusterID, session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.with(peer)
	if c.session == session {
		c.session, c.said, c.heard = 0, word{}, word{}
		s.lent(c, peering.LendsUnknown)
	}
	s.forget(peer)
}

// forget forgets a peer with whom nothing goes on. The lock is held.
func (s *speech) forget(peer peering.ClusterID) {
	if c := s.peers[peer]; c.session == 0 && len(c.change) == 0 && len(c.hearing) == 0 && len(c.lending) == 0 {
		delete(s.peers, peer)
	}
}

// spoken makes the word to a peer, and the peer's, be looked at again.
func (s *speech) spoken(peer peering.ClusterID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.peers[peer]
	if c == nil {
		return
	}
	c.changes++
	c.said, c.heard.at = word{}, time.Time{}
	if c.heard.state != nil {
		s.undone.Notify()
	}
	call(c.change)
}

// gather returns a function that has call called with each key that it is called with,
// once a pause later, however often that is meanwhile.
func gather[K comparable](pause time.Duration, call func(K)) func(K) {
	var mu sync.Mutex
	due := map[K]bool{}
	return func(key K) {
		mu.Lock()
		defer mu.Unlock()
		if due[key] {
			return
		}
		due[key] = true
		time.AfterFunc(pause, func() {
			mu.Lock()
			delete(due, key)
			mu.Unlock()
			call(key)
		})
	}
}

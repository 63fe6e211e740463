package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/entente-dev/entente/internal/intake"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// standing is the streams of peers that are open. They end with the trust in who
// called, and when the process is about to stop: one look at all of them now and
// then costs less than one that each of them takes by itself.
type standing struct {
	trusted func(peering.ClusterID) bool

	mu       sync.Mutex
	stopping bool
	streams  map[*standingStream]struct{}
}

// standingStream is a stream whose handler runs.
type standingStream struct {
	peer peering.ClusterID
	call string // its ID
	grpc finisher

	mu  sync.Mutex
	why error
}

// finisher is what gRPC's stream of a call can do beyond grpc.ServerTransportStream:
// it tells the caller how the call ended and ends its context, so that a Recv and a
// Send that wait return. An end of the context alone makes gRPC tell the caller
// that it was that.
type finisher interface {
	WriteStatus(*status.Status) error
}

var (
	errTrustEnded = &peering.Error{Reason: peering.ReasonPeerNotTrusted, Message: "this cluster ended its trust in yours"}
	errStopping   = &peering.Error{Reason: peering.ReasonStopping, Message: "the agent is about to stop", RetryAfter: middleware.RetryStopping}
	// errCallHeldTooMuch ends a call.
	errCallHeldTooMuch = &peering.Error{Reason: peering.ReasonTooManyCalls, Message: "the call was sent more than its handler takes", RetryAfter: time.Second}
)

func newStanding(trusted func(peering.ClusterID) bool) *standing {
	return &standing{trusted: trusted, streams: make(map[*standingStream]struct{})}
}

// run calls the handler of a stream. It returns when that does, with why the stream
// was ended, if it was.
func (s *standing) run(ctx context.Context, peer peering.ClusterID, call string, handler func(context.Context) error) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(finisher)
	if !ok {
		return peering.Errorf(peering.ReasonInternal, "gRPC's streams cannot be ended")
	}
	own := &standingStream{peer: peer, call: call, grpc: stream}
	s.mu.Lock()
	s.streams[own] = struct{}{}
	stopping := s.stopping
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, own)
	}()
	if stopping {
		return errStopping
	}
	intake.OnEnd(ctx, func(error) { own.end(errCallHeldTooMuch) })
	err := handler(context.WithValue(ctx, standingKey{}, own))
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.why != nil {
		return own.why
	}
	return err
}

// end ends the stream and tells the caller why, nil for in order. The first reason
// counts.
func (o *standingStream) end(why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why != nil {
		return
	}
	o.why = why
	st := middleware.StatusOf(why, o.call, false)
	if st == nil {
		st = status.New(codes.OK, "")
	}
	// It fails when the connection is gone, and the stream with it.
	_ = o.grpc.WriteStatus(st)
}

type standingKey struct{}

// endStream ends the stream of a handler, which it does not wait for.
func endStream(ctx context.Context, why error) {
	if own, ok := ctx.Value(standingKey{}).(*standingStream); ok {
		own.end(why)
	}
}

// check ends the streams of those who are no longer trusted.
func (s *standing) check() {
	open := make(map[peering.ClusterID][]*standingStream)
	s.mu.Lock()
	for one := range s.streams {
		open[one.peer] = append(open[one.peer], one)
	}
	s.mu.Unlock()
	for peer, streams := range open {
		if s.trusted(peer) {
			continue
		}
		for _, one := range streams {
			one.end(errTrustEnded)
		}
	}
}

// stop ends all streams; none begins after.
func (s *standing) stop() {
	s.mu.Lock()
	s.stopping = true
	var open []*standingStream
	for one := range s.streams {
		open = append(open, one)
	}
	s.mu.Unlock()
	for _, one := range open {
		one.end(errStopping)
	}
}

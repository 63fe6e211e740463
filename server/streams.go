package server

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/entente-dev/entente/internal/intake"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// trustedStreams are the open streams of peers. They end when their callers are no longer
// trusted, and when the process is about to stop. One periodic check of all of them costs less
// than one for each.
type trustedStreams struct {
	trusted func(peering.ClusterID) bool

	mu       sync.Mutex
	stopping bool
	streams  map[*trustedStream]struct{}
}

// trustedStream is a stream whose handler is running.
type trustedStream struct {
	peer peering.ClusterID
	call string // its ID
	grpc finisher

	mu  sync.Mutex
	why error
}

// finisher is a method that gRPC's transport stream of a call has beyond
// grpc.ServerTransportStream. It sends the status and ends the context of the call, so that a
// blocked Recv or Send returns. If only the context ended, gRPC would send CANCELLED.
type finisher interface {
	WriteStatus(*status.Status) error
}

var (
	errTrustEnded = &peering.Error{Reason: peering.ReasonPeerNotTrusted, Message: "this cluster ended its trust in yours"}
	errStopping   = &peering.Error{Reason: peering.ReasonStopping, Message: "the agent is about to stop", RetryAfter: middleware.RetryStopping}
	// errCallUnread ends a call that exceeds its limit of unread bytes.
	errCallUnread = &peering.Error{Reason: peering.ReasonTooManyCalls, Message: "the call has more unread data than its limit", RetryAfter: time.Second}
)

func newTrustedStreams(trusted func(peering.ClusterID) bool) *trustedStreams {
	return &trustedStreams{trusted: trusted, streams: make(map[*trustedStream]struct{})}
}

// run calls the handler of a stream, and returns its error, or why the stream was ended.
func (s *trustedStreams) run(ctx context.Context, peer peering.ClusterID, call string, handler func(context.Context) error) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(finisher)
	if !ok {
		return peering.Errorf(peering.ReasonInternal, "this version of gRPC cannot end streams")
	}
	own := &trustedStream{peer: peer, call: call, grpc: stream}
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
	intake.OnEnd(ctx, func(error) { own.end(errCallUnread) })
	err := handler(context.WithValue(ctx, streamKey{}, own))
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.why != nil {
		return own.why
	}
	return err
}

// end ends the stream with the status of an error, or OK for nil. Only the first call has an
// effect.
func (o *trustedStream) end(why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why != nil {
		return
	}
	o.why = why
	st := cmp.Or(middleware.StatusOf(why, o.call, false), status.New(codes.OK, ""))
	// It fails when the connection is gone, and the stream with it.
	_ = o.grpc.WriteStatus(st)
}

type streamKey struct{}

// endStream ends the stream of a handler without waiting for the handler.
func endStream(ctx context.Context, why error) {
	if own, ok := ctx.Value(streamKey{}).(*trustedStream); ok {
		own.end(why)
	}
}

// check ends the streams of peers that are no longer trusted.
func (s *trustedStreams) check() {
	open := make(map[peering.ClusterID][]*trustedStream)
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

// stop ends all streams and refuses new ones.
func (s *trustedStreams) stop() {
	s.mu.Lock()
	s.stopping = true
	open := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	for _, one := range open {
		one.end(errStopping)
	}
}

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// Negotiator makes contracts and changes them. An error whose reason the peer may see is a
// *peering.Error.
type Negotiator interface {
	// Advertise returns what this cluster offers for an ask. The same request ID gets the same
	// advertisement while that is valid.
	Advertise(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.Advertisement, error)
	// Preview returns what Advertise would, without a contract ID, and reserves nothing.
	Preview(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.Advertisement, error)
	// Sign takes a contract that the peer signed, and returns it signed by both.
	Sign(ctx context.Context, peer peering.ClusterID, e peering.Envelope) (peering.Envelope, error)
}

// Contracts serves contracts that both sides signed.
type Contracts interface {
	// Contract returns the newest revision of a contract with the peer, in either
	// role, signed by both.
	Contract(ctx context.Context, peer peering.ClusterID, contract string) (peering.Envelope, error)
	// Statements returns at most MaxStatements statements of use of a contract in which the peer
	// is the consumer: those after a sequence number, oldest first.
	Statements(ctx context.Context, peer peering.ClusterID, contract string, after uint64) ([]peering.Envelope, error)
	// Terminate records that the peer ended a contract: pods may run on until
	// drainUntil; zero ends it at once. A contract that is closed, unknown or another
	// peer's is not an error and changes nothing.
	Terminate(ctx context.Context, peer peering.ClusterID, contract, message string, drainUntil time.Time) error
}

// Sessions exchanges states with peers.
type Sessions interface {
	// State returns this cluster's state for a peer. The caller may change it.
	State(ctx context.Context, peer peering.ClusterID) (*ententev1.PeerState, error)
	// Watch calls changed whenever State may have changed, until stop. changed does
	// not block.
	Watch(peer peering.ClusterID, changed func()) (stop func())
	// Observe records the state of a peer. An error ends the session.
	Observe(ctx context.Context, peer peering.ClusterID, state *ententev1.PeerState) error
}

// peeringServer is the PeeringService.
type peeringServer struct {
	ententev1.UnimplementedPeeringServiceServer
	cfg PeerConfig
	// sessions and watches are the streams that peers have open.
	sessions, watches *streamCount
}

// caller returns the trusted peer of a call; the middleware let no other pass.
func caller(ctx context.Context) (peering.ClusterID, error) {
	info, ok := identity.PeerFromContext(ctx)
	if !ok || info.ID == "" || !info.Trusted {
		return "", &peering.Error{Reason: peering.ReasonPeerNotTrusted, Message: "this cluster does not trust yours"}
	}
	return info.ID, nil
}

func (s *peeringServer) RequestPeering(ctx context.Context, req *ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error) {
	peer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	ask, err := wire.AskFrom(req.GetRequest())
	if err != nil {
		return nil, err
	}
	answer := s.cfg.Negotiator.Advertise
	if req.GetValidateOnly() {
		answer = s.cfg.Negotiator.Preview
	}
	ad, err := answer(ctx, peer, ask)
	if err != nil {
		return nil, fmt.Errorf("advertise to %s: %w", peer, err)
	}
	return &ententev1.RequestPeeringResponse{Advertisement: wire.AdvertisementTo(ad)}, nil
}

func (s *peeringServer) SignContract(ctx context.Context, req *ententev1.SignContractRequest) (*ententev1.SignContractResponse, error) {
	peer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	envelope, err := wire.EnvelopeFrom(req.GetEnvelope())
	if err != nil {
		return nil, err
	}
	signed, err := s.cfg.Negotiator.Sign(ctx, peer, envelope)
	if err != nil {
		return nil, fmt.Errorf("sign contract of %s: %w", peer, err)
	}
	return &ententev1.SignContractResponse{Envelope: wire.EnvelopeTo(signed)}, nil
}

func (s *peeringServer) GetContract(ctx context.Context, req *ententev1.GetContractRequest) (*ententev1.GetContractResponse, error) {
	peer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	envelope, err := s.cfg.Contracts.Contract(ctx, peer, req.GetContractId())
	if err != nil {
		return nil, fmt.Errorf("contract for %s: %w", peer, err)
	}
	return &ententev1.GetContractResponse{Envelope: wire.EnvelopeTo(envelope)}, nil
}

func (s *peeringServer) ListStatements(ctx context.Context, req *ententev1.ListStatementsRequest) (*ententev1.ListStatementsResponse, error) {
	peer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	statements, err := s.cfg.Contracts.Statements(ctx, peer, req.GetContractId(), req.GetAfterSequence())
	if err != nil {
		return nil, fmt.Errorf("statements for %s: %w", peer, err)
	}
	resp := &ententev1.ListStatementsResponse{}
	for _, e := range statements[:min(len(statements), MaxStatements)] {
		resp.Statements = append(resp.Statements, wire.EnvelopeTo(e))
	}
	return resp, nil
}

func (s *peeringServer) TerminateContract(ctx context.Context, req *ententev1.TerminateContractRequest) (*ententev1.TerminateContractResponse, error) {
	peer, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	drainUntil, err := wire.DrainUntilFrom(req.GetDrainUntil())
	if err != nil {
		return nil, err
	}
	message := peering.Text(req.GetMessage(), peering.MaxMessageLen)
	if err := s.cfg.Contracts.Terminate(ctx, peer, req.GetContractId(), message, drainUntil); err != nil {
		return nil, fmt.Errorf("terminate contract of %s: %w", peer, err)
	}
	return &ententev1.TerminateContractResponse{}, nil
}

func (s *peeringServer) Session(stream grpc.BidiStreamingServer[ententev1.SessionRequest, ententev1.SessionResponse]) error {
	ctx := stream.Context()
	peer, err := caller(ctx)
	if err != nil {
		return err
	}
	ctx, leave := s.sessions.enter(ctx, peer)
	defer leave()
	info, _ := identity.PeerFromContext(ctx)
	var patience time.Duration
	if info.Session != 0 {
		patience = heartbeat.SessionTimeout
	}
	err = heartbeat.Run(ctx, heartbeat.Stream{
		Send: func(state *ententev1.PeerState) error {
			return stream.Send(&ententev1.SessionResponse{State: state})
		},
		Recv: func() (*ententev1.PeerState, error) {
			m, err := stream.Recv()
			return m.GetState(), err
		},
		End: func(why error) {
			if errors.Is(why, io.EOF) {
				why = nil // the peer closed its direction in order
			}
			endStream(ctx, why)
		},
	}, heartbeat.Config{
		Interval: s.cfg.HeartbeatInterval,
		Timeout:  patience,
		Current: func(ctx context.Context) (*ententev1.PeerState, error) {
			return s.cfg.Sessions.State(ctx, peer)
		},
		Watch: func(changed func()) func() { return s.cfg.Sessions.Watch(peer, changed) },
		Observe: func(ctx context.Context, state *ententev1.PeerState) error {
			return middleware.OnFreshStack("a state", func() error { return s.cfg.Sessions.Observe(ctx, peer, state) })
		},
	})
	if cause := context.Cause(ctx); errors.Is(cause, errSuperseded) {
		return errSuperseded
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if s.cfg.Silent != nil && wire.ReasonOf(err) == peering.ReasonHeartbeatLost {
		s.cfg.Silent(info.Session)
	}
	return err
}

var errSuperseded = &peering.Error{Reason: peering.ReasonSessionSuperseded, Message: "the peer opened newer streams of the same kind"}

// watchEnded returns why a peer's watch ended: a newer one superseded it, or an error, to which
// it adds what was watched.
func watchEnded(ctx context.Context, err error, what string, peer peering.ClusterID) error {
	if errors.Is(context.Cause(ctx), errSuperseded) {
		return errSuperseded
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, peer, err)
	}
	return nil
}

// streamCount limits each peer to MaxSessionsPerPeer streams of one kind: beyond that a new
// stream ends the oldest.
type streamCount struct {
	mu   sync.Mutex
	open map[peering.ClusterID][]*openStream
}

type openStream struct{ end func(error) }

func newStreamCount() *streamCount {
	return &streamCount{open: make(map[peering.ClusterID][]*openStream)}
}

func (c *streamCount) enter(ctx context.Context, peer peering.ClusterID) (context.Context, func()) {
	stream := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	own := &openStream{end: func(why error) {
		cancel(why)
		endStream(stream, why)
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if list := c.open[peer]; len(list) >= MaxSessionsPerPeer {
		list[0].end(errSuperseded)
		c.open[peer] = list[1:]
	}
	c.open[peer] = append(c.open[peer], own)
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open[peer] = slices.DeleteFunc(c.open[peer], func(o *openStream) bool { return o == own })
		if len(c.open[peer]) == 0 {
			delete(c.open, peer)
		}
	}
}

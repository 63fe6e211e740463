package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Peering negotiates contracts with one peer. Errors of its methods are
// *wire.Error: the peer's reason, or RESPONSE_INVALID where its answer makes no
// sense. The zero value is not usable; set Conn.
type Peering struct {
	// Conn leads to the peer.
	Conn grpc.ClientConnInterface
}

// Request asks the peer what it would lend.
func (p Peering) Request(ctx context.Context, ask peering.Ask) (wire.Advertisement, error) {
	resp, err := ententev1.NewPeeringServiceClient(p.Conn).RequestPeering(ctx, &ententev1.RequestPeeringRequest{Request: wire.AskTo(ask)})
	if err != nil {
		return wire.Advertisement{}, fmt.Errorf("request peering: %w", wire.FromStatus(err))
	}
	ad, err := wire.AdvertisementFrom(resp.GetAdvertisement())
	if err != nil {
		return wire.Advertisement{}, fmt.Errorf("read advertisement: %w", wire.Response(err))
	}
	if ad.RequestID != ask.RequestID {
		return wire.Advertisement{}, wire.Errorf(wire.ReasonResponseInvalid, "the peer answered request %s, not %s", ad.RequestID, ask.RequestID)
	}
	return ad, nil
}

// Sign sends a contract that this cluster signed, and returns it with the
// provider's signature: the same payload, or the one that this cluster signed
// under the same contract ID in an earlier round whose answer was lost. Either
// way what it returns verifies, so it carries this cluster's own signature.
func (p Peering) Sign(ctx context.Context, e peering.Envelope) (peering.Envelope, error) {
	resp, err := ententev1.NewPeeringServiceClient(p.Conn).SignContract(ctx, &ententev1.SignContractRequest{Envelope: wire.EnvelopeTo(e)})
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("sign contract: %w", wire.FromStatus(err))
	}
	signed, err := wire.EnvelopeFrom(resp.GetEnvelope())
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("read contract: %w", wire.Response(err))
	}
	sent, err := peering.ParseTerms(e.Payload)
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("sign contract: %w", err)
	}
	terms, err := signed.Verify()
	if err != nil {
		return peering.Envelope{}, wire.Errorf(wire.ReasonResponseInvalid, "the signatures of what the peer returned do not hold: %w", err)
	}
	if terms.ContractID != sent.ContractID || terms.RequestID != sent.RequestID ||
		terms.Consumer.ID != sent.Consumer.ID || terms.Provider.ID != sent.Provider.ID {
		return peering.Envelope{}, wire.Errorf(wire.ReasonResponseInvalid, "the peer returned another contract than it was asked to sign")
	}
	return signed, nil
}

// Terminate tells the peer that this cluster ended a contract.
func (p Peering) Terminate(ctx context.Context, contract, message string) error {
	_, err := ententev1.NewPeeringServiceClient(p.Conn).TerminateContract(ctx, &ententev1.TerminateContractRequest{
		ContractId: contract, Message: wire.Text(message, wire.MaxMessageLen),
	})
	if err != nil {
		return fmt.Errorf("terminate contract %s: %w", contract, wire.FromStatus(err))
	}
	return nil
}

// RunSession opens the exchange of states with a peer and keeps it up until ctx
// ends (then it returns nil), the peer falls silent, or anything else ends it;
// then it says why, and the caller decides when to try again.
func RunSession(ctx context.Context, conn grpc.ClientConnInterface, cfg heartbeat.Config) error {
	// The stream ends with this function, whatever ends it.
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Just after a session came up the connection may still remember that there
	// was none.
	stream, err := ententev1.NewPeeringServiceClient(conn).Session(streamCtx, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("open session: %w", wire.FromStatus(err))
	}
	err = heartbeat.Run(streamCtx, heartbeat.Stream{
		Send: func(state *ententev1.PeerState) error {
			err := stream.Send(&ententev1.SessionRequest{State: state})
			if errors.Is(err, io.EOF) {
				return nil // the stream has ended, and Recv says why
			}
			return err
		},
		Recv: func() (*ententev1.PeerState, error) {
			m, err := stream.Recv()
			return m.GetState(), err
		},
	}, cfg)
	if ctx.Err() != nil {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return errors.New("session: the peer ended it")
	}
	return fmt.Errorf("session: %w", wire.FromStatus(err))
}

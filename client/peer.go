package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Peering negotiates contracts with one peer. Errors of its methods are
// *peering.Error: the peer's reason, or RESPONSE_INVALID for an invalid response. The zero value
// is not usable; set Conn.
type Peering struct {
	// Conn leads to the peer.
	Conn grpc.ClientConnInterface
}

// Request asks the peer for an advertisement: for a new contract, or with a contract ID for the
// next revision of that one.
func (p Peering) Request(ctx context.Context, ask peering.Ask) (peering.Advertisement, error) {
	ad, err := p.request(ctx, ask, false)
	switch {
	case err != nil:
		return peering.Advertisement{}, err
	case ask.ContractID != "" && ad.ContractID != ask.ContractID:
		return peering.Advertisement{}, peering.Errorf(peering.ReasonResponseInvalid, "the peer answered for contract %s, not %s", ad.ContractID, ask.ContractID)
	}
	return ad, nil
}

// Preview asks the peer what it would respond to Request. The peer reserves nothing.
func (p Peering) Preview(ctx context.Context, ask peering.Ask) (peering.Advertisement, error) {
	return p.request(ctx, ask, true)
}

func (p Peering) request(ctx context.Context, ask peering.Ask, preview bool) (peering.Advertisement, error) {
	resp, err := ententev1.NewPeeringServiceClient(p.Conn).RequestPeering(ctx, &ententev1.RequestPeeringRequest{
		Request: wire.AskTo(ask), ValidateOnly: preview,
	})
	if err != nil {
		return peering.Advertisement{}, fmt.Errorf("request peering: %w", wire.FromStatus(err))
	}
	ad, err := wire.AdvertisementFrom(resp.GetAdvertisement(), preview)
	if err != nil {
		return peering.Advertisement{}, fmt.Errorf("read advertisement: %w", wire.Response(err))
	}
	if ad.RequestID != ask.RequestID {
		return peering.Advertisement{}, peering.Errorf(peering.ReasonResponseInvalid, "the peer answered request %s, not %s", ad.RequestID, ask.RequestID)
	}
	return ad, nil
}

// Sign sends a contract that this cluster signed, and returns it with the
// provider's signature: the same payload, or the one that this cluster signed
// under the same contract ID in an earlier round whose response was lost. Either way both
// signatures verify, so one of them is this cluster's own.
func (p Peering) Sign(ctx context.Context, e peering.Envelope) (peering.Envelope, error) {
	resp, err := ententev1.NewPeeringServiceClient(p.Conn).SignContract(ctx, &ententev1.SignContractRequest{Envelope: wire.EnvelopeTo(e)})
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("sign contract: %w", wire.FromStatus(err))
	}
	sent, err := peering.ParseTerms(e.Payload)
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("sign contract: %w", err)
	}
	signed, terms, err := verified(resp.GetEnvelope())
	if err != nil {
		return peering.Envelope{}, err
	}
	if terms.ContractID != sent.ContractID || terms.RequestID != sent.RequestID ||
		terms.Consumer.ID != sent.Consumer.ID || terms.Provider.ID != sent.Provider.ID {
		return peering.Envelope{}, peering.Errorf(peering.ReasonResponseInvalid, "the peer returned another contract than it was asked to sign")
	}
	return signed, nil
}

// Contract returns the newest revision of a contract that the peer has. Both signatures are
// verified, so one of them is this cluster's own if it is a party.
func (p Peering) Contract(ctx context.Context, contract string) (peering.Envelope, error) {
	resp, err := ententev1.NewPeeringServiceClient(p.Conn).GetContract(ctx, &ententev1.GetContractRequest{ContractId: contract})
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("get contract %s: %w", contract, wire.FromStatus(err))
	}
	envelope, terms, err := verified(resp.GetEnvelope())
	if err != nil {
		return peering.Envelope{}, err
	}
	if terms.ContractID != contract {
		return peering.Envelope{}, peering.Errorf(peering.ReasonResponseInvalid, "the peer returned contract %s, not %s", terms.ContractID, contract)
	}
	return envelope, nil
}

// verified reads a contract that both parties signed.
func verified(m *ententev1.Envelope) (peering.Envelope, peering.Terms, error) {
	envelope, err := wire.EnvelopeFrom(m)
	if err != nil {
		return peering.Envelope{}, peering.Terms{}, fmt.Errorf("read contract: %w", wire.Response(err))
	}
	terms, err := envelope.Verify()
	if err != nil {
		return peering.Envelope{}, peering.Terms{}, peering.Errorf(peering.ReasonResponseInvalid, "the signatures of the peer's contract are not valid: %w", err)
	}
	return envelope, terms, nil
}

// Statements returns the statements of use of a contract that come after a
// sequence number, oldest first. It does not verify their signatures, which takes the provider's
// keys.
func (p Peering) Statements(ctx context.Context, contract string, after uint64) ([]peering.Envelope, error) {
	resp, err := ententev1.NewPeeringServiceClient(p.Conn).ListStatements(ctx, &ententev1.ListStatementsRequest{
		ContractId: contract, AfterSequence: after,
	})
	if err != nil {
		return nil, fmt.Errorf("list statements of contract %s: %w", contract, wire.FromStatus(err))
	}
	if n := len(resp.GetStatements()); n > maxStatements {
		return nil, peering.Errorf(peering.ReasonResponseInvalid, "the peer returned %d statements at once, more than %d", n, maxStatements)
	}
	out := make([]peering.Envelope, 0, len(resp.GetStatements()))
	for _, m := range resp.GetStatements() {
		e, err := wire.EnvelopeFrom(m)
		if err != nil {
			return nil, fmt.Errorf("read statements of contract %s: %w", contract, wire.Response(err))
		}
		out = append(out, e)
	}
	return out, nil
}

// Terminate notifies the peer that this cluster ended a contract: with notice until drainUntil,
// or at once if that is zero.
func (p Peering) Terminate(ctx context.Context, contract, message string, drainUntil time.Time) error {
	req := &ententev1.TerminateContractRequest{ContractId: contract, Message: peering.Text(message, peering.MaxMessageLen)}
	if !drainUntil.IsZero() {
		req.DrainUntil = timestamppb.New(drainUntil)
	}
	if _, err := ententev1.NewPeeringServiceClient(p.Conn).TerminateContract(ctx, req); err != nil {
		return fmt.Errorf("terminate contract %s: %w", contract, wire.FromStatus(err))
	}
	return nil
}

// WatchOffer calls changed with the peer's current offer, at first and whenever it changes, until
// ctx ends (then it returns nil) or the stream fails. Flow control slows down a peer that sends
// more than offerRate.
func (p Peering) WatchOffer(ctx context.Context, changed func(peering.Offer)) error {
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel() // the stream ends with this function
	stream, err := ententev1.NewPeeringServiceClient(p.Conn).WatchOffer(streamCtx, &ententev1.WatchOfferRequest{}, grpc.WaitForReady(true))
	limit := rate.NewLimiter(offerRate, offerBurst)
	var offer peering.Offer
	for err == nil {
		if limit.Wait(ctx) != nil {
			return nil // only ctx ends it
		}
		var m *ententev1.WatchOfferResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if offer, err = wire.OfferFrom(m, offer); err != nil {
			err = wire.Response(err)
			break
		}
		changed(offer)
	}
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("watch offer: the peer ended it")
	}
	return fmt.Errorf("watch offer: %w", wire.FromStatus(err))
}

// RunSession opens the state exchange with a peer and runs it until ctx ends (then it returns
// nil), the peer falls silent, or it fails. The caller decides when to try again.
func RunSession(ctx context.Context, conn grpc.ClientConnInterface, cfg heartbeat.Config) error {
	// The stream ends with this function, whatever ends it.
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Just after a session came up, the client connection may still be in its state without one.
	stream, err := ententev1.NewPeeringServiceClient(conn).Session(streamCtx, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("open session: %w", wire.FromStatus(err))
	}
	err = heartbeat.Run(streamCtx, heartbeat.Stream{
		Send: func(state *ententev1.PeerState) error {
			err := stream.Send(&ententev1.SessionRequest{State: state})
			if errors.Is(err, io.EOF) {
				return nil // the stream has ended, and Recv returns why
			}
			return err
		},
		Recv: func() (*ententev1.PeerState, error) {
			m, err := stream.Recv()
			return m.GetState(), err
		},
		End: func(error) { cancel() },
	}, cfg)
	if ctx.Err() != nil {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return errors.New("session: the peer ended it")
	}
	return fmt.Errorf("session: %w", wire.FromStatus(err))
}

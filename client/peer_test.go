package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
)

// provider is a PeeringService whose responses a test sets.
type provider struct {
	ententev1.UnimplementedPeeringServiceServer
	request    func(*ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error)
	sign       func(*ententev1.SignContractRequest) (*ententev1.SignContractResponse, error)
	session    func(ententev1.PeeringService_SessionServer) error
	contract   func(*ententev1.GetContractRequest) (*ententev1.GetContractResponse, error)
	statements func(*ententev1.ListStatementsRequest) (*ententev1.ListStatementsResponse, error)
	terminate  func(*ententev1.TerminateContractRequest) (*ententev1.TerminateContractResponse, error)
	offer      func(ententev1.PeeringService_WatchOfferServer) error
}

func (p *provider) GetContract(_ context.Context, r *ententev1.GetContractRequest) (*ententev1.GetContractResponse, error) {
	return p.contract(r)
}

func (p *provider) ListStatements(_ context.Context, r *ententev1.ListStatementsRequest) (*ententev1.ListStatementsResponse, error) {
	return p.statements(r)
}

func (p *provider) TerminateContract(_ context.Context, r *ententev1.TerminateContractRequest) (*ententev1.TerminateContractResponse, error) {
	return p.terminate(r)
}

func (p *provider) WatchOffer(_ *ententev1.WatchOfferRequest, s ententev1.PeeringService_WatchOfferServer) error {
	return p.offer(s)
}

func (p *provider) RequestPeering(_ context.Context, r *ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error) {
	return p.request(r)
}

func (p *provider) SignContract(_ context.Context, r *ententev1.SignContractRequest) (*ententev1.SignContractResponse, error) {
	return p.sign(r)
}

func (p *provider) Session(s ententev1.PeeringService_SessionServer) error { return p.session(s) }

func serveProvider(t testing.TB, p *provider) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	s := wiretest.NewServer()
	ententev1.RegisterPeeringServiceServer(s, p)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func terms(consumer, provider *identity.Source) peering.Terms {
	now := time.Now().UTC().Truncate(time.Second)
	return peering.Terms{
		ContractID: "c-1", RequestID: "r-1", Revision: 1, Consumer: consumer.Identity().Party(), Provider: provider.Identity().Party(), NotBefore: now, NotAfter: now.Add(time.Hour),
		Clauses: peering.Clauses{
			Resources: peering.Resources{"cpu": peering.Whole(1)}, PodSecurity: peering.PodSecurityBaseline, Exposure: peering.ExposureOffloaded,
		},
	}
}

func signed(t testing.TB, terms peering.Terms, by ...*identity.Source) peering.Envelope {
	t.Helper()
	e, err := peering.NewEnvelope(terms)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range by {
		if e, err = e.Sign(rand.Reader, s.Identity().ID(), s.Identity().Signer()); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

func TestOnlyTheContractThatWasSentComesBackSigned(t *testing.T) {
	home, foreign, stranger := newSource(t), newSource(t), newSource(t)
	mine := signed(t, terms(home, foreign), home)
	longer := terms(home, foreign)
	longer.NotAfter = longer.NotAfter.Add(time.Hour)
	another := terms(home, foreign)
	another.ContractID = "c-2"
	for name, tc := range map[string]struct {
		answer peering.Envelope
		want   peering.Reason
	}{
		"signed by both":                      {signed(t, terms(home, foreign), home, foreign), ""},
		"not signed by the provider":          {mine, peering.ReasonResponseInvalid},
		"signed by a third":                   {signed(t, terms(home, foreign), home, stranger), peering.ReasonResponseInvalid},
		"of an earlier round, signed by both": {signed(t, longer, home, foreign), ""},
		"other terms, never signed here":      {signed(t, longer, foreign), peering.ReasonResponseInvalid},
		"another contract, signed by both":    {signed(t, another, home, foreign), peering.ReasonResponseInvalid},
		"nothing":                             {peering.Envelope{}, peering.ReasonResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			p := &provider{sign: func(*ententev1.SignContractRequest) (*ententev1.SignContractResponse, error) {
				return &ententev1.SignContractResponse{Envelope: wire.EnvelopeTo(tc.answer)}, nil
			}}
			_, err := Peering{Conn: serveProvider(t, p)}.Sign(t.Context(), mine)
			if got := wire.ReasonOf(err); got != tc.want {
				t.Errorf("got %v (%s), want %q", err, got, tc.want)
			}
		})
	}
}

// advertisement is one that makes sense.
func advertisement(change func(*peering.Advertisement)) peering.Advertisement {
	ad := peering.Advertisement{ContractID: "c", RequestID: "r", Revision: 1, ValidUntil: time.Now(), Grant: peering.Grant{
		Duration: time.Hour,
		Clauses: peering.Clauses{
			Resources: peering.Resources{"cpu": peering.Whole(1)}, PodSecurity: peering.PodSecurityBaseline, StatementPeriod: time.Hour, Exposure: peering.ExposureOffloaded,
		},
	}}
	if change != nil {
		change(&ad)
	}
	return ad
}

func TestAnAdvertisementAnswersItsRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		ask     peering.Ask
		preview bool
		answer  peering.Advertisement
		want    peering.Reason
	}{
		"a new contract":         {peering.Ask{RequestID: "r"}, false, advertisement(nil), ""},
		"another request's":      {peering.Ask{RequestID: "other"}, false, advertisement(nil), peering.ReasonResponseInvalid},
		"the next revision":      {peering.Ask{RequestID: "r", ContractID: "c"}, false, advertisement(func(a *peering.Advertisement) { a.Revision, a.PreviousHash = 2, peering.Hash{1} }), ""},
		"another contract's":     {peering.Ask{RequestID: "r", ContractID: "c-2"}, false, advertisement(nil), peering.ReasonResponseInvalid},
		"without a contract":     {peering.Ask{RequestID: "r"}, false, advertisement(func(a *peering.Advertisement) { a.ContractID = "" }), peering.ReasonResponseInvalid},
		"a preview":              {peering.Ask{RequestID: "r"}, true, advertisement(func(a *peering.Advertisement) { a.ContractID = "" }), ""},
		"a preview to be signed": {peering.Ask{RequestID: "r"}, true, advertisement(nil), peering.ReasonResponseInvalid},
		"a preview of another":   {peering.Ask{RequestID: "other"}, true, advertisement(func(a *peering.Advertisement) { a.ContractID = "" }), peering.ReasonResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			p := &provider{request: func(r *ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error) {
				if r.GetValidateOnly() != tc.preview || r.GetRequest().GetContractId() != tc.ask.ContractID {
					t.Errorf("asked %v", r)
				}
				return &ententev1.RequestPeeringResponse{Advertisement: wire.AdvertisementTo(tc.answer)}, nil
			}}
			ask := Peering{Conn: serveProvider(t, p)}.Request
			if tc.preview {
				ask = Peering{Conn: serveProvider(t, p)}.Preview
			}
			if got, err := ask(t.Context(), tc.ask); wire.ReasonOf(err) != tc.want {
				t.Errorf("got %+v, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestARefusalKeepsItsReason(t *testing.T) {
	p := &provider{request: func(*ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error) {
		return nil, wire.Status(&peering.Error{Reason: peering.ReasonPolicyPending, Message: "wait", RetryAfter: time.Minute}).Err()
	}}
	_, err := Peering{Conn: serveProvider(t, p)}.Request(t.Context(), peering.Ask{RequestID: "r"})
	if e := wire.FromStatus(err); e.Reason != peering.ReasonPolicyPending || e.RetryAfter != time.Minute {
		t.Errorf("a refusal: %v", err)
	}
}

func TestAContractIsTakenOnlyWithBothSignatures(t *testing.T) {
	home, foreign, stranger := newSource(t), newSource(t), newSource(t)
	another := terms(home, foreign)
	another.ContractID = "c-2"
	for name, tc := range map[string]struct {
		answer peering.Envelope
		want   peering.Reason
	}{
		"signed by both":                 {signed(t, terms(home, foreign), home, foreign), ""},
		"signed by the provider alone":   {signed(t, terms(home, foreign), foreign), peering.ReasonResponseInvalid},
		"with a stranger's signature":    {signed(t, terms(home, foreign), foreign, stranger), peering.ReasonResponseInvalid},
		"another contract":               {signed(t, another, home, foreign), peering.ReasonResponseInvalid},
		"nothing":                        {peering.Envelope{}, peering.ReasonResponseInvalid},
		"bytes that are not a contract":  {peering.Envelope{Payload: []byte("{}"), PayloadType: peering.PayloadType}, peering.ReasonResponseInvalid},
		"a count in place of a contract": {peering.Envelope{Payload: []byte("{}"), PayloadType: peering.StatementPayloadType}, peering.ReasonResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			p := &provider{contract: func(r *ententev1.GetContractRequest) (*ententev1.GetContractResponse, error) {
				return &ententev1.GetContractResponse{Envelope: wire.EnvelopeTo(tc.answer)}, nil
			}}
			if _, err := (Peering{Conn: serveProvider(t, p)}).Contract(t.Context(), "c-1"); wire.ReasonOf(err) != tc.want {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestStatementsAreBounded(t *testing.T) {
	one := &ententev1.Envelope{Payload: []byte("{}"), PayloadType: peering.StatementPayloadType}
	for name, tc := range map[string]struct {
		answer []*ententev1.Envelope
		want   peering.Reason
	}{
		"none":            {nil, ""},
		"some":            {[]*ententev1.Envelope{one, one}, ""},
		"more than asked": {slices.Repeat([]*ententev1.Envelope{one}, maxStatements+1), peering.ReasonResponseInvalid},
		"an empty one":    {[]*ententev1.Envelope{{}}, peering.ReasonResponseInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			p := &provider{statements: func(r *ententev1.ListStatementsRequest) (*ententev1.ListStatementsResponse, error) {
				if r.GetContractId() != "c-1" || r.GetAfterSequence() != 7 {
					t.Errorf("asked %v", r)
				}
				return &ententev1.ListStatementsResponse{Statements: tc.answer}, nil
			}}
			got, err := Peering{Conn: serveProvider(t, p)}.Statements(t.Context(), "c-1", 7)
			if wire.ReasonOf(err) != tc.want || err == nil && len(got) != len(tc.answer) {
				t.Errorf("got %d, %v, want %q", len(got), err, tc.want)
			}
		})
	}
}

func TestAnEndIsSentWithItsNotice(t *testing.T) {
	until := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var received *ententev1.TerminateContractRequest
	p := &provider{terminate: func(r *ententev1.TerminateContractRequest) (*ententev1.TerminateContractResponse, error) {
		received = r
		return &ententev1.TerminateContractResponse{}, nil
	}}
	c := Peering{Conn: serveProvider(t, p)}
	if err := c.Terminate(t.Context(), "c-1", "enough", until); err != nil || !received.GetDrainUntil().AsTime().Equal(until) || received.GetMessage() != "enough" {
		t.Errorf("received %v, %v", received, err)
	}
	if err := c.Terminate(t.Context(), "c-1", "now", time.Time{}); err != nil || received.GetDrainUntil() != nil {
		t.Errorf("received %v, %v", received, err)
	}
}

func TestAnOfferIsFollowedUntilItEnds(t *testing.T) {
	cpu := func(n int64) peering.Offer {
		return peering.Offer{Available: true, Resources: peering.Resources{"cpu": peering.Whole(n)}}
	}
	for name, tc := range map[string]struct {
		send    []*ententev1.WatchOfferResponse
		receive []string // the processors of each offer
		want    string
	}{
		"an offer and another":       {[]*ententev1.WatchOfferResponse{wire.OfferTo(cpu(4), nil), wire.OfferTo(cpu(3), nil)}, []string{"4", "3"}, "ended it"},
		"nonsense after the first":   {[]*ententev1.WatchOfferResponse{wire.OfferTo(cpu(4), nil), {Offer: &ententev1.Offer{Price: &ententev1.PriceList{Currency: "x", PerHour: map[string]string{"cpu": "1"}}}}}, []string{"4"}, "offer.price"},
		"a message without an offer": {[]*ententev1.WatchOfferResponse{{ServicesUnchanged: true}}, nil, "offer"},
		"nothing at all":             {nil, nil, "ended it"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &provider{offer: func(s ententev1.PeeringService_WatchOfferServer) error {
				for _, m := range tc.send {
					if err := s.Send(m); err != nil {
						return err
					}
				}
				return nil
			}}
			var received []string
			err := Peering{Conn: serveProvider(t, p)}.WatchOffer(t.Context(), func(o peering.Offer) { received = append(received, o.Resources["cpu"].String()) })
			if !slices.Equal(received, tc.receive) || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("received %v, want %v; %v, want %q", received, tc.receive, err, tc.want)
			}
		})
	}
	t.Run("this side has enough", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &provider{offer: func(s ententev1.PeeringService_WatchOfferServer) error {
			err := s.Send(wire.OfferTo(cpu(4), nil))
			<-s.Context().Done()
			return err
		}}
		if err := (Peering{Conn: serveProvider(t, p)}).WatchOffer(ctx, func(peering.Offer) { cancel() }); err != nil {
			t.Error(err)
		}
	})
}

// TestOffersWithoutPauseAreReadSlowly: messages are read at a limited rate, however many a peer
// sends.
func TestOffersWithoutPauseAreReadSlowly(t *testing.T) {
	p := &provider{offer: func(s ententev1.PeeringService_WatchOfferServer) error {
		for n := int64(1); s.Context().Err() == nil; n++ {
			if err := s.Send(wire.OfferTo(peering.Offer{Available: true, Resources: peering.Resources{"cpu": peering.Whole(n)}}, nil)); err != nil {
				return err
			}
		}
		return nil
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	received, begin := 0, time.Now()
	if err := (Peering{Conn: serveProvider(t, p)}).WatchOffer(ctx, func(peering.Offer) { received++ }); err != nil {
		t.Error(err)
	}
	took := time.Since(begin)
	if most := offerBurst + int(offerRate*took.Seconds()) + 1; received > most {
		t.Errorf("received %d offers in %s, want at most %d", received, took, most)
	}
}

func TestASessionGoesOnUntilOneSideEndsIt(t *testing.T) {
	for name, tc := range map[string]struct {
		serve func(ententev1.PeeringService_SessionServer) error
		want  string
	}{
		"the peer ends it": {func(ententev1.PeeringService_SessionServer) error { return nil }, "the peer ended it"},
		"the peer refuses it": {func(ententev1.PeeringService_SessionServer) error {
			return wire.Status(&peering.Error{Reason: peering.ReasonPeerNotTrusted, Message: "no more"}).Err()
		}, "no more"},
		"the peer falls silent": {func(s ententev1.PeeringService_SessionServer) error { <-s.Context().Done(); return nil }, "sent nothing"},
		"the peer sends an invalid state": {func(s ententev1.PeeringService_SessionServer) error {
			err := s.Send(&ententev1.SessionResponse{State: &ententev1.PeerState{Sequence: 1, Endpoints: []string{"x"}}})
			<-s.Context().Done()
			return err
		}, "endpoint"},
		"this side has enough": {func(s ententev1.PeeringService_SessionServer) error {
			err := s.Send(&ententev1.SessionResponse{State: &ententev1.PeerState{Sequence: 1}})
			<-s.Context().Done()
			return err
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			interval := time.Minute
			if tc.want == "sent nothing" {
				interval = 100 * time.Millisecond
			}
			err := RunSession(ctx, serveProvider(t, &provider{session: tc.serve}), heartbeat.Config{
				Interval: interval,
				Current: func(context.Context) (*ententev1.PeerState, error) {
					return &ententev1.PeerState{Protocol: 1}, nil
				},
				Observe: func(_ context.Context, s *ententev1.PeerState) error {
					if tc.want == "" {
						cancel()
					}
					return nil
				},
			})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// fakeDatagrams takes frames, or fails.
type fakeDatagrams struct {
	took chan []byte
	err  error
}

func (f *fakeDatagrams) Receive(_ context.Context, _ peering.ClusterID, frames []byte) error {
	if f.err != nil {
		return f.err
	}
	f.took <- bytes.Clone(frames)
	return nil
}

func TestOnlyDatagramsOfATrustedPeerAreTaken(t *testing.T) {
	d := &fakeDatagrams{took: make(chan []byte, 4)}
	p := newPeerTest(t, func(cfg *PeerConfig) { cfg.Datagrams = d })
	send := func(frames ...[]byte) error {
		stream, err := ententev1.NewRelayServiceClient(p.dial(t, p.caller)).SendDatagrams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range frames {
			if stream.Send(&ententev1.SendDatagramsRequest{Frames: f}) != nil {
				break
			}
		}
		_, err = stream.CloseAndRecv()
		return err
	}
	if err := send([]byte("x")); wire.ReasonOf(err) != peering.ReasonPeerNotTrusted {
		t.Errorf("of a stranger: %v", err)
	}
	p.trustCaller(t)
	if err := send([]byte("one"), []byte("two")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "two"} {
		if got := <-d.took; string(got) != want {
			t.Errorf("took %q, want %q", got, want)
		}
	}
	if err := send(make([]byte, 64<<10+1)); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("a message that is too long: %v", err)
	}
	for want, failure := range map[peering.Reason]error{
		peering.ReasonRequestInvalid: errors.New("truncated"),
		peering.ReasonPolicyRefused:  peering.Errorf(peering.ReasonPolicyRefused, "no tunnel"),
	} {
		d.err = failure
		if err := send([]byte("x")); wire.ReasonOf(err) != want {
			t.Errorf("%v became %v", failure, err)
		}
	}
}

func TestWithoutRelayingDatagramsAreRefused(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	stream, err := ententev1.NewRelayServiceClient(p.dial(t, p.caller)).SendDatagrams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&ententev1.SendDatagramsRequest{Frames: []byte("x")})
	if _, err := stream.CloseAndRecv(); wire.ReasonOf(err) != peering.ReasonPolicyRefused {
		t.Errorf("got %v", err)
	}
}

// fakeCarrier sends back what comes, and records the targets that it was called for.
type fakeCarrier struct{ asked chan string }

func (f *fakeCarrier) Carry(_ context.Context, from peering.ClusterID, nonce [16]byte, name [32]byte, s CarryStream) error {
	f.asked <- "to " + string(nonce[:]) + " " + string(name[:]) + " for " + string(from)
	return f.echo(s)
}

func (f *fakeCarrier) Take(_ context.Context, third peering.ClusterID, s CarryStream) error {
	f.asked <- "from " + string(third)
	return f.echo(s)
}

func (f *fakeCarrier) echo(s CarryStream) error {
	if err := s.Send(nil); err != nil {
		return err
	}
	for {
		data, err := s.Recv()
		if err != nil {
			return err
		}
		if string(data) == "end" {
			s.End(nil)
			continue
		}
		if err := s.Send(data); err != nil {
			return err
		}
	}
}

type carryCall = grpc.BidiStreamingClient[ententev1.CarryRequest, ententev1.CarryResponse]

// carryTest has a peer that is trusted call a server.
func carryTest(t *testing.T, trusted bool) (f *fakeCarrier, caller string, call func(...*ententev1.CarryRequest) carryCall) {
	f = &fakeCarrier{asked: make(chan string, 4)}
	p := newPeerTest(t, func(cfg *PeerConfig) { cfg.Carrier = f })
	if trusted {
		p.trustCaller(t)
	}
	client := ententev1.NewRelayServiceClient(p.dial(t, p.caller))
	return f, string(p.caller.ID()), func(requests ...*ententev1.CarryRequest) carryCall {
		stream, err := client.Carry(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range requests {
			if stream.Send(r) != nil {
				break
			}
		}
		return stream
	}
}

// answer returns what ends a call.
func answer(stream carryCall) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func target(nonce, name int) *ententev1.CarryRequest {
	return &ententev1.CarryRequest{Target: &ententev1.CarryTarget{Nonce: bytes.Repeat([]byte("n"), nonce), Name: bytes.Repeat([]byte("t"), name)}}
}

func TestAConnectionOfATrustedPeerIsCarriedOrTaken(t *testing.T) {
	f, caller, call := carryTest(t, true)
	for want, first := range map[string]*ententev1.CarryRequest{
		"to nnnnnnnnnnnnnnnn tttttttttttttttttttttttttttttttt for " + caller: target(16, 32),
		"from " + caller: {},
	} {
		stream := call(first, &ententev1.CarryRequest{Data: []byte("hello")}, &ententev1.CarryRequest{Data: make([]byte, 16384)})
		for _, n := range []int{0, 5, 16384} {
			if m, err := stream.Recv(); err != nil || len(m.GetData()) != n {
				t.Fatalf("got %d bytes, %v; want %d", len(m.GetData()), err, n)
			}
		}
		if got := <-f.asked; got != want {
			t.Errorf("asked %q, want %q", got, want)
		}
		if err := stream.Send(&ententev1.CarryRequest{Data: []byte("end")}); err != nil {
			t.Fatal(err)
		}
		if err := answer(stream); !errors.Is(err, io.EOF) {
			t.Errorf("a connection that was closed: %v", err)
		}
	}
}

func TestHostileRequestsToCarryAreRefused(t *testing.T) {
	f, _, call := carryTest(t, true)
	data := func(n int) *ententev1.CarryRequest { return &ententev1.CarryRequest{Data: make([]byte, n)} }
	with := target(16, 32)
	with.Data = []byte("x")
	for name, requests := range map[string][]*ententev1.CarryRequest{
		"a first request with data":       {data(1)},
		"a target with data":              {with},
		"a name that is too short":        {target(16, 31)},
		"a name that is too long":         {target(16, 1<<20)},
		"a nonce that is missing":         {target(0, 32)},
		"a first request that is large":   {data(1 << 20)},
		"a message beyond the limit":      {{}, data(16385)},
		"another target in the middle":    {{}, target(16, 32)},
		"another target, and with data":   {{}, data(1), with},
		"a message far beyond, to a peer": {target(16, 32), data(1 << 20)},
	} {
		if err := answer(call(requests...)); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-f.asked:
		default:
		}
	}
	if err := answer(call(data(MaxMessage + 1))); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message larger than any: %v", err)
	}
}

func TestACallWithoutATargetTimesOut(t *testing.T) {
	_, _, call := carryTest(t, true)
	began := time.Now()
	if err := answer(call()); wire.ReasonOf(err) != peering.ReasonRequestInvalid || time.Since(began) < CarryOpenTimeout {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}

func TestCarryIsRefusedToStrangersAndWithoutACarrier(t *testing.T) {
	_, _, call := carryTest(t, false)
	if err := answer(call(target(16, 32))); wire.ReasonOf(err) != peering.ReasonPeerNotTrusted {
		t.Errorf("a stranger: %v", err)
	}
	p := newPeerTest(t)
	p.trustCaller(t)
	stream, err := ententev1.NewRelayServiceClient(p.dial(t, p.caller)).Carry(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := answer(stream); wire.ReasonOf(err) != peering.ReasonPolicyRefused {
		t.Errorf("without a carrier: %v", err)
	}
}

func TestAConnectionEndsWithTheTrustInItsCaller(t *testing.T) {
	f := &fakeCarrier{asked: make(chan string, 1)}
	p := newPeerTest(t, func(cfg *PeerConfig) { cfg.Carrier = f })
	p.trustCaller(t)
	stream, err := ententev1.NewRelayServiceClient(p.dial(t, p.caller)).Carry(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(target(16, 32)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	p.bundles.Remove(p.caller.ID())
	if err := answer(stream); wire.ReasonOf(err) != peering.ReasonPeerNotTrusted {
		t.Errorf("got %v", err)
	}
}

package server

import (
	"bytes"
	"context"
	"errors"
	"testing"

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

func TestDatagramsOfATrustedPeerAreTakenAndOfNobodyElse(t *testing.T) {
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

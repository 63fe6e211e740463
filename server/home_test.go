package server

import (
	"context"
	"testing"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// fakeHomeAPI sends back what comes, and records the pods that it was called for.
type fakeHomeAPI struct{ fakeCarrier }

func (f *fakeHomeAPI) Connect(_ context.Context, provider peering.ClusterID, contract, uid string, s CarryStream) error {
	f.asked <- contract + " " + uid + " at " + string(provider)
	if uid == "gone" {
		return peering.Errorf(peering.ReasonPodUnknown, "no such pod")
	}
	return f.echo(s)
}

func TestATrustedProviderConnectsPodsToTheAPIOfTheirHome(t *testing.T) {
	home := &fakeHomeAPI{fakeCarrier{asked: make(chan string, 4)}}
	p := newPeerTest(t, func(cfg *PeerConfig) { cfg.HomeAPI = home })
	open := func(first *ententev1.ConnectAPIRequest) (ententev1.HomeService_ConnectAPIClient, error) {
		stream, err := ententev1.NewHomeServiceClient(p.dial(t, p.caller)).ConnectAPI(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(first) // Recv returns why it failed
		_, err = stream.Recv()
		return stream, err
	}
	start := func(uid string) *ententev1.ConnectAPIRequest {
		return &ententev1.ConnectAPIRequest{Message: &ententev1.ConnectAPIRequest_Start_{Start: &ententev1.ConnectAPIRequest_Start{ContractId: "c1", PodUid: uid}}}
	}
	data := func(b string) *ententev1.ConnectAPIRequest {
		return &ententev1.ConnectAPIRequest{Message: &ententev1.ConnectAPIRequest_Data{Data: []byte(b)}}
	}
	if _, err := open(start("u1")); wire.ReasonOf(err) != peering.ReasonPeerNotTrusted {
		t.Errorf("a stranger: %v", err)
	}
	p.trustCaller(t)
	stream, err := open(start("u1"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := <-home.asked, "c1 u1 at "+string(p.caller.ID()); got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
	if err := stream.Send(data("GET /")); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || string(m.GetData()) != "GET /" {
		t.Errorf("got %q, %v", m.GetData(), err)
	}
	if err := stream.Send(start("u2")); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("a second start: %v", err)
	}
	if _, err := open(start("gone")); wire.ReasonOf(err) != peering.ReasonPodUnknown {
		t.Errorf("a pod that is gone: %v", err)
	}
	for name, first := range map[string]*ententev1.ConnectAPIRequest{"data first": data("x"), "nothing": {}, "no UID": start(""), "a long UID": start(string(make([]byte, 65)))} {
		if _, err := open(first); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

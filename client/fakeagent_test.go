package client_test

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
)

// fakeAgent is an agent that peers at once with any cluster. The examples use it.
type fakeAgent struct {
	ententev1.UnimplementedAdminServiceServer

	mu       sync.Mutex
	peers    []*ententev1.Peer
	peerings map[string]*ententev1.Peering
	usage    []*ententev1.Usage
	pending  []*ententev1.PendingRequest
	// watchers hear what happens.
	watchers map[chan *ententev1.WatchEventsResponse]bool
	// watch, if it is set, takes the place of WatchEvents.
	watch func(*ententev1.WatchEventsRequest, grpc.ServerStreamingServer[ententev1.WatchEventsResponse]) error
}

func newFakeAgent() *fakeAgent {
	return &fakeAgent{
		peerings: map[string]*ententev1.Peering{}, watchers: map[chan *ententev1.WatchEventsResponse]bool{},
		peers: []*ententev1.Peer{peer("home-lab", "Approved"), peer("office", "Approved")},
	}
}

func peer(name, decision string) *ententev1.Peer {
	return &ententev1.Peer{
		Name: "peers/" + name, Decision: decision, Role: "None",
		Conditions: []*ententev1.Condition{{Type: "Trusted", Status: "True"}, {Type: "Offloading", Status: "False", Message: "no contract is in force"}},
	}
}

// dial returns a connection to the agent, which ends with stop.
func (f *fakeAgent) dial() (admin *client.Admin, stop func()) {
	l := bufconn.Listen(1 << 20)
	s := wiretest.NewServer()
	ententev1.RegisterAdminServiceServer(s, f)
	go func() { _ = s.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		panic(err)
	}
	return client.NewAdmin(conn), func() {
		_ = conn.Close()
		s.Stop()
	}
}

func refuse(reason peering.Reason, message string) error {
	return wire.Status(&peering.Error{Reason: reason, Message: message}).Err()
}

// happen sends an event to all watchers.
func (f *fakeAgent) happen(e *ententev1.WatchEventsResponse) {
	for w := range f.watchers {
		w <- e
	}
}

func (f *fakeAgent) find(name string) (*ententev1.Peer, error) {
	for _, p := range f.peers {
		if p.GetName() == name {
			return p, nil
		}
	}
	return nil, refuse(peering.ReasonPeerUnknown, "no peer "+name)
}

func (f *fakeAgent) CreateToken(context.Context, *ententev1.CreateTokenRequest) (*ententev1.CreateTokenResponse, error) {
	return &ententev1.CreateTokenResponse{Token: "ent1.example", TokenId: "example"}, nil
}

func (f *fakeAgent) JoinPeer(_ context.Context, r *ententev1.JoinPeerRequest) (*ententev1.JoinPeerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !strings.HasPrefix(r.GetToken(), "ent1.") {
		return nil, refuse(peering.ReasonTokenMalformed, "this is not a token")
	}
	f.peers = append(f.peers, peer(r.GetName(), ""))
	return &ententev1.JoinPeerResponse{Peer: f.peers[len(f.peers)-1]}, nil
}

func (f *fakeAgent) IntroducePeer(_ context.Context, r *ententev1.IntroducePeerRequest) (*ententev1.IntroducePeerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := peer(r.GetName(), "")
	p.Code = "042917"
	f.peers = append(f.peers, p)
	return &ententev1.IntroducePeerResponse{Peer: p}, nil
}

func (f *fakeAgent) ApprovePeer(_ context.Context, r *ententev1.ApprovePeerRequest) (*ententev1.ApprovePeerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(r.GetName())
	if err != nil {
		return nil, err
	}
	if strings.ReplaceAll(r.GetCode(), " ", "") != p.GetCode() {
		return nil, refuse(peering.ReasonCodeMismatch, "the code is not the one of this cluster")
	}
	p.Decision = "Approved"
	return &ententev1.ApprovePeerResponse{Peer: proto.CloneOf(p)}, nil
}

func (f *fakeAgent) GetPeer(_ context.Context, r *ententev1.GetPeerRequest) (*ententev1.GetPeerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.find(r.GetName())
	if err != nil {
		return nil, err
	}
	return &ententev1.GetPeerResponse{Peer: proto.CloneOf(p)}, nil
}

// ListPeers has pages of one.
func (f *fakeAgent) ListPeers(_ context.Context, r *ententev1.ListPeersRequest) (*ententev1.ListPeersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := strconv.Atoi(r.GetPageToken())
	if i < 0 {
		return nil, refuse(peering.ReasonRequestInvalid, "a token of no page")
	}
	resp := &ententev1.ListPeersResponse{}
	if i < len(f.peers) {
		resp.Peers = []*ententev1.Peer{proto.CloneOf(f.peers[i])}
	}
	if i+1 < len(f.peers) {
		resp.NextPageToken = strconv.Itoa(i + 1)
	}
	return resp, nil
}

func (f *fakeAgent) ListUsage(context.Context, *ententev1.ListUsageRequest) (*ententev1.ListUsageResponse, error) {
	return &ententev1.ListUsageResponse{Usage: f.usage}, nil
}

func (f *fakeAgent) ListPeeringRequests(context.Context, *ententev1.ListPeeringRequestsRequest) (*ententev1.ListPeeringRequestsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &ententev1.ListPeeringRequestsResponse{Requests: slices.Clone(f.pending)}, nil
}

func (f *fakeAgent) ApprovePeeringRequest(_ context.Context, r *ententev1.ApprovePeeringRequestRequest) (*ententev1.ApprovePeeringRequestResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = slices.DeleteFunc(f.pending, func(p *ententev1.PendingRequest) bool { return p.GetName() == r.GetName() })
	return &ententev1.ApprovePeeringRequestResponse{}, nil
}

func (f *fakeAgent) CreatePeering(_ context.Context, r *ententev1.CreatePeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, provider := r.GetPeeringRequest(), r.GetPeer()
	if name == "" {
		name = strings.TrimPrefix(provider, "peers/")
	}
	if provider == "peers/-" {
		provider = "peers/office"
	}
	if _, err := f.find(provider); err != nil {
		return nil, err
	}
	if r.GetValidateOnly() {
		return &ententev1.CreatePeeringResponse{PeeringRequest: name, Provider: provider, Advertisement: &ententev1.Advertisement{
			Resources: r.GetResources(), HourlyPrice: &ententev1.Money{Currency: "EUR", Amount: "0.08"},
		}}, nil
	}
	if f.peerings[name] != nil {
		return nil, refuse(peering.ReasonPeeringExists, "there is a peering "+name)
	}
	f.peerings[name] = &ententev1.Peering{Name: "peerings/" + name, Peer: r.GetPeer(), Resources: r.GetResources()}
	go f.fulfil(name, provider)
	return &ententev1.CreatePeeringResponse{PeeringRequest: name}, nil
}

// fulfil does what two agents do: a contract, then its virtual node.
func (f *fakeAgent) fulfil(name, provider string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.peerings[name]
	p.Provider, p.Contract, p.Node = provider, "contracts/k1", "entente-k1"
	p.Accepted = &ententev1.Condition{Type: "Accepted", Status: "True", Reason: "Signed", Message: "signed by both"}
	f.happen(&ententev1.WatchEventsResponse{Peer: provider, Subject: p.GetName(), Reason: "Signed"})
	providing, err := f.find(provider)
	if err != nil {
		return
	}
	providing.Conditions[1].Status, providing.Conditions[1].Message = "True", "the virtual node takes pods"
	f.happen(&ententev1.WatchEventsResponse{Peer: provider, Subject: provider, Reason: "NodeReady"})
}

func (f *fakeAgent) GetPeering(_ context.Context, r *ententev1.GetPeeringRequest) (*ententev1.GetPeeringResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.peerings[strings.TrimPrefix(r.GetName(), "peerings/")]
	if p == nil {
		return nil, refuse(peering.ReasonPeeringUnknown, "there is no "+r.GetName())
	}
	return &ententev1.GetPeeringResponse{Peering: proto.CloneOf(p)}, nil
}

func (f *fakeAgent) UpdatePeering(_ context.Context, r *ententev1.UpdatePeeringRequest) (*ententev1.UpdatePeeringResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.peerings[strings.TrimPrefix(r.GetPeering().GetName(), "peerings/")]
	if p == nil {
		return nil, refuse(peering.ReasonPeeringUnknown, "there is no "+r.GetPeering().GetName())
	}
	p.Resources = r.GetPeering().GetResources()
	return &ententev1.UpdatePeeringResponse{Peering: proto.CloneOf(p)}, nil
}

func (f *fakeAgent) WatchEvents(r *ententev1.WatchEventsRequest, stream grpc.ServerStreamingServer[ententev1.WatchEventsResponse]) error {
	if f.watch != nil {
		return f.watch(r, stream)
	}
	w := make(chan *ententev1.WatchEventsResponse, 64)
	f.mu.Lock()
	f.watchers[w] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watchers, w)
	}()
	if err := stream.SendHeader(metadata.Pairs("x", "y")); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case e := <-w:
			if r.GetPeer() != "" && e.GetPeer() != r.GetPeer() {
				continue
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}

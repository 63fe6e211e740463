package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
)

// world is a pair of clusters in which peering takes a few polls.
type world struct {
	mu    sync.Mutex
	clock time.Time

	consumer, provider *fakeCluster
	// stuck names the hop at which the peering stays: Trusted, Connected,
	// Contract, Network or Offloading. refuse makes the provider say no.
	stuck, refuse string
	// joined, asked and ending are how far the two are; the numbers are polls.
	joined, asked, noNetwork bool
	polls                    int
	ending                   int
	now, forgotten           bool
	pods                     int32
	noDrain                  bool
	// away is the polls at which the API servers do not answer.
	away map[int]bool
	// hidden says that the provider cannot be dialled.
	hidden bool
}

type fakeCluster struct {
	ententev1.UnimplementedAdminServiceServer
	w        *world
	id, name string
	consumer bool
	err      *wire.Error
	requests []string
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newWorld() *world {
	w := &world{clock: epoch}
	w.consumer = &fakeCluster{w: w, id: strings.Repeat("c", 32), name: "consumer", consumer: true}
	w.provider = &fakeCluster{w: w, id: strings.Repeat("p", 32), name: "provider"}
	return w
}

func (c *fakeCluster) other() *fakeCluster {
	if c.consumer {
		return c.w.provider
	}
	return c.w.consumer
}

func (c *fakeCluster) enter(request string) error {
	c.w.mu.Lock()
	c.requests = append(c.requests, request)
	if c.err != nil {
		return c.err.GRPCStatus().Err()
	}
	return nil
}

func (c *fakeCluster) GetInfo(context.Context, *ententev1.GetInfoRequest) (*ententev1.GetInfoResponse, error) {
	err := c.enter("GetInfo")
	defer c.w.mu.Unlock()
	return &ententev1.GetInfoResponse{
		ClusterId: c.id, ClusterName: c.name, Version: "v0.1.0", Endpoints: []string{c.name + ".example:7443"}, Peers: 1, Protocol: 1,
	}, err
}

func (c *fakeCluster) CreateToken(_ context.Context, r *ententev1.CreateTokenRequest) (*ententev1.CreateTokenResponse, error) {
	err := c.enter("CreateToken " + r.GetTtl().AsDuration().String())
	defer c.w.mu.Unlock()
	return &ententev1.CreateTokenResponse{Token: "ent1.fake-token.checksum", TokenId: "fake", ExpireTime: timestamppb.New(epoch.Add(15 * time.Minute))}, err
}

func (c *fakeCluster) JoinPeer(_ context.Context, r *ententev1.JoinPeerRequest) (*ententev1.JoinPeerResponse, error) {
	err := c.enter("JoinPeer " + r.GetToken() + " " + r.GetName())
	defer c.w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if c.w.hidden && c.consumer {
		return nil, (&wire.Error{Reason: wire.ReasonPeerUnreachable, Message: "cannot connect to provider.example:7443: no answer within 10s"}).GRPCStatus().Err()
	}
	c.w.joined = true
	return &ententev1.JoinPeerResponse{Peer: c.peer()}, nil
}

func (c *fakeCluster) CreatePeering(_ context.Context, r *ententev1.CreatePeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	err := c.enter(fmt.Sprintf("CreatePeering %s %s %s %v", r.GetPeer(), amounts(r.GetResources()), r.GetDuration().AsDuration(), r.GetNoNetwork()))
	defer c.w.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case !c.w.joined:
		return nil, (&wire.Error{Reason: wire.ReasonPeerUnknown, Message: `no peer "office" is known here`}).GRPCStatus().Err()
	case c.w.asked:
		return nil, (&wire.Error{Reason: wire.ReasonPeeringExists, Message: "asked already", Metadata: map[string]string{"resourceSlice": "provider", "peer": "provider"}}).GRPCStatus().Err()
	}
	c.w.asked, c.w.noNetwork, c.w.polls = true, r.GetNoNetwork(), 0
	return &ententev1.CreatePeeringResponse{ResourceSlice: "provider"}, nil
}

func (c *fakeCluster) EndPeering(_ context.Context, r *ententev1.EndPeeringRequest) (*ententev1.EndPeeringResponse, error) {
	err := c.enter(fmt.Sprintf("EndPeering %s now=%v forget=%v", r.GetPeer(), r.GetNow(), r.GetForget()))
	defer c.w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	pods := c.w.pods
	if c.w.ending == 0 {
		c.w.ending = 1
	}
	c.w.now = c.w.now || r.GetNow()
	c.w.forgotten = c.w.forgotten || r.GetForget()
	return &ententev1.EndPeeringResponse{Pods: pods}, nil
}

func (c *fakeCluster) OffloadNamespace(_ context.Context, r *ententev1.OffloadNamespaceRequest) (*ententev1.OffloadNamespaceResponse, error) {
	err := c.enter(fmt.Sprintf("OffloadNamespace %s %s %s %v", r.GetNamespace(), r.GetPodStrategy(), r.GetNameMapping(), r.GetPeers()))
	defer c.w.mu.Unlock()
	return &ententev1.OffloadNamespaceResponse{}, err
}

func (c *fakeCluster) UnoffloadNamespace(_ context.Context, r *ententev1.UnoffloadNamespaceRequest) (*ententev1.UnoffloadNamespaceResponse, error) {
	err := c.enter("UnoffloadNamespace " + r.GetNamespace())
	defer c.w.mu.Unlock()
	return &ententev1.UnoffloadNamespaceResponse{}, err
}

func (c *fakeCluster) ListPeers(context.Context, *ententev1.ListPeersRequest) (*ententev1.ListPeersResponse, error) {
	err := c.enter("ListPeers")
	defer c.w.mu.Unlock()
	if err != nil || !c.w.joined {
		return &ententev1.ListPeersResponse{}, err
	}
	return &ententev1.ListPeersResponse{Peers: []*ententev1.Peer{c.peer()}}, nil
}

func (c *fakeCluster) GetPeer(_ context.Context, r *ententev1.GetPeerRequest) (*ententev1.GetPeerResponse, error) {
	err := c.enter("GetPeer " + r.GetName())
	defer c.w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	known := slices.Contains([]string{"peers/" + c.other().id, "peers/" + c.other().name}, r.GetName())
	gone := c.w.forgotten && c.w.ending > 3
	if !c.w.joined || !known || gone {
		return nil, (&wire.Error{Reason: wire.ReasonPeerUnknown, Message: fmt.Sprintf("no peer %q is known here", strings.TrimPrefix(r.GetName(), "peers/"))}).GRPCStatus().Err()
	}
	if c.w.polls++; c.w.away[c.w.polls] {
		return nil, (&wire.Error{Reason: wire.ReasonKubernetes, Message: "no leader"}).GRPCStatus().Err()
	}
	if c.w.ending > 0 && (!c.w.noDrain || c.w.now) {
		c.w.ending++
		c.w.pods = max(c.w.pods-1, 0)
	}
	return &ententev1.GetPeerResponse{Peer: c.peer()}, nil
}

// hops is how far the peering is after so many polls.
func (w *world) hops() map[string]bool {
	done := map[string]bool{}
	for i, hop := range []string{"Trusted", "Connected", "Contract", "Network", "Offloading"} {
		if w.stuck == hop || i > 1 && (!w.asked || w.polls < i) {
			break
		}
		done[hop] = true
	}
	return done
}

func (c *fakeCluster) peer() *ententev1.Peer {
	w := c.w
	hops := w.hops()
	condition := func(kind string, ok bool, reason, message string) *ententev1.Condition {
		status := "False"
		if ok {
			status, message = "True", "ok"
		}
		return &ententev1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	p := &ententev1.Peer{
		Name: "peers/" + c.other().name, ClusterId: c.other().id, Role: "None", Endpoints: []string{c.other().name + ".example:7443"},
		CreateTime: timestamppb.New(epoch.Add(-time.Hour)), Protocol: 1,
	}
	open := w.asked && hops["Contract"] && w.ending < 3
	network := condition("Network", hops["Network"] && open, "ProbesLost", "probes to 192.0.2.9:51820 are not answered: is UDP blocked?")
	if w.noNetwork || !open {
		network = condition("Network", false, "NotWanted", "no contract in force wants a tunnel")
	}
	offloading := condition("Offloading", hops["Offloading"] && open, "NodeStarting", "the virtual node is starting")
	if w.refuse != "" {
		offloading = condition("Offloading", false, "PolicyRefused", w.refuse)
	}
	p.Conditions = []*ententev1.Condition{
		condition("Trusted", hops["Trusted"], "NotJoined", "the clusters have not joined"),
		condition("Connected", hops["Connected"], "NoSession", "cannot connect to provider.example:7443: connection refused"),
		network, offloading,
	}
	if w.asked && hops["Contract"] && w.refuse == "" {
		role, node := "Provider", ""
		p.Role = "Consumer"
		if c.consumer {
			role, node, p.Role = "Consumer", "entente-provider", "Provider"
		}
		phase := "Active"
		switch {
		case w.ending >= 3:
			phase, p.Role = "Closed", "None"
		case w.ending > 0:
			phase = "Draining"
		}
		p.Contracts = []*ententev1.Contract{{
			ContractId: "7f3c9a", Revision: 1, Phase: phase, Role: role, Node: node, Pods: w.pods,
			Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "4", "memory": "8Gi", "pods": "110"}},
			Used:      &ententev1.ResourceList{Amounts: map[string]string{"cpu": "500m"}},
			NotBefore: timestamppb.New(epoch), NotAfter: timestamppb.New(epoch.Add(24 * time.Hour)),
		}}
	}
	if hops["Network"] && open && !w.noNetwork {
		p.Tunnel = &ententev1.Tunnel{
			Up: true, Backend: "kernel", Endpoint: "192.0.2.9:51820", RoundTrip: durationpb.New(1234567 * time.Nanosecond),
			RemotePrefixes: map[string]string{"10.200.0.0/16": "10.241.0.0/16"}, LocalPrefixes: map[string]string{"10.200.0.0/16": "10.242.0.0/16"},
		}
	}
	return p
}

// run runs the command in the world and returns what it printed and its exit
// code. The world's clock moves by itself when the command waits.
func (w *world) run(t *testing.T, input string, args ...string) (out, errOut string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{
		in: strings.NewReader(input), out: &stdout, errOut: &stderr,
		interactive: input != "",
		connect:     func(_ context.Context, target target) (*cluster, error) { return w.connect(t, target) },
		now:         func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.clock },
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	// Time in the world passes only here: a command that waits for ever times out
	// at once.
	waits := 0
	a.sleep = func(ctx context.Context, d time.Duration) error {
		w.mu.Lock()
		w.clock = w.clock.Add(d)
		w.mu.Unlock()
		if waits++; waits > 40 {
			cancel(context.DeadlineExceeded)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	}
	cmd := a.root("entente")
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(&stderr, a.problem(err))
	}
	return stdout.String(), stderr.String(), exitCode(err, false)
}

func (w *world) connect(t *testing.T, target target) (*cluster, error) {
	served := w.consumer
	if target.label == "remote" {
		served = w.provider
	}
	l := bufconn.Listen(1 << 16)
	s := grpc.NewServer()
	ententev1.RegisterAdminServiceServer(s, served)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		return nil, err
	}
	return &cluster{
		label: target.label, admin: ententev1.NewAdminServiceClient(conn), close: conn.Close,
		nodeExists: func(context.Context, string) (bool, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ending++
			return w.ending < 6, nil
		},
		contract: func(_ context.Context, name string) (*v1alpha1.Contract, error) {
			if name != "c-1" {
				return nil, fmt.Errorf("get contract %s: not found", name)
			}
			return &v1alpha1.Contract{Spec: v1alpha1.ContractSpec{Envelope: testEnvelope}}, nil
		},
	}, nil
}

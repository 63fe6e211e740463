package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/doctor"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/places"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// world is a pair of clusters in which peering takes a few polls.
type world struct {
	mu    sync.Mutex
	clock time.Time

	consumer, provider *fakeCluster
	// stuck names the hop at which the peering stays: Trusted, Connected,
	// Contract, Network or Offloading. refuse makes the provider say no.
	stuck, refuse string
	// joined, asked and ending are the progress of the two, in polls.
	joined, asked, noNetwork bool
	polls                    int
	ending                   int
	now, forgotten           bool
	// cutOff says that pods on a node of either cluster do not reach the other.
	cutOff  bool
	pods    int32
	noDrain bool
	// lost says that the session with the peer was lost.
	lost bool
	// introduced says that they know each other without approval, decision what
	// was decided.
	introduced bool
	decision   string
	// away is the polls at which the API servers do not answer.
	away map[int]bool
	// hidden says that the provider cannot be dialled.
	hidden bool
	// revision is that of the contract, and want the current request.
	revision uint64
	want     *ententev1.Peering
	// generation is that of the request, seen the one that the agent's answer is about, and
	// fulfilled the one that the contract fulfils.
	generation, seen, fulfilled int64
	// refusal is the reason with which the provider refuses, signed what the contract has; without
	// them PolicyRefused, and what the request asks for.
	refusal string
	signed  *ententev1.ResourceList
	// offers is the amounts of the provider's offer, if not those of fakeOffer.
	offers *ententev1.ResourceList
	// afterAmend is what happens at each poll after a change of the request, until it is used up.
	afterAmend []func()
	// pending says that the provider grants after approval, and granted that it has
	// nothing more.
	pending, granted bool
	// problems is what the agents say is wrong.
	problems []string
	// rotated is when a new preshared key was asked for; keyWaits says what it waits for.
	rotated  time.Time
	keyWaits string
	// terminal says that the command runs on a terminal.
	terminal bool
	// contracted says that there was an earlier contract.
	contracted bool
	// terminated is the phase that the contract is about to have.
	terminated string
	// provides says that the local cluster is the provider, grants that its policy accepts the consumer's requests.
	provides, grants bool
	// goingDown is how many more tries find the previous request being deleted.
	goingDown int
	// inBand says that the peer API runs inside the tunnel, and inBandAt is the poll by which
	// that is up.
	inBand   bool
	inBandAt int
	// interrupt says that the user interrupts the command once it waits.
	interrupt bool
	// cordoned says that the virtual node is cordoned.
	cordoned bool
	// interruptJoin says that the user interrupts a join while the agent works on it;
	// interruptNow does it.
	interruptJoin bool
	interruptNow  func()
	// trustedAt is the poll by which the agent says that they trust each other.
	trustedAt int
	// noList says that the caller may not list peers.
	noList bool
	// hints are clusters that discovery found.
	hints []*ententev1.Peer
	// policy is the policy that peers with the provider, which discovery finds on a LAN.
	policy string
	// browsed is where the clusters look for others; nil means unknown.
	browsed *places.Places
	// automatic says that the clusters peer by policy, published is where they are in DNS.
	automatic bool
	published []*ententev1.DNSPublication
	// fabricNodes is what the nodes of the local cluster report, unreadable why that cannot
	// be read.
	is         doctor.Report
	unreadable error
	// kube is the API server of the local cluster; nil if the test does not use it.
	kube kubernetes.Interface
	// podPrefixes are those of their pods, podSources where these were learnt.
	podPrefixes, podSources []string
	// domains is where they look for others.
	domains []*ententev1.DNSDomain
}

type fakeCluster struct {
	ententev1.UnimplementedAdminServiceServer
	w        *world
	id, name string
	consumer bool
	err      *peering.Error
	requests []string
	watches  int
	// live has a value whenever something changes; nil means that watches of the cluster
	// break off.
	live chan struct{}
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newWorld() *world {
	w := &world{clock: epoch, revision: 1, generation: 1, seen: 1, fulfilled: 1}
	w.consumer = &fakeCluster{w: w, id: strings.Repeat("c", 32), name: "consumer", consumer: true}
	w.provider = &fakeCluster{w: w, id: strings.Repeat("p", 32), name: "provider"}
	return w
}

// peered is a world in which the two have peered.
func peered() *world {
	w := newWorld()
	w.joined, w.asked, w.polls, w.pods, w.contracted = true, true, 100, 3, true
	return w
}

func (c *fakeCluster) other() *fakeCluster {
	if c.consumer {
		return c.w.provider
	}
	return c.w.consumer
}

// enter notes a call and locks the world until it is over.
func (c *fakeCluster) enter(format string, args ...any) (leave func(), err error) {
	c.w.mu.Lock()
	c.requests = append(c.requests, strings.TrimSpace(fmt.Sprintf(format, args...)))
	if c.err != nil {
		err = wire.Status(c.err).Err()
	}
	return c.w.mu.Unlock, err
}

// unknownPeer is an agent's error for a peer that it does not know.
func unknownPeer(resource string) error {
	name := strings.TrimPrefix(resource, "peers/")
	e := &peering.Error{Reason: peering.ReasonPeerUnknown, Message: fmt.Sprintf("no peer %q is known here", name), Metadata: map[string]string{"peer": name}}
	return wire.Status(e).Err()
}

func failure(r peering.Reason, format string, args ...any) error {
	return wire.Status(peering.Errorf(r, format, args...)).Err()
}

func (c *fakeCluster) GetInfo(context.Context, *ententev1.GetInfoRequest) (*ententev1.GetInfoResponse, error) {
	leave, err := c.enter("GetInfo")
	defer leave()
	return &ententev1.GetInfoResponse{
		ClusterId: c.id, ClusterName: c.name, Version: "v0.1.0", Endpoints: []string{c.name + ".example:7443"}, Peers: 1, Protocol: 1,
		RootExpireTime: timestamppb.New(epoch.AddDate(10, 0, 0)), Problems: c.w.problems,
		Fingerprint: "0011223344556677", Automatic: c.w.automatic, DnsPublications: c.w.published, DnsDomains: c.w.domains,
		PodPrefixes: c.w.podPrefixes, PodPrefixSources: c.w.podSources,
	}, err
}

func (c *fakeCluster) EndPeering(_ context.Context, r *ententev1.EndPeeringRequest) (*ententev1.EndPeeringResponse, error) {
	leave, err := c.enter("EndPeering %s now=%v forget=%v", r.GetPeer(), r.GetNow(), r.GetForget())
	defer leave()
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

func (c *fakeCluster) ListPeers(context.Context, *ententev1.ListPeersRequest) (*ententev1.ListPeersResponse, error) {
	leave, err := c.enter("ListPeers")
	defer leave()
	if c.w.noList {
		return nil, failure(peering.ReasonCallerNotAllowed, "may not list foreignclusters")
	}
	if err != nil || !c.w.joined && !c.w.introduced {
		return &ententev1.ListPeersResponse{Peers: c.w.hints}, err
	}
	return &ententev1.ListPeersResponse{Peers: append([]*ententev1.Peer{c.peer()}, c.w.hints...)}, nil
}

func (c *fakeCluster) GetPeer(_ context.Context, r *ententev1.GetPeerRequest) (*ententev1.GetPeerResponse, error) {
	leave, err := c.enter("GetPeer %s", r.GetName())
	defer leave()
	if err != nil {
		return nil, err
	}
	for _, p := range c.w.hints {
		if p.GetName() == r.GetName() {
			return &ententev1.GetPeerResponse{Peer: p}, nil
		}
	}
	gone := c.w.forgotten && c.w.ending > 3
	if !c.knows(r.GetName()) || gone {
		return nil, unknownPeer(r.GetName())
	}
	if err := c.poll(); err != nil {
		return nil, err
	}
	if c.w.ending > 0 && (!c.w.noDrain || c.w.now) {
		c.w.ending++
		c.w.pods = max(c.w.pods-1, 0)
	}
	return &ententev1.GetPeerResponse{Peer: c.peer()}, nil
}

func (c *fakeCluster) knows(name string) bool {
	known := slices.Contains([]string{"peers/" + c.other().id, "peers/" + c.other().name}, name)
	return known && (c.w.joined || c.w.introduced)
}

// poll is one poll by the command, after which things progress.
func (c *fakeCluster) poll() error {
	if c.w.polls++; c.w.away[c.w.polls] {
		return failure(peering.ReasonKubernetes, "no leader")
	}
	return nil
}

// hops is the progress of the peering after so many polls.
func (w *world) hops() map[string]bool {
	done := map[string]bool{}
	for i, hop := range []string{"Trusted", "Connected", "Contract", "Network", "Offloading"} {
		if w.stuck == hop || i == 0 && w.polls < w.trustedAt || i > 1 && (!w.asked || w.polls < i) || !w.joined {
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
			status, reason, message = "True", kind, "ok"
		}
		return &ententev1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	p := &ententev1.Peer{
		Name: "peers/" + c.other().name, ClusterId: c.other().id, Role: "None", Endpoints: []string{c.other().name + ".example:7443"},
		CreateTime: timestamppb.New(epoch.Add(-time.Hour)), Protocol: 1, Decision: w.decision,
		Labels: map[string]string{"topology.kubernetes.io/region": "lombardia"},
	}
	if w.introduced {
		p.Source, p.Code = "Introduction", "042917"
	}
	if w.policy != "" {
		p.Labels["entente.dev/automatic"] = w.policy
		p.Sightings = []*ententev1.Sighting{{Source: "LAN", Location: "eth0", Node: "node-a", Endpoints: []string{"192.0.2.7:7443"}}}
	}
	open := w.asked && hops["Contract"] && w.ending < 3
	network := condition("Network", hops["Network"] && open, "ProbesLost", "probes to 192.0.2.9:51820 are not answered: is UDP blocked?")
	if w.cutOff && open {
		network = condition("Network", false, "NodesCutOff", "pods on node-b are cut off: probes from there to gateway node node-a are lost")
	}
	if w.noNetwork || !open {
		network = condition("Network", false, "TunnelNotRequired", "no contract in force wants a tunnel")
	}
	awaits := "NotJoined"
	if w.introduced {
		awaits = map[string]string{"": "AwaitingApproval", "Approved": "AwaitingPeer", "Denied": "Denied"}[w.decision]
	}
	if p.InBand = w.inBand; p.GetInBand() {
		p.Endpoints = nil
		p.Conditions = append(p.Conditions, condition("InBand", w.polls >= w.inBandAt && w.stuck != "InBand", "AwaitingPeer", "node a: no probe to gateway gw1 was answered yet"))
	}
	p.Conditions = append(p.Conditions,
		condition("Trusted", hops["Trusted"], awaits, "the clusters have not joined"),
		condition("Connected", hops["Connected"] && !w.lost, "NoSession", "cannot connect to provider.example:7443: connection refused"),
		network,
		condition("Offloading", hops["Offloading"] && open, "NodeStarting", "the virtual node is starting"),
	)
	if hops["Connected"] {
		p.Session = &ententev1.Session{
			Dialled: true, Endpoint: "provider.example:7443", Since: timestamppb.New(epoch.Add(-time.Minute)),
			ClockSkew: durationpb.New(2 * time.Second), RoundTrip: durationpb.New(2500 * time.Microsecond),
			CertificateExpireTime: timestamppb.New(epoch.Add(20 * time.Hour)),
		}
		if w.inBand {
			p.Session.Endpoint, p.Session.InBand = "", true
		}
		p.Offer = fakeOffer()
		p.Offer.Resources = cmp.Or(w.offers, p.Offer.Resources)
		if w.pending {
			p.Offer.Message = "an administrator of the provider approves each request"
		}
		if w.granted {
			p.Offer = &ententev1.Offer{Message: `cpu: nothing is left to offer under the provider's policy "default"`}
		}
	}
	if w.asked && hops["Contract"] && w.refuse == "" {
		k := c.contract()
		p.Contracts = []*ententev1.Contract{k}
		if w.granted {
			p.Contracts = append(p.Contracts, c.formerContract())
		}
		p.Role = map[string]string{"Consumer": "Provider", "Provider": "Consumer"}[k.GetRole()]
		if k.GetPhase() == "Closed" {
			p.Role = "None"
		}
	}
	if hops["Network"] && open && !w.noNetwork {
		p.Tunnel = &ententev1.Tunnel{
			Up: true, Backend: "kernel", Endpoint: "192.0.2.9:51820", RoundTrip: durationpb.New(1234567 * time.Nanosecond),
			RemotePrefixes: map[string]string{"10.200.0.0/16": "10.241.0.0/16"}, LocalPrefixes: map[string]string{"10.200.0.0/16": "10.242.0.0/16"},
			PresharedKey: w.presharedKey(),
		}
	}
	return p
}

func fakeOffer() *ententev1.Offer {
	return &ententev1.Offer{
		Available: true, Resources: list("cpu", "12", "memory", "48Gi", "pods", "110"), Price: fakePrice(),
		Architectures: []string{"amd64", "arm64"}, StorageClasses: []string{"fast"}, Duration: durationpb.New(720 * time.Hour),
		NodeLabels: map[string]string{"kubernetes.io/os": "linux"},
		Pools: []*ententev1.OfferedPool{
			{
				Name: "gpu", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "2", "pods": "20"}},
				Price: &ententev1.PriceList{Currency: "EUR", PerHour: map[string]string{"nvidia.com/gpu": "1.5"}}, NodeLabels: map[string]string{"nodes": "gpu"},
			},
			{Name: "spot"},
		},
		Services: []*ententev1.OfferedService{
			{Namespace: "shop", Name: "cart", Type: "ClusterSetIP", Ports: []*ententev1.OfferedServicePort{
				{Name: "http", Protocol: "TCP", AppProtocol: "kubernetes.io/h2c", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53},
			}},
			{Namespace: "shop", Name: "db", Type: "Headless"},
		},
	}
}

func fakePrice() *ententev1.PriceList {
	return &ententev1.PriceList{Currency: "EUR", PerHour: map[string]string{"cpu": "0.02", "memory": "0.005"}}
}

func list(pairs ...string) *ententev1.ResourceList {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return &ententev1.ResourceList{Amounts: m}
}

// contract is the contract that the two make.
func (c *fakeCluster) contract() *ententev1.Contract {
	w := c.w
	k := &ententev1.Contract{
		Name: "contracts/7f3c9a", ContractId: "7f3c9a", Revision: w.revision, Phase: "Active", Role: "Provider", Pods: w.pods,
		Peer: "peers/" + c.other().name, Resources: list("cpu", "4", "memory", "8Gi", "pods", "110"), Used: list("cpu", "500m"), Price: fakePrice(),
		NotBefore: timestamppb.New(epoch), NotAfter: timestamppb.New(epoch.Add(24 * time.Hour)),
	}
	if c.consumer {
		k.Role, k.Node, k.Cordoned = "Consumer", "entente-provider", w.cordoned
	}
	if w.want != nil {
		k.Resources = w.want.GetResources()
	}
	if w.signed != nil {
		k.Resources = w.signed
	}
	switch {
	case w.ending >= 3:
		k.Phase = "Closed"
	case w.ending > 0:
		k.Phase = "Draining"
	}
	return k
}

// run runs the command in the world and returns what it printed and its exit
// code. The world's clock moves by itself when the command waits.
func (w *world) run(t *testing.T, input string, args ...string) (out, errOut string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	w.interruptNow = func() { cancel(context.Canceled) }
	a := &app{
		in: strings.NewReader(input), out: &stdout, errOut: &stderr,
		interactive: input != "", width: 100,
		watched: w.terminal, redraw: w.terminal, colour: w.terminal, colourErr: w.terminal,
		connect:  func(_ context.Context, target target) (*cluster, error) { return w.connect(t, target) },
		reported: func(context.Context, target, string) (doctor.Report, error) { return w.is, w.unreadable },
		now:      func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.clock },
	}
	// Time in the world passes only here: a command that waits for ever times out
	// at once.
	waits := 0
	a.sleep = func(ctx context.Context, d time.Duration) error {
		w.mu.Lock()
		w.clock = w.clock.Add(d)
		w.mu.Unlock()
		if waits++; waits > 40 {
			cancel(context.DeadlineExceeded)
		}
		if w.interrupt {
			cancel(context.Canceled)
		}
		return context.Cause(ctx)
	}
	cmd := a.root("entente")
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(&stderr, a.problem(err))
	}
	return stdout.String(), stderr.String(), exit.CodeOf(err, false)
}

func (w *world) connect(t *testing.T, target target) (*cluster, error) {
	served := w.consumer
	if (target.label == "remote") != w.provides {
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
	t.Cleanup(func() { _ = conn.Close() })
	return &cluster{
		label: target.label, admin: client.NewAdmin(conn), kube: w.kube,
		namespaces: func(context.Context) ([]string, error) { return []string{"batch", "shop"}, nil },
		browsed: func(context.Context) (*places.Places, error) {
			if w.browsed == nil {
				return nil, errors.New("may not list pods")
			}
			return w.browsed, nil
		},
		nodeExists: func(context.Context, string) (bool, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ending++
			return w.ending < 6, nil
		},
	}, nil
}

// count is how many calls of a kind the local cluster got.
func (w *world) count(call string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, r := range w.consumer.requests {
		if strings.HasPrefix(r, call) {
			n++
		}
	}
	return n
}

// presharedKey is the key of the tunnel: replaced a few polls after that was asked for.
func (w *world) presharedKey() *ententev1.PresharedKey {
	k := &ententev1.PresharedKey{Number: 2, FirstUseTime: timestamppb.New(epoch.Add(-72 * time.Hour))}
	switch {
	case w.rotated.IsZero():
	case w.keyWaits == "" && w.clock.Sub(w.rotated) > 2*time.Second:
		k.Number, k.FirstUseTime = 3, timestamppb.New(w.rotated)
	default:
		k.RotationStartTime, k.Message = timestamppb.New(w.rotated), "the next key waits for "+w.keyWaits
	}
	return k
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func (c *fakeCluster) CreateToken(_ context.Context, r *ententev1.CreateTokenRequest) (*ententev1.CreateTokenResponse, error) {
	leave, err := c.enter("CreateToken %s", r.GetTtl().AsDuration())
	defer leave()
	return &ententev1.CreateTokenResponse{Token: "ent1.fake-token.checksum", TokenId: "fake", ExpireTime: timestamppb.New(epoch.Add(15 * time.Minute))}, err
}

func (c *fakeCluster) ListTokens(_ context.Context, r *ententev1.ListTokensRequest) (*ententev1.ListTokensResponse, error) {
	leave, err := c.enter("ListTokens %s", r.GetPageToken())
	defer leave()
	// They come in two pages.
	if r.GetPageToken() == "" {
		return &ententev1.ListTokensResponse{NextPageToken: "more", Tokens: []*ententev1.Token{{
			Name: "tokens/4k7qxw2m", CreateTime: timestamppb.New(epoch.Add(-5 * time.Minute)), ExpireTime: timestamppb.New(epoch.Add(10 * time.Minute)),
		}}}, err
	}
	return &ententev1.ListTokensResponse{Tokens: []*ententev1.Token{{
		Name: "tokens/9z2rt5aa", CreateTime: timestamppb.New(epoch.Add(-14 * time.Minute)), ExpireTime: timestamppb.New(epoch.Add(time.Minute)),
		RedeemedBy: c.other().id,
	}}}, err
}

func (c *fakeCluster) RevokeToken(_ context.Context, r *ententev1.RevokeTokenRequest) (*ententev1.RevokeTokenResponse, error) {
	leave, err := c.enter("RevokeToken %s", r.GetName())
	defer leave()
	if err == nil && r.GetName() != "tokens/4k7qxw2m" {
		err = failure(peering.ReasonTokenUnknown, "there is no token %s", strings.TrimPrefix(r.GetName(), "tokens/"))
	}
	return &ententev1.RevokeTokenResponse{}, err
}

func (c *fakeCluster) JoinPeer(_ context.Context, r *ententev1.JoinPeerRequest) (*ententev1.JoinPeerResponse, error) {
	leave, err := c.enter("JoinPeer %s %s", r.GetToken(), r.GetName())
	defer leave()
	if err != nil {
		return nil, err
	}
	if r.GetToken() == "hello" {
		return nil, failure(peering.ReasonTokenMalformed, "not an Entente token")
	}
	if c.w.hidden && c.consumer {
		return nil, failure(peering.ReasonPeerUnreachable, "cannot connect to provider.example:7443: no answer within 10s")
	}
	c.w.joined = true
	if c.w.interruptJoin {
		c.w.interruptNow()
		return nil, status.FromContextError(context.Canceled).Err()
	}
	return &ententev1.JoinPeerResponse{Peer: c.peer()}, nil
}

func (c *fakeCluster) GetNetworkParameters(context.Context, *ententev1.GetNetworkParametersRequest) (*ententev1.GetNetworkParametersResponse, error) {
	leave, err := c.enter("GetNetworkParameters")
	defer leave()
	return &ententev1.GetNetworkParametersResponse{Parameters: c.parameters()}, err
}

func (c *fakeCluster) parameters() *ententev1.NetworkParameters {
	return &ententev1.NetworkParameters{
		ClusterId: c.id, DisplayName: c.name, ExchangeKey: bytes.Repeat([]byte(c.id[:1]), 32),
		Gateways: []*ententev1.InBandGateway{
			{Name: "gw1", PublicKey: bytes.Repeat([]byte{1}, 32), Endpoints: []string{"192.0.2.9:51820"}}, {Name: "gw2", PublicKey: bytes.Repeat([]byte{2}, 32)},
		},
	}
}

func (c *fakeCluster) ConnectInBand(_ context.Context, r *ententev1.ConnectInBandRequest) (*ententev1.ConnectInBandResponse, error) {
	leave, err := c.enter("ConnectInBand %s %d %s", r.GetParameters().GetClusterId(), len(r.GetParameters().GetGateways()), r.GetName())
	defer leave()
	switch {
	case err != nil:
		return nil, err
	case r.GetParameters().GetClusterId() == c.id:
		return nil, failure(peering.ReasonPeerIsSelf, "the parameters are this cluster's own")
	}
	c.w.joined, c.w.inBand, c.w.polls = true, true, 0
	return &ententev1.ConnectInBandResponse{Peer: c.peer()}, nil
}

func (c *fakeCluster) IntroducePeer(_ context.Context, r *ententev1.IntroducePeerRequest) (*ententev1.IntroducePeerResponse, error) {
	leave, err := c.enter("IntroducePeer %s %s %s %v", r.GetEndpoint(), r.GetClusterId(), r.GetName(), r.GetApprove())
	defer leave()
	if err != nil {
		return nil, err
	}
	if c.w.hidden {
		return nil, failure(peering.ReasonPeerUnreachable, "cannot connect to %s: no answer within 10s", r.GetEndpoint())
	}
	c.w.introduced = true
	if c.w.interruptJoin {
		c.w.interruptNow()
		return nil, status.FromContextError(context.Canceled).Err()
	}
	if r.GetApprove() {
		c.w.decision = "Approved"
	}
	return &ententev1.IntroducePeerResponse{Peer: c.peer()}, nil
}

func (c *fakeCluster) ApprovePeer(_ context.Context, r *ententev1.ApprovePeerRequest) (*ententev1.ApprovePeerResponse, error) {
	leave, err := c.enter("ApprovePeer %s %s", r.GetName(), r.GetCode())
	defer leave()
	switch code := strings.ReplaceAll(r.GetCode(), " ", ""); {
	case err != nil:
		return nil, err
	case !c.knows(r.GetName()):
		return nil, unknownPeer(r.GetName())
	case code != "" && code != "042917":
		return nil, failure(peering.ReasonCodeMismatch, "the code here is another one")
	}
	c.w.decision = "Approved"
	return &ententev1.ApprovePeerResponse{Peer: c.peer()}, nil
}

func (c *fakeCluster) DenyPeer(_ context.Context, r *ententev1.DenyPeerRequest) (*ententev1.DenyPeerResponse, error) {
	leave, err := c.enter("DenyPeer %s", r.GetName())
	defer leave()
	if err == nil && !c.knows(r.GetName()) {
		err = unknownPeer(r.GetName())
	}
	if err != nil {
		return nil, err
	}
	c.w.decision = "Denied"
	return &ententev1.DenyPeerResponse{Peer: c.peer()}, nil
}

func (c *fakeCluster) CreatePeering(_ context.Context, r *ententev1.CreatePeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	leave, err := c.enter("CreatePeering %s %s: %s for %s at most %s no-network=%v no-renewal=%v nodes=%s peers=%s storage=%v runtime=%v id=%s", r.GetPeer(), r.GetPeeringRequest(),
		format.Amounts(r.GetResources()), r.GetDuration().AsDuration(), format.Money(r.GetPriceCeiling(), "any price"), r.GetNoNetwork(), r.GetNoRenewal(),
		format.Pairs(r.GetNodeSelector()), format.Pairs(r.GetPeerSelector()), r.GetStorageClasses(), r.GetRuntimeClasses(), r.GetRequestId())
	defer leave()
	switch {
	case err != nil:
		return nil, err
	case !c.w.joined && !c.w.introduced:
		return nil, unknownPeer(r.GetPeer())
	case c.w.goingDown > 0:
		c.w.goingDown--
		e := &peering.Error{Reason: peering.ReasonPeeringExists, Message: "being taken down", Metadata: map[string]string{"peeringRequest": "provider", "peer": "provider", "ending": "true"}}
		return nil, wire.Status(e).Err()
	case c.w.asked:
		e := &peering.Error{Reason: peering.ReasonPeeringExists, Message: "asked already", Metadata: map[string]string{"peeringRequest": "provider", "peer": "provider"}}
		return nil, wire.Status(e).Err()
	case r.GetValidateOnly() && c.w.refuse != "":
		return nil, failure(peering.ReasonPolicyRefused, "%s", c.w.refuse)
	case r.GetValidateOnly():
		ad := fakeAdvertisement()
		ad.NeedsApproval = c.w.pending
		return &ententev1.CreatePeeringResponse{Advertisement: ad, Provider: "peers/provider"}, nil
	}
	c.w.asked, c.w.noNetwork, c.w.polls = true, r.GetNoNetwork(), 0
	c.w.want = &ententev1.Peering{Peer: r.GetPeer(), Resources: list("cpu", "4", "memory", "8Gi", "pods", "110")}
	if len(r.GetResources().GetAmounts()) == 1 {
		c.w.want.Resources = r.GetResources()
	}
	return &ententev1.CreatePeeringResponse{PeeringRequest: cmp.Or(r.GetPeeringRequest(), "provider")}, nil
}

func fakeAdvertisement() *ententev1.Advertisement {
	return &ententev1.Advertisement{
		ContractId: "7f3c9a", Resources: list("cpu", "4", "memory", "8Gi"), Duration: durationpb.New(24 * time.Hour),
		ValidUntil: timestamppb.New(epoch.Add(time.Minute)), Network: true, PodSecurity: "baseline",
		LimitRange: &ententev1.LimitRange{DefaultRequest: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "100m", "memory": "64Mi"}}}, Price: fakePrice(), Renewable: true,
		Notice: durationpb.New(time.Hour), Exposure: "Offloaded", NodeLabels: map[string]string{"kubernetes.io/arch": "amd64"},
		NodeSelector: map[string]string{"pool": "guests"}, RuntimeClasses: []string{"gvisor"}, StorageClasses: []string{"fast"},
		Revision: 1, StatementPeriod: durationpb.New(time.Hour), HourlyPrice: &ententev1.Money{Currency: "EUR", Amount: "0.12"},
	}
}

// ask is the consumer's request and its outcome.
func (c *fakeCluster) ask() *ententev1.Peering {
	w := c.w
	p := &ententev1.Peering{
		Name: "peerings/provider", Peer: "peers/provider", Resources: list("cpu", "4", "memory", "8Gi", "pods", "110"),
		PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "0.5"}, NoNetwork: w.noNetwork,
		Accepted: &ententev1.Condition{Type: "Accepted", Status: "False", Reason: "PeerUnreachable", Message: "no session with the provider"},
	}
	if w.want != nil {
		p.Resources = w.want.GetResources()
		if w.want.GetPeer() != "" {
			p.Peer = w.want.GetPeer()
		}
		p.Duration, p.NoRenewal = w.want.GetDuration(), w.want.GetNoRenewal()
		if w.want.GetName() == "amended" {
			p.PriceCeiling = w.want.GetPriceCeiling()
		}
	}
	if w.refuse != "" {
		p.Accepted.Reason, p.Accepted.Message = cmp.Or(w.refusal, "PolicyRefused"), w.refuse
		if w.contracted {
			p.Contract = "contracts/7f3c9a"
		}
	}
	if w.hops()["Contract"] && w.refuse == "" {
		p.Accepted = &ententev1.Condition{Type: "Accepted", Status: "True", Reason: "Contracted", Message: "contract 7f3c9a was signed by both"}
		p.Contract, p.Node, p.Provider = "contracts/7f3c9a", "entente-provider", "peers/provider"
	}
	p.Generation, p.AcceptedGeneration, p.ContractGeneration = w.generation, w.seen, w.fulfilled
	return p
}

func (c *fakeCluster) GetPeering(_ context.Context, r *ententev1.GetPeeringRequest) (*ententev1.GetPeeringResponse, error) {
	leave, err := c.enter("GetPeering %s", r.GetName())
	defer leave()
	if err != nil {
		return nil, err
	}
	if !c.w.asked || r.GetName() != "peerings/provider" || c.w.ending > 2 {
		return nil, failure(peering.ReasonPeeringUnknown, "there is no PeeringRequest %s", strings.TrimPrefix(r.GetName(), "peerings/"))
	}
	if err := c.poll(); err != nil {
		return nil, err
	}
	if c.w.ending > 0 {
		c.w.ending++
	}
	c.w.amended()
	return &ententev1.GetPeeringResponse{Peering: c.ask()}, nil
}

// amended is a poll after a change of the request.
func (w *world) amended() {
	switch {
	case w.want.GetName() != "amended" || w.stuck != "":
	case len(w.afterAmend) > 0:
		w.afterAmend[0]()
		w.afterAmend = w.afterAmend[1:]
	case w.seen == w.generation:
	case w.refuse != "":
		w.seen = w.generation
	default:
		w.revision++
		w.seen, w.fulfilled = w.generation, w.generation
	}
}

func (c *fakeCluster) ListPeerings(context.Context, *ententev1.ListPeeringsRequest) (*ententev1.ListPeeringsResponse, error) {
	leave, err := c.enter("ListPeerings")
	defer leave()
	if err != nil || !c.w.asked || !c.consumer {
		return &ententev1.ListPeeringsResponse{}, err
	}
	return &ententev1.ListPeeringsResponse{Peerings: []*ententev1.Peering{
		{Name: "peerings/gpus", Peer: "peers/-", Accepted: &ententev1.Condition{Status: "False", Reason: "PolicyPending", Message: "an administrator there has to approve"}}, c.ask(),
	}}, nil
}

func (c *fakeCluster) UpdatePeering(_ context.Context, r *ententev1.UpdatePeeringRequest) (*ententev1.UpdatePeeringResponse, error) {
	p := r.GetPeering()
	leave, err := c.enter("UpdatePeering %s %v: %s for %s at most %s no-renewal=%v", p.GetName(), r.GetUpdateMask().GetPaths(),
		format.Amounts(p.GetResources()), p.GetDuration().AsDuration(), format.Money(p.GetPriceCeiling(), "any price"), p.GetNoRenewal())
	defer leave()
	if err != nil {
		return nil, err
	}
	after := c.ask()
	if slices.Contains(r.GetUpdateMask().GetPaths(), "no_network") {
		after.NoNetwork = p.GetNoNetwork()
	}
	if slices.Contains(r.GetUpdateMask().GetPaths(), "resources") {
		after.Resources = p.GetResources()
	}
	if slices.Contains(r.GetUpdateMask().GetPaths(), "duration") {
		after.Duration = p.GetDuration()
	}
	if slices.Contains(r.GetUpdateMask().GetPaths(), "price_ceiling") {
		after.PriceCeiling = p.GetPriceCeiling()
	}
	if slices.Contains(r.GetUpdateMask().GetPaths(), "no_renewal") {
		after.NoRenewal = p.GetNoRenewal()
	}
	if now := c.ask(); !r.GetValidateOnly() && !proto.Equal(now, after) {
		c.w.generation++
		after.Generation = c.w.generation
	}
	if !r.GetValidateOnly() {
		c.w.noNetwork = after.GetNoNetwork()
		c.w.want = &ententev1.Peering{Name: "amended", Resources: after.GetResources(), Duration: after.GetDuration(), NoRenewal: after.GetNoRenewal(), PriceCeiling: after.GetPriceCeiling()}
	}
	resp := &ententev1.UpdatePeeringResponse{Peering: after}
	if r.GetValidateOnly() {
		resp.Advertisement = fakeAdvertisement()
		resp.Advertisement.Revision, resp.Advertisement.NeedsApproval = 2, c.w.pending
	}
	return resp, nil
}

func (c *fakeCluster) DeletePeering(_ context.Context, r *ententev1.DeletePeeringRequest) (*ententev1.DeletePeeringResponse, error) {
	leave, err := c.enter("DeletePeering %s", r.GetName())
	defer leave()
	c.w.ending = 1
	return &ententev1.DeletePeeringResponse{}, err
}

func (c *fakeCluster) ListPeeringRequests(_ context.Context, r *ententev1.ListPeeringRequestsRequest) (*ententev1.ListPeeringRequestsResponse, error) {
	leave, err := c.enter("ListPeeringRequests %s", r.GetParent())
	defer leave()
	if err != nil || !c.w.joined {
		return &ententev1.ListPeeringRequestsResponse{}, err
	}
	return &ententev1.ListPeeringRequestsResponse{Requests: []*ententev1.PendingRequest{
		{Name: "peers/provider/requests/5f1d", CreateTime: timestamppb.New(epoch.Add(-3 * time.Minute))},
		{
			Name: "peers/provider/requests/a7e0", Resources: list("cpu", "64", "memory", "256Gi"), Duration: durationpb.New(720 * time.Hour),
			PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "1.5"}, CreateTime: timestamppb.New(epoch.Add(-2 * time.Hour)),
			NodeSelector: map[string]string{"kubernetes.io/arch": "arm64"}, RuntimeClasses: []string{"gvisor", "kata"}, NoNetwork: true,
		},
	}}, nil
}

func (c *fakeCluster) ApprovePeeringRequest(_ context.Context, r *ententev1.ApprovePeeringRequestRequest) (*ententev1.ApprovePeeringRequestResponse, error) {
	leave, err := c.enter("ApprovePeeringRequest %s", r.GetName())
	defer leave()
	if err == nil && !strings.HasSuffix(r.GetName(), "/5f1d") {
		err = failure(peering.ReasonRequestUnknown, "no such request waits")
	}
	return &ententev1.ApprovePeeringRequestResponse{}, err
}

func (c *fakeCluster) DenyPeeringRequest(_ context.Context, r *ententev1.DenyPeeringRequestRequest) (*ententev1.DenyPeeringRequestResponse, error) {
	leave, err := c.enter("DenyPeeringRequest %s", r.GetName())
	defer leave()
	return &ententev1.DenyPeeringRequestResponse{}, err
}

func (c *fakeCluster) TestPolicy(_ context.Context, r *ententev1.TestPolicyRequest) (*ententev1.TestPolicyResponse, error) {
	leave, err := c.enter("TestPolicy %s %s for %s nodes=%s", r.GetPeer(), format.Amounts(r.GetResources()), r.GetDuration().AsDuration(), format.Pairs(r.GetNodeSelector()))
	defer leave()
	if err != nil {
		return nil, err
	}
	results := []*ententev1.PolicyTest{
		{Peer: "peers/lab", Reason: "POLICY_REFUSED", Message: "no PeeringPolicy selects this peer"},
		{Peer: "peers/provider", Policy: "default", Advertisement: fakeAdvertisement(), Message: "cpu: 4 of 4; memory: 8Gi by 50 percent of what is free"},
	}
	if c.w.grants {
		results = append(results, &ententev1.PolicyTest{Peer: "peers/consumer", Policy: "default", Advertisement: fakeAdvertisement()})
	}
	if r.GetPeer() != "peers/-" {
		results = slices.DeleteFunc(results, func(t *ententev1.PolicyTest) bool { return t.GetPeer() != r.GetPeer() })
	}
	return &ententev1.TestPolicyResponse{Results: results}, nil
}

func (c *fakeCluster) GetNetworkStatus(_ context.Context, r *ententev1.GetNetworkStatusRequest) (*ententev1.GetNetworkStatusResponse, error) {
	leave, err := c.enter("GetNetworkStatus %s", r.GetPeer())
	defer leave()
	resp := &ententev1.GetNetworkStatusResponse{
		Paths: []*ententev1.NetworkPath{
			{Node: "w1", Gateway: "gw1", ConnectionType: "Direct", Endpoint: "10.0.0.1:51820", State: "Up", RoundTrip: durationpb.New(210 * time.Microsecond), Mtu: 1420},
			{Peer: "peers/lab", Node: "gw1", Gateway: "m7", State: "Down", Message: "probes to gateway m7 were lost\x1b[31m"},
			{Peer: "peers/provider", Node: "gw1", Gateway: "p1", ConnectionType: "Relayed", Through: "genoa", State: "Up", RoundTrip: durationpb.New(9 * time.Millisecond), Mtu: 1400},
			{Peer: "peers/provider", Node: "gw2", Gateway: "p1", ConnectionType: "Observed", Endpoint: "198.51.100.7:51820", State: "Unknown", Standby: true, Message: "no probe was answered yet"},
			{Peer: "peers/provider", Node: "w1", Gateway: "p4", Endpoint: "198.51.100.14:51820", State: "Up", RoundTrip: durationpb.New(3 * time.Millisecond), Mtu: 1420, Direct: true},
			{Peer: "peers/provider", Node: "w1", Gateway: "p5", Endpoint: "198.51.100.15:51820", State: "Down", Standby: true, Direct: true, Message: "packets go through gateways: no probe to node p5 is answered"},
		},
		Nodes: []*ententev1.NetworkNode{
			{
				Name: "w1", Backend: "userspace", Offloads: []string{"TUNTCP", "UDPReceive", "UDPSend"}, MissingOffloads: []string{"TUNUDP"}, Endpoints: []string{"10.0.0.3:51820"}, Problems: []string{"ip_forward is off"},
				Findings: []*ententev1.NetworkFinding{{Reason: "ForwardDropped", Severity: "Error", Message: "the firewall drops what is forwarded", Remedy: "allow it"}},
				Conditions: []*ententev1.Condition{
					{Type: "Carrier", Status: "True", Reason: "ProbesAnswered"},
					{Type: "EndToEnd", Status: "False", Reason: "PodsUnreachable", Message: "packets of pods to node p1 of the peer are lost: look at the firewall of that node"},
				},
			},
			{Name: "gw1", Gateway: true, Conditions: []*ententev1.Condition{{Type: "PeerGateways", Status: "True"}}, Backend: "kernel", Endpoints: []string{"10.0.0.1:51820"}, AnnouncedEndpoints: []string{"gw1.example.com:51820"}},
		},
	}
	for _, n := range resp.GetNodes() {
		c.w.rotatedNode(n)
	}
	if r.GetPeer() != "" {
		resp.Paths = slices.DeleteFunc(resp.GetPaths(), func(p *ententev1.NetworkPath) bool { return p.GetPeer() != r.GetPeer() })
		resp.Nodes = resp.GetNodes()[1:]
	}
	return resp, err
}

func (c *fakeCluster) PlanNetwork(_ context.Context, r *ententev1.PlanNetworkRequest) (*ententev1.PlanNetworkResponse, error) {
	leave, err := c.enter("PlanNetwork %s %s", r.GetPeer(), strings.Join(r.GetPrefixes(), ","))
	defer leave()
	own := []*ententev1.PlannedGateway{{Name: "gw1", Endpoints: []string{"gw1.example.com:51820"}}, {Name: "gw2"}}
	pool := []string{"198.18.0.0/15", "fdd7:585b:e300::/40"}
	plans := []*ententev1.NetworkPlan{
		{
			Peer: "peers/lab", OwnGateways: own, AliasPool: pool,
			Remote: []*ententev1.PlannedAlias{{Prefix: "10.0.0.0/12", ByAddress: true, Addresses: 128}},
			Local:  []*ententev1.PlannedAlias{{Prefix: "10.200.0.0/16"}},
			Errors: []string{"2 addresses of the peer have no alias, 10.1.7.3 among them: it has its share of the alias pool, or 4096; widen network.aliasPool, or offload less to and from it"}, Warnings: []string{"no alias can be taken from the pool's fdd7:585b:e300::/40: it lies in fdd7:585b::/32, which is in use; name another pool with network.aliasPool"},
		},
		{
			Peer: "peers/provider", OwnGateways: own, AliasPool: pool, Mtu: 1400,
			Gateways: []*ententev1.PlannedGateway{{Name: "p1", Endpoints: []string{"198.51.100.7:51820", "[2001:db8::7]:51820"}}},
			Remote:   []*ententev1.PlannedAlias{{Prefix: "10.200.0.0/16", Alias: "198.18.0.0/16", InUse: true}},
			Local:    []*ententev1.PlannedAlias{{Prefix: "10.200.0.0/16", Alias: "198.19.0.0/16", InUse: true}},
			Transit: []*ententev1.PlannedTransit{
				{Cluster: "lab", Addresses: 7, Aliased: 6},
				{Cluster: "branch", Missing: "branch does not agree: its spec.transit.through for this cluster has to name the peer"},
				{Cluster: "datacentre", ThroughPeer: true, Addresses: 3, Aliased: 3},
			},
		},
	}
	if r.GetPeer() == "" {
		plan := &ententev1.NetworkPlan{OwnGateways: own, AliasPool: pool}
		for _, p := range r.GetPrefixes() {
			plan.Remote = append(plan.Remote, &ententev1.PlannedAlias{Prefix: p, Alias: "198.18.0.0/16"})
		}
		plans = []*ententev1.NetworkPlan{plan}
	} else if r.GetPeer() != "peers/-" {
		plans = slices.DeleteFunc(plans, func(p *ententev1.NetworkPlan) bool { return p.GetPeer() != r.GetPeer() })
	}
	return &ententev1.PlanNetworkResponse{Plans: plans}, err
}

func (c *fakeCluster) ListContracts(_ context.Context, r *ententev1.ListContractsRequest) (*ententev1.ListContractsResponse, error) {
	leave, err := c.enter("ListContracts %s", r.GetPeer())
	defer leave()
	if err != nil || !c.w.hops()["Contract"] {
		return &ententev1.ListContractsResponse{}, err
	}
	return &ententev1.ListContractsResponse{Contracts: []*ententev1.Contract{c.contract(), c.formerContract()}}, nil
}

// formerContract is a contract that has ended.
func (c *fakeCluster) formerContract() *ententev1.Contract {
	k := c.contract()
	k.ContractId, k.Name, k.Phase, k.Node, k.Pods = "91ab", "contracts/91ab", "Closed", "", 0
	k.Reason, k.Message, k.CloseTime = "EndedByPeer", "the peer ended the contract", timestamppb.New(epoch.Add(-time.Hour))
	return k
}

func (c *fakeCluster) GetContract(_ context.Context, r *ententev1.AdminServiceGetContractRequest) (*ententev1.AdminServiceGetContractResponse, error) {
	leave, err := c.enter("GetContract %s", r.GetName())
	defer leave()
	if err != nil {
		return nil, err
	}
	if r.GetName() != "contracts/7f3c9a" {
		return nil, failure(peering.ReasonContractUnknown, "no contract %s is known here", strings.TrimPrefix(r.GetName(), "contracts/"))
	}
	k := c.contract()
	if c.w.terminated != "" && c.poll() == nil && c.w.polls%3 == 0 {
		k.Phase, k.Message = c.w.terminated, "ended by this cluster"
		if k.GetPhase() == "Draining" {
			k.DrainUntil = timestamppb.New(epoch.Add(time.Hour))
		}
	}
	k.Envelope = string(evidenceFile("contract-2.json"))
	return &ententev1.AdminServiceGetContractResponse{Contract: k}, nil
}

func (c *fakeCluster) TerminateContract(_ context.Context, r *ententev1.AdminServiceTerminateContractRequest) (*ententev1.AdminServiceTerminateContractResponse, error) {
	leave, err := c.enter("TerminateContract %s now=%v", r.GetName(), r.GetNow())
	defer leave()
	c.w.terminated = "Draining"
	if r.GetNow() {
		c.w.terminated = "Closed"
	}
	return &ententev1.AdminServiceTerminateContractResponse{Contract: c.contract()}, err
}

func (c *fakeCluster) ListUsage(_ context.Context, r *ententev1.ListUsageRequest) (*ententev1.ListUsageResponse, error) {
	leave, err := c.enter("ListUsage %s", r.GetContract())
	defer leave()
	if err != nil || !c.w.joined {
		return &ententev1.ListUsageResponse{}, err
	}
	used := func(cpu, memory string) map[string]string { return map[string]string{"cpu": cpu, "memory": memory} }
	eur := func(s string) *ententev1.Money { return &ententev1.Money{Currency: "EUR", Amount: s} }
	row := func(contract, role string, seq uint64, hour int) *ententev1.Usage {
		return &ententev1.Usage{
			Contract: "contracts/" + contract, Peer: "peers/provider", Role: role, Sequence: seq,
			StartTime: timestamppb.New(epoch.Add(time.Duration(hour) * time.Hour)), EndTime: timestamppb.New(epoch.Add(time.Duration(hour+1) * time.Hour)),
		}
	}
	one, two, now := row("7f3c9a", "Consumer", 1, 0), row("7f3c9a", "Consumer", 2, 1), row("7f3c9a", "Consumer", 0, 2)
	one.Stated, one.Counted, one.Amount, one.CountedAmount, one.DifferencePercent = used("2", "4.5"), used("2", "4.5"), eur("0.0625"), eur("0.0625"), "0"
	two.Stated, two.Counted, two.Amount, two.CountedAmount, two.DifferencePercent = used("3", "6"), used("2.9", "6"), eur("0.09"), eur("0.088"), "2.22"
	two.Stated["pods"], two.Counted["pods"] = "3", "3"
	now.Counted, now.CountedAmount = used("0.5", "1"), eur("0.015")
	one.State, two.State, now.State = "Stated", "Stated", "Running"
	waits := row("7f3c9a", "Consumer", 3, 2)
	waits.Counted, waits.CountedAmount, waits.State = used("1", "2"), eur("0.03"), "Counted"
	now.StartTime, now.EndTime = timestamppb.New(epoch.Add(3*time.Hour)), timestamppb.New(epoch.Add(200*time.Minute))
	older := row("91ab", "Provider", 7, 0) // of an older agent, which does not send the state
	older.Stated, older.Counted, older.Amount, older.CountedAmount, older.DifferencePercent = used("1", "1"), used("1", "1"), eur("0.025"), eur("0.025"), "0"
	return &ententev1.ListUsageResponse{Usage: []*ententev1.Usage{one, two, waits, now, older}}, nil
}

func (c *fakeCluster) RolloverIdentity(context.Context, *ententev1.RolloverIdentityRequest) (*ententev1.RolloverIdentityResponse, error) {
	leave, err := c.enter("RolloverIdentity")
	defer leave()
	return &ententev1.RolloverIdentityResponse{
		RootExpireTime: timestamppb.New(epoch.AddDate(10, 0, 0)), OverlapEndTime: timestamppb.New(epoch.AddDate(0, 0, 30)),
	}, err
}

func (c *fakeCluster) OffloadNamespace(_ context.Context, r *ententev1.OffloadNamespaceRequest) (*ententev1.OffloadNamespaceResponse, error) {
	lost := ""
	if p := r.GetPeerLost(); p != nil {
		lost = fmt.Sprintf(" %s %s", p.GetAction(), p.GetAfter().AsDuration())
	}
	if a := r.GetHomeApi(); a != "" {
		lost += " home API " + a
	}
	if o := r.GetOpenTo(); o != nil {
		lost += fmt.Sprintf(" open to %v", o.GetNamespaces())
	}
	leave, err := c.enter("OffloadNamespace %s %s %s %v%s", r.GetNamespace(), r.GetPodStrategy(), cmp.Or(r.GetRemoteName(), r.GetNameMapping()), r.GetPeers(), lost)
	defer leave()
	return &ententev1.OffloadNamespaceResponse{}, err
}

func (c *fakeCluster) ListOffloadings(context.Context, *ententev1.ListOffloadingsRequest) (*ententev1.ListOffloadingsResponse, error) {
	leave, err := c.enter("ListOffloadings")
	defer leave()
	if err != nil || !c.w.joined {
		return &ententev1.ListOffloadingsResponse{}, err
	}
	return &ententev1.ListOffloadingsResponse{Offloadings: []*ententev1.Offloading{
		{
			Namespace: "namespaces/batch", PodStrategy: "Remote", NameMapping: "Same", State: "Refused", CreateTime: timestamppb.New(epoch.Add(-time.Hour)),
			Message: "provider: its policy lets no consumer keep a name",
			Clusters: []*ententev1.OffloadingInCluster{
				{Peer: "peers/provider", State: "Refused", Message: "its policy lets no consumer keep a name"},
			},
		},
		{
			Namespace: "namespaces/shop", PodStrategy: "LocalAndRemote", NameMapping: "Suffixed", State: "Ready", CreateTime: timestamppb.New(epoch.Add(-time.Minute)),
			PeerLost: &ententev1.PeerLost{Action: "Fence"}, OpenTo: []string{"namespaces/batch"},
			Clusters: []*ententev1.OffloadingInCluster{{Peer: "peers/provider", RemoteName: "shop-cccccccc", Contract: "c-7d1f", State: "Ready", Fence: durationpb.New(5 * time.Minute)}},
		},
	}}, nil
}

func (c *fakeCluster) UnoffloadNamespace(_ context.Context, r *ententev1.UnoffloadNamespaceRequest) (*ententev1.UnoffloadNamespaceResponse, error) {
	leave, err := c.enter("UnoffloadNamespace %s", r.GetNamespace())
	defer leave()
	if err == nil && r.GetNamespace() == "namespaces/home" {
		err = failure(peering.ReasonNamespaceNotOffloaded, "namespace home is not offloaded")
	}
	open := map[string][]string{"namespaces/data": {"namespaces/shop", "namespaces/soph"}, "namespaces/login": {"namespaces/-"}}
	return &ententev1.UnoffloadNamespaceResponse{OpenTo: open[r.GetNamespace()]}, err
}

// WatchEvents breaks off once, and fails for good the second time.
func (c *fakeCluster) WatchEvents(r *ententev1.WatchEventsRequest, s grpc.ServerStreamingServer[ententev1.WatchEventsResponse]) error {
	leave, err := c.enter("WatchEvents %s", r.GetPeer())
	if c.live != nil {
		leave()
		return c.stream(s, func() error { return s.Send(&ententev1.WatchEventsResponse{Subject: "peers/provider"}) })
	}
	defer leave()
	if err != nil {
		return err
	}
	events := []*ententev1.WatchEventsResponse{
		{Subject: "peers/provider", Reason: "Connected", Message: "a session is up"},
		{Subject: "contracts/7f3c9a", Reason: "Active", Message: "contract 7f3c9a is in force\x1b[31m"},
	}
	if c.watches > 0 {
		events = []*ententev1.WatchEventsResponse{{Subject: "contracts/7f3c9a", Reason: "Draining", Message: "ended by the provider"}}
	}
	for i, e := range events {
		e.Peer, e.Time = "peers/provider", timestamppb.New(epoch.Add(time.Duration(c.watches*10+i)*time.Second))
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return c.brokenOff()
}

func (c *fakeCluster) WatchPeers(_ *ententev1.WatchPeersRequest, s grpc.ServerStreamingServer[ententev1.WatchPeersResponse]) error {
	leave, err := c.enter("WatchPeers")
	if c.live != nil {
		leave()
		return c.stream(s, func() error {
			return s.Send(&ententev1.WatchPeersResponse{Peer: &ententev1.Peer{Name: "peers/provider"}})
		})
	}
	defer leave()
	if err != nil {
		return err
	}
	messages := []*ententev1.WatchPeersResponse{{Peer: c.peer()}}
	for _, p := range c.w.hints {
		messages = append(messages, &ententev1.WatchPeersResponse{Peer: p})
	}
	messages = append(messages, &ententev1.WatchPeersResponse{Synced: true})
	if c.watches > 0 && len(c.w.hints) > 0 {
		messages = append(messages, &ententev1.WatchPeersResponse{Peer: c.w.hints[0], Forgotten: true})
	}
	if c.watches > 0 {
		c.w.stuck = "Connected"
		messages = append(messages, &ententev1.WatchPeersResponse{Peer: c.peer()}, &ententev1.WatchPeersResponse{Peer: &ententev1.Peer{Name: "peers/provider"}, Forgotten: true})
		c.w.stuck = ""
	}
	for _, m := range messages {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return c.brokenOff()
}

// stream is a watch that stays open, and sends a message whenever something changes.
func (c *fakeCluster) stream(s grpc.ServerStream, send func() error) error {
	if c.err != nil {
		return wire.Status(c.err).Err()
	}
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	for {
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case <-c.live:
			if err := send(); err != nil {
				return err
			}
		}
	}
}

func (c *fakeCluster) brokenOff() error {
	if c.watches++; c.watches == 1 {
		return failure(peering.ReasonStopping, "the agent is about to stop")
	}
	return failure(peering.ReasonInternal, "the agent has a fault")
}

func (c *fakeCluster) RotatePresharedKey(_ context.Context, r *ententev1.RotatePresharedKeyRequest) (*ententev1.RotatePresharedKeyResponse, error) {
	leave, err := c.enter("RotatePresharedKey %s", r.GetName())
	defer leave()
	if err != nil {
		return nil, err
	}
	w := c.w
	resp := &ententev1.RotatePresharedKeyResponse{RequestTime: timestamppb.New(w.clock)}
	if w.asked {
		w.rotated = w.clock
		resp.Peers = []string{"peers/provider"}
	}
	return resp, nil
}

func (c *fakeCluster) RotateNodeKeys(_ context.Context, r *ententev1.RotateNodeKeysRequest) (*ententev1.RotateNodeKeysResponse, error) {
	leave, err := c.enter("RotateNodeKeys %s", strings.Join(r.GetNodes(), ","))
	defer leave()
	if err != nil {
		return nil, err
	}
	c.w.rotated = c.w.clock
	nodes := r.GetNodes()
	if len(nodes) == 0 {
		nodes = []string{"gw1", "w1"}
	}
	return &ententev1.RotateNodeKeysResponse{Nodes: nodes, RequestTime: timestamppb.New(c.w.clock)}, nil
}

// rotatedNode is a node whose key is replaced a few polls after that was asked for.
func (w *world) rotatedNode(n *ententev1.NetworkNode) {
	n.KeyFirstUseTime = timestamppb.New(epoch.Add(-9 * 24 * time.Hour))
	switch {
	case w.rotated.IsZero():
	case w.keyWaits == "" && w.clock.Sub(w.rotated) > 2*time.Second:
		n.KeyFirstUseTime = timestamppb.New(w.rotated)
	default:
		n.KeyRotating, n.KeyRotationMessage = true, w.keyWaits
	}
}

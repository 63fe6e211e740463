package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func (s *service) ListPeeringRequests(ctx context.Context, req *ententev1.ListPeeringRequestsRequest) (*ententev1.ListPeeringRequestsResponse, error) {
	peers, err := s.peersOrOne(ctx, req.GetParent())
	if err != nil {
		return nil, err
	}
	var requests []*ententev1.PendingRequest
	for i := range peers {
		for _, r := range peers[i].Status.Requests {
			if slices.Contains(peers[i].Spec.DeniedRequests, r.ID) {
				continue // it is dropped with the next sweep of the provider's half
			}
			requests = append(requests, &ententev1.PendingRequest{
				Name:         "peers/" + peers[i].Name + "/requests/" + r.ID,
				Resources:    resourceMessage(r.Resources),
				Duration:     durationMessage(r.Duration),
				PriceCeiling: moneyMessage(r.PriceCeiling),
				CreateTime:   writeTime(r.Time),

				Pool: r.Pool, NodeSelector: r.NodeSelector, NoNetwork: r.Network == v1alpha1.NetworkNone,
				RuntimeClasses: r.RuntimeClasses, StorageClasses: r.StorageClasses,
			})
		}
	}
	part, next, err := page(req, "requests of "+req.GetParent(), requests, func(r **ententev1.PendingRequest) string {
		return named("peers", (*r).GetName())
	})
	return &ententev1.ListPeeringRequestsResponse{Requests: part, NextPageToken: next}, err
}

// peersOrOne returns the named peer, or all of them for peers/-.
func (s *service) peersOrOne(ctx context.Context, resource string) ([]v1alpha1.ForeignCluster, error) {
	if peerName(resource) == anyPeer {
		return s.foreignClusters(ctx)
	}
	fc, err := s.foreignCluster(ctx, resource)
	if err != nil {
		return nil, err
	}
	return []v1alpha1.ForeignCluster{*fc}, nil
}

func (s *service) ApprovePeeringRequest(ctx context.Context, req *ententev1.ApprovePeeringRequestRequest) (*ententev1.ApprovePeeringRequestResponse, error) {
	return &ententev1.ApprovePeeringRequestResponse{}, s.decideRequest(ctx, req.GetName(), v1alpha1.DecisionApproved, func(fc *v1alpha1.ForeignCluster) (yes, no *[]string) {
		return &fc.Spec.ApprovedRequests, &fc.Spec.DeniedRequests
	})
}

func (s *service) DenyPeeringRequest(ctx context.Context, req *ententev1.DenyPeeringRequestRequest) (*ententev1.DenyPeeringRequestResponse, error) {
	return &ententev1.DenyPeeringRequestResponse{}, s.decideRequest(ctx, req.GetName(), v1alpha1.DecisionDenied, func(fc *v1alpha1.ForeignCluster) (yes, no *[]string) {
		return &fc.Spec.DeniedRequests, &fc.Spec.ApprovedRequests
	})
}

// requestName splits peers/NAME/requests/ID.
func requestName(resource string) (peer, id string) {
	peer, id, _ = strings.Cut(resource, "/requests/")
	return peer, id
}

// decideRequest adds a request to one list of its peer and removes it from the other.
func (s *service) decideRequest(ctx context.Context, resource string, d v1alpha1.Decision, lists func(*v1alpha1.ForeignCluster) (to, from *[]string)) error {
	peer, id := requestName(resource)
	fc, err := s.foreignCluster(ctx, peer)
	if err != nil {
		return err
	}
	var contracts v1alpha1.ContractList
	if err := s.cfg.Client.List(ctx, &contracts); err != nil {
		return fmt.Errorf("list contracts: %w", err)
	}
	inForce := map[string]bool{}
	for i := range contracts.Items {
		if c := &contracts.Items[i]; c.Spec.PeerID == fc.Spec.ClusterID && !closed(c) {
			inForce[c.Spec.RequestID] = true
		}
	}
	err = s.changePeer(ctx, fc, func() error {
		to, from := lists(fc)
		pending := slices.ContainsFunc(fc.Status.Requests, func(r v1alpha1.PendingRequest) bool { return r.ID == id })
		if !pending && !slices.Contains(*to, id) && !slices.Contains(*from, id) {
			return unknown(peering.ReasonRequestUnknown, "request", id, "no request %q of peer %s waits for approval", id, fc.Name)
		}
		*from = slices.DeleteFunc(*from, func(s string) bool { return s == id })
		if !slices.Contains(*to, id) {
			*to = append(roomFor(*to, inForce), id)
			fc.RequestDecided(id, s.by(ctx, string(d)))
		}
		return nil
	})
	if err == nil {
		s.decided(ctx, fc, "Request"+string(d), "request "+id)
	}
	return err
}

// roomFor drops a decided request when the list is full: the oldest one without a contract in
// force, or the oldest one of all.
func roomFor(decided []string, inForce map[string]bool) []string {
	for len(decided) >= MaxDecidedRequests {
		i := max(slices.IndexFunc(decided, func(id string) bool { return !inForce[id] }), 0)
		decided = slices.Delete(decided, i, i+1)
	}
	return decided
}

func (s *service) TestPolicy(ctx context.Context, req *ententev1.TestPolicyRequest) (*ententev1.TestPolicyResponse, error) {
	request := &v1alpha1.PeeringRequest{}
	err := askedTerms(&request.Spec, &ententev1.CreatePeeringRequest{
		Resources: req.GetResources(), Duration: req.GetDuration(), PriceCeiling: req.GetPriceCeiling(), NoNetwork: req.GetNoNetwork(),
		Pool: req.GetPool(), NodeSelector: req.GetNodeSelector(), StorageClasses: req.GetStorageClasses(), RuntimeClasses: req.GetRuntimeClasses(),
	})
	if err != nil {
		return nil, err
	}
	peers, err := s.peersOrOne(ctx, req.GetPeer())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(peers, byName)
	resp := &ententev1.TestPolicyResponse{}
	if peerName(req.GetPeer()) == anyPeer {
		if resp.Results, err = s.testPolicies(ctx, len(peers) == 0); err != nil {
			return nil, err
		}
	}
	for i := range peers[:min(len(peers), MaxPolicyTests)] {
		result := &ententev1.PolicyTest{Peer: "peers/" + peers[i].Name}
		resp.Results = append(resp.Results, result)
		id := peering.ClusterID(peers[i].Spec.ClusterID)
		if id == "" {
			result.Reason, result.Message = string(peering.ReasonPeerNotTrusted), "the ID of this cluster is not known until its token is redeemed"
			continue
		}
		got, err := s.cfg.TestPolicy(ctx, id, request)
		if err != nil {
			return nil, fmt.Errorf("test the policy for peer %s: %w", peers[i].Name, err)
		}
		result.Policy, result.Reason, result.Message = got.Policy, string(got.Reason), got.Message
		result.Advertisement = previewMessage(got.Advertisement)
	}
	return resp, nil
}

// testPolicies returns what is wrong with policies whatever peer asks, and all policies if there is no peer to test them
// with.
func (s *service) testPolicies(ctx context.Context, all bool) ([]*ententev1.PolicyTest, error) {
	var policies v1alpha1.PeeringPolicyList
	if err := readAll(ctx, s.cfg.Client, &policies); err != nil {
		return nil, err
	}
	slices.SortFunc(policies.Items, func(a, b v1alpha1.PeeringPolicy) int { return strings.Compare(a.Name, b.Name) })
	var out []*ententev1.PolicyTest
	for i := range policies.Items[:min(len(policies.Items), MaxPolicyTests)] {
		p := &policies.Items[i]
		wrong := invalid(p)
		result := &ententev1.PolicyTest{Policy: p.Name, Message: wrong}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionValid)
		switch {
		case c == nil || c.ObservedGeneration != p.Generation:
			result.Message = "the agent has not checked it yet: ask again"
		case c.Status != metav1.ConditionTrue:
			result.Reason = string(peering.ReasonPolicyRefused)
		case wrong == "" && !all:
			continue
		case wrong == "":
			result.Message = "nothing is wrong with it; no peer is known that it could be tested with"
		}
		out = append(out, result)
	}
	return out, nil
}

package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// tokenClockSkew is how far apart two clusters' clocks may be for a token to be
// tried.
const tokenClockSkew = 5 * time.Minute

func (s *service) ListPeers(ctx context.Context, req *ententev1.ListPeersRequest) (*ententev1.ListPeersResponse, error) {
	list, err := s.foreignClusters(ctx)
	if err != nil {
		return nil, err
	}
	snapshot, err := s.snapshot(ctx, s.cfg.Client)
	if err != nil {
		return nil, err
	}
	part, next, err := pageOf(req, "peers", list, func(fc *v1alpha1.ForeignCluster) string { return fc.Name }, snapshot.peer)
	return &ententev1.ListPeersResponse{Peers: part, NextPageToken: next}, err
}

func (s *service) GetPeer(ctx context.Context, req *ententev1.GetPeerRequest) (*ententev1.GetPeerResponse, error) {
	fc, err := s.foreignCluster(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	peer, err := s.peer(ctx, fc)
	return &ententev1.GetPeerResponse{Peer: peer}, err
}

// peer returns a ForeignCluster as a message.
func (s *service) peer(ctx context.Context, fc *v1alpha1.ForeignCluster) (*ententev1.Peer, error) {
	snapshot, err := s.snapshot(ctx, s.cfg.Client)
	if err != nil {
		return nil, err
	}
	return snapshot.peer(fc), nil
}

func (s *service) JoinPeer(ctx context.Context, req *ententev1.JoinPeerRequest) (*ententev1.JoinPeerResponse, error) {
	token, err := jointoken.Parse(req.GetToken())
	if err != nil {
		return nil, err
	}
	self, err := s.cfg.Self(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe this cluster: %w", err)
	}
	if token.Issuer == self.ID {
		return nil, &peering.Error{Reason: peering.ReasonPeerIsSelf, Message: "the token is this cluster's own: redeem it in the other cluster"}
	}
	// The issuer's clock decides whether the token is still valid; this check only saves a call
	// that is sure to fail.
	if now := s.cfg.Now(); now.Sub(token.Expires) > tokenClockSkew {
		return nil, peering.Errorf(peering.ReasonTokenExpired, "the token expired at %s; it is %s by this cluster's clock. Make another with `entente token create`",
			token.Expires.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	name, err := s.cfg.Join(ctx, token, req.GetName())
	if err != nil {
		return nil, fmt.Errorf("join cluster %s: %w", token.Issuer, err)
	}
	peer, err := s.peerNamed(ctx, name)
	return &ententev1.JoinPeerResponse{Peer: peer}, err
}

func (s *service) peerNamed(ctx context.Context, name string) (*ententev1.Peer, error) {
	fc, err := s.foreignCluster(ctx, "peers/"+name)
	if err != nil {
		return nil, err
	}
	return s.peer(ctx, fc)
}

func (s *service) IntroducePeer(ctx context.Context, req *ententev1.IntroducePeerRequest) (*ententev1.IntroducePeerResponse, error) {
	if err := peering.CheckEndpoint(req.GetEndpoint()); err != nil {
		return nil, middleware.BadField("endpoint", "%s", jointoken.Redact(err.Error()))
	}
	id := peering.ClusterID(req.GetClusterId())
	if req.GetApprove() && id == "" {
		return nil, middleware.BadField("cluster_id", "is required with approve: without it nothing says which cluster to trust")
	}
	self, err := s.cfg.Self(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe this cluster: %w", err)
	}
	if id == self.ID {
		return nil, &peering.Error{Reason: peering.ReasonPeerIsSelf, Message: "that is this cluster's own ID"}
	}
	name, err := s.cfg.Introduce(ctx, req.GetEndpoint(), id, req.GetName(), req.GetApprove())
	if err != nil {
		return nil, fmt.Errorf("introduce this cluster at %s: %w", req.GetEndpoint(), err)
	}
	peer, err := s.peerNamed(ctx, name)
	return &ententev1.IntroducePeerResponse{Peer: peer}, err
}

// ApprovePeer implements AdminService: it writes the decision, on which the reconcilers act.
func (s *service) ApprovePeer(ctx context.Context, req *ententev1.ApprovePeerRequest) (*ententev1.ApprovePeerResponse, error) {
	code := strings.ReplaceAll(req.GetCode(), " ", "")
	peer, err := s.decide(ctx, req.GetName(), v1alpha1.DecisionApproved, func(fc *v1alpha1.ForeignCluster) error {
		return checkCode(fc, code)
	})
	return &ententev1.ApprovePeerResponse{Peer: peer}, err
}

// checkCode compares the code that the other side's administrator read out. An empty code means
// that the administrator compared the codes by eye. A cluster that was approved before and has no
// code now was compared then: its ID has not changed since.
func checkCode(fc *v1alpha1.ForeignCluster, code string) error {
	if fc.Hint() {
		return peering.Errorf(peering.ReasonIntroductionUnknown,
			"there is no code to compare with: discovery found %s, and nothing proves its identity; join it with a token, or by one of its endpoints to get a code", fc.Name)
	}
	pending := fc.Status.Introduction != nil && fc.Status.Introduction.Code != ""
	if code == "" || !pending && fc.Spec.Decision == v1alpha1.DecisionApproved {
		return nil
	}
	if fc.Status.Introduction == nil || fc.Status.Introduction.Code == "" {
		return peering.Errorf(peering.ReasonIntroductionUnknown,
			"there is no code to compare with: %s has not introduced itself, or its introduction lapsed; introduce one cluster to the other again", fc.Name)
	}
	if fc.Status.Introduction.Code != code {
		return peering.Errorf(peering.ReasonCodeMismatch,
			"the code is not the one that this cluster has for %s: either one of you misread it, or the connection between the two clusters was intercepted. Introduce them again and compare the new code", fc.Name)
	}
	return nil
}

func (s *service) DenyPeer(ctx context.Context, req *ententev1.DenyPeerRequest) (*ententev1.DenyPeerResponse, error) {
	peer, err := s.decide(ctx, req.GetName(), v1alpha1.DecisionDenied, nil)
	return &ententev1.DenyPeerResponse{Peer: peer}, err
}

// decide writes a decision about a peer after check accepted it. A peer that changed meanwhile is
// checked again.
func (s *service) decide(ctx context.Context, resource string, d v1alpha1.Decision, check func(*v1alpha1.ForeignCluster) error) (*ententev1.Peer, error) {
	fc, err := s.foreignCluster(ctx, resource)
	if err != nil {
		return nil, err
	}
	err = s.changePeer(ctx, fc, func() error {
		if check != nil {
			if err := check(fc); err != nil {
				return err
			}
		}
		fc.Spec.Decision = d
		metav1.SetMetaDataAnnotation(&fc.ObjectMeta, v1alpha1.AnnotationDecidedBy, s.by(ctx, string(d)))
		if d == v1alpha1.DecisionApproved {
			fc.TakeFromPolicy() // from now on an administrator's decision
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.decided(ctx, fc, string(d), "trust in it")
	return s.peer(ctx, fc)
}

// changePeer is like change, and reports a deleted peer as unknown.
func (s *service) changePeer(ctx context.Context, fc *v1alpha1.ForeignCluster, mutate func() error) error {
	err := change(ctx, s.cfg.Client, fc, mutate)
	if apierrors.IsNotFound(err) {
		return unknown(peering.ReasonPeerUnknown, "peer", fc.Name, "peer %s was just forgotten", fc.Name)
	}
	if err != nil {
		return fmt.Errorf("decide about foreign cluster %s: %w", fc.Name, err)
	}
	return nil
}

package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// adminFieldManager writes what administrators ask for, so that it can be told
// from what the reconcilers write.
const adminFieldManager = "entente-admin"

// adminServer is the AdminService: it reads and writes custom resources, and
// nothing else.
type adminServer struct {
	ententev1.UnimplementedAdminServiceServer
	cfg AdminConfig
}

// GetInfo implements AdminService.
func (s *adminServer) GetInfo(ctx context.Context, _ *ententev1.GetInfoRequest) (*ententev1.GetInfoResponse, error) {
	self, err := s.cfg.Self(ctx)
	if err != nil {
		return nil, fmt.Errorf("tell of this cluster: %w", err)
	}
	var peers v1alpha1.ForeignClusterList
	if err := s.cfg.Client.List(ctx, &peers); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	return &ententev1.GetInfoResponse{
		ClusterId:   string(self.ID),
		ClusterName: self.Name,
		Version:     self.Version,
		Endpoints:   self.Endpoints,
		Peers:       int32(len(peers.Items)),
		Protocol:    self.Protocol,
	}, nil
}

// ListPeers implements AdminService (AIP-158).
func (s *adminServer) ListPeers(ctx context.Context, req *ententev1.ListPeersRequest) (*ententev1.ListPeersResponse, error) {
	size := int(req.GetPageSize())
	if size == 0 {
		size = DefaultPageSize
	}
	size = min(size, MaxPageSize)
	after, err := parsePageToken(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	var list v1alpha1.ForeignClusterList
	if err := s.cfg.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.ForeignCluster) int { return cmp.Compare(a.Name, b.Name) })
	rest := list.Items
	if after != "" {
		rest = slices.DeleteFunc(rest, func(fc v1alpha1.ForeignCluster) bool { return fc.Name <= after })
	}
	page := rest[:min(size, len(rest))]
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	resp := &ententev1.ListPeersResponse{}
	for i := range page {
		resp.Peers = append(resp.Peers, view.peer(&page[i]))
	}
	if len(rest) > len(page) {
		resp.NextPageToken = pageToken(page[len(page)-1].Name)
	}
	return resp, nil
}

// pageTokenPrefix is the version of page tokens, which are opaque to callers.
const pageTokenPrefix = "1:"

func pageToken(after string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(pageTokenPrefix + after))
}

func parsePageToken(token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	after, ok := strings.CutPrefix(string(b), pageTokenPrefix)
	if err != nil || !ok || after == "" {
		return "", badField("page_token", "is not a next_page_token of this server")
	}
	return after, nil
}

// GetPeer implements AdminService.
func (s *adminServer) GetPeer(ctx context.Context, req *ententev1.GetPeerRequest) (*ententev1.GetPeerResponse, error) {
	fc, err := s.foreignCluster(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	return &ententev1.GetPeerResponse{Peer: view.peer(fc)}, nil
}

// CreateToken implements AdminService.
func (s *adminServer) CreateToken(ctx context.Context, req *ententev1.CreateTokenRequest) (*ententev1.CreateTokenResponse, error) {
	ttl := DefaultTokenTTL
	if req.GetTtl() != nil {
		ttl = min(req.GetTtl().AsDuration(), MaxTokenTTL)
	}
	token, err := s.cfg.MintToken(ctx, ttl)
	if err != nil {
		return nil, fmt.Errorf("make token: %w", err)
	}
	text, err := token.Encode()
	if err != nil {
		return nil, fmt.Errorf("write token: %w", err)
	}
	return &ententev1.CreateTokenResponse{Token: text, TokenId: token.ID, ExpireTime: timestamppb.New(token.Expires)}, nil
}

// JoinPeer implements AdminService.
func (s *adminServer) JoinPeer(ctx context.Context, req *ententev1.JoinPeerRequest) (*ententev1.JoinPeerResponse, error) {
	token, err := peering.ParseToken(req.GetToken())
	if err != nil {
		return nil, err
	}
	self, err := s.cfg.Self(ctx)
	if err != nil {
		return nil, fmt.Errorf("tell of this cluster: %w", err)
	}
	if token.Issuer == self.ID {
		return nil, &wire.Error{Reason: wire.ReasonPeerIsSelf, Message: "the token is this cluster's own: redeem it in the other cluster"}
	}
	// The issuer's clock decides whether the token still holds; this one only saves
	// a call that is sure to fail.
	if now := s.cfg.Now(); now.Sub(token.Expires) > tokenClockSkew {
		return nil, wire.Errorf(wire.ReasonTokenExpired, "the token expired at %s; it is %s by this cluster's clock. Make another with `entente token create`",
			token.Expires.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	name, err := s.cfg.Join(ctx, token, req.GetName())
	if err != nil {
		return nil, fmt.Errorf("join cluster %s: %w", token.Issuer, err)
	}
	fc, err := s.foreignCluster(ctx, "peers/"+name)
	if err != nil {
		return nil, err
	}
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	return &ententev1.JoinPeerResponse{Peer: view.peer(fc)}, nil
}

// tokenClockSkew is how far apart two clusters' clocks may be for a token to be
// tried.
const tokenClockSkew = 5 * time.Minute

// foreignCluster finds a peer by peers/NAME, where NAME is that of its
// ForeignCluster or its cluster ID.
func (s *adminServer) foreignCluster(ctx context.Context, resource string) (*v1alpha1.ForeignCluster, error) {
	name := peerName(resource)
	var fc v1alpha1.ForeignCluster
	err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &fc)
	if err == nil {
		return &fc, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get foreign cluster %s: %w", name, err)
	}
	if _, err := peering.ParseClusterID(name); err == nil {
		var list v1alpha1.ForeignClusterList
		if err := s.cfg.Client.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("list foreign clusters: %w", err)
		}
		for i := range list.Items {
			if list.Items[i].Spec.ClusterID == name {
				return &list.Items[i], nil
			}
		}
	}
	return nil, &wire.Error{
		Reason:   wire.ReasonPeerUnknown,
		Message:  fmt.Sprintf("no peer %q is known here; `entente info peer` lists those that are", name),
		Metadata: map[string]string{"peer": name},
	}
}

func badField(field, format string, args ...any) error {
	return &wire.Error{
		Reason: wire.ReasonRequestInvalid, Message: "the request is not valid",
		Violations: []wire.Violation{{Field: field, Message: fmt.Sprintf(format, args...)}},
	}
}

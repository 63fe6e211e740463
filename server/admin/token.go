package admin

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering/jointoken"
)

// Tokens are the one-time tokens of this cluster.
type Tokens interface {
	// Mint makes a token that lives for ttl.
	Mint(ctx context.Context, ttl time.Duration) (jointoken.Token, error)
	// List returns the tokens that have not expired, in any order.
	List(ctx context.Context) ([]jointoken.Info, error)
	// Revoke revokes a token, so that it can no longer be redeemed. The error is TOKEN_UNKNOWN if
	// there is no such token.
	Revoke(ctx context.Context, id string) error
}

func (s *service) CreateToken(ctx context.Context, req *ententev1.CreateTokenRequest) (*ententev1.CreateTokenResponse, error) {
	ttl := DefaultTokenTTL
	if req.GetTtl() != nil {
		ttl = min(req.GetTtl().AsDuration(), MaxTokenTTL)
	}
	token, err := s.cfg.Tokens.Mint(ctx, ttl)
	if err != nil {
		return nil, fmt.Errorf("make token: %w", err)
	}
	text, err := token.Encode()
	if err != nil {
		return nil, fmt.Errorf("write token: %w", err)
	}
	return &ententev1.CreateTokenResponse{Token: text, TokenId: token.ID, ExpireTime: timestamppb.New(token.Expires)}, nil
}

func (s *service) ListTokens(ctx context.Context, req *ententev1.ListTokensRequest) (*ententev1.ListTokensResponse, error) {
	list, err := s.cfg.Tokens.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	part, next, err := pageOf(req, "tokens", list, func(t *jointoken.Info) string { return t.ID }, func(t *jointoken.Info) *ententev1.Token {
		return &ententev1.Token{
			Name: "tokens/" + t.ID, CreateTime: timeMessage(t.Created), ExpireTime: timeMessage(t.Expires), RedeemedBy: string(t.RedeemedBy),
		}
	})
	return &ententev1.ListTokensResponse{Tokens: part, NextPageToken: next}, err
}

func (s *service) RevokeToken(ctx context.Context, req *ententev1.RevokeTokenRequest) (*ententev1.RevokeTokenResponse, error) {
	id := named("tokens", req.GetName())
	if err := s.cfg.Tokens.Revoke(ctx, id); err != nil {
		return nil, fmt.Errorf("revoke token %s: %w", id, err)
	}
	return &ententev1.RevokeTokenResponse{}, nil
}

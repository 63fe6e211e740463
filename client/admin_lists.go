package client

import (
	"context"
	"fmt"
	"iter"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Peers ranges over all clusters that are known, page by page. An error ends it.
func (a *Admin) Peers(ctx context.Context) iter.Seq2[*ententev1.Peer, error] {
	return all(func(token string) ([]*ententev1.Peer, string, error) {
		resp, err := a.ListPeers(ctx, &ententev1.ListPeersRequest{PageSize: pageSize, PageToken: token})
		return resp.GetPeers(), resp.GetNextPageToken(), err
	})
}

// Peerings ranges over all peerings that this cluster asks for.
func (a *Admin) Peerings(ctx context.Context) iter.Seq2[*ententev1.Peering, error] {
	return all(func(token string) ([]*ententev1.Peering, string, error) {
		resp, err := a.ListPeerings(ctx, &ententev1.ListPeeringsRequest{PageSize: pageSize, PageToken: token})
		return resp.GetPeerings(), resp.GetNextPageToken(), err
	})
}

// PeeringRequests ranges over the requests of a peer (peers/NAME, or peers/- for all) that an
// administrator has to approve.
func (a *Admin) PeeringRequests(ctx context.Context, parent string) iter.Seq2[*ententev1.PendingRequest, error] {
	return all(func(token string) ([]*ententev1.PendingRequest, string, error) {
		resp, err := a.ListPeeringRequests(ctx, &ententev1.ListPeeringRequestsRequest{PageSize: pageSize, Parent: parent, PageToken: token})
		return resp.GetRequests(), resp.GetNextPageToken(), err
	})
}

// Contracts ranges over the contracts with a peer (peers/NAME), or over all.
func (a *Admin) Contracts(ctx context.Context, peer string) iter.Seq2[*ententev1.Contract, error] {
	return all(func(token string) ([]*ententev1.Contract, string, error) {
		resp, err := a.ListContracts(ctx, &ententev1.ListContractsRequest{PageSize: pageSize, Peer: peer, PageToken: token})
		return resp.GetContracts(), resp.GetNextPageToken(), err
	})
}

// Usage ranges over what was used of a contract (contracts/ID), or of all, period
// by period.
func (a *Admin) Usage(ctx context.Context, contract string) iter.Seq2[*ententev1.Usage, error] {
	return all(func(token string) ([]*ententev1.Usage, string, error) {
		resp, err := a.ListUsage(ctx, &ententev1.ListUsageRequest{PageSize: pageSize, Contract: contract, PageToken: token})
		return resp.GetUsage(), resp.GetNextPageToken(), err
	})
}

// Offloadings ranges over the namespaces whose pods may run in foreign clusters.
func (a *Admin) Offloadings(ctx context.Context) iter.Seq2[*ententev1.Offloading, error] {
	return all(func(token string) ([]*ententev1.Offloading, string, error) {
		resp, err := a.ListOffloadings(ctx, &ententev1.ListOffloadingsRequest{PageSize: pageSize, PageToken: token})
		return resp.GetOffloadings(), resp.GetNextPageToken(), err
	})
}

// Tokens ranges over the tokens that can still be redeemed.
func (a *Admin) Tokens(ctx context.Context) iter.Seq2[*ententev1.Token, error] {
	return all(func(token string) ([]*ententev1.Token, string, error) {
		resp, err := a.ListTokens(ctx, &ententev1.ListTokensRequest{PageSize: pageSize, PageToken: token})
		return resp.GetTokens(), resp.GetNextPageToken(), err
	})
}

// all ranges over the rows of all pages (AIP-158).
func all[T any](page func(token string) (rows []*T, next string, err error)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		token := ""
		for range maxPages {
			rows, next, err := page(token)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			token = next
		}
		yield(nil, fmt.Errorf("the list has no end: more than %d pages", maxPages))
	}
}

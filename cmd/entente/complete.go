package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// completeTimeout is how long the shell waits for names at most.
const completeTimeout = 3 * time.Second

// names lists the values that an argument can have.
type names func(ctx context.Context, c *cluster) ([]string, error)

// completes offers names of the local cluster for a command's first argument.
func (a *app) completes(cmd *cobra.Command, list names) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, have []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(have) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.offer(cmd, list)
	}
}

// completesFlag offers names of the local cluster for a flag.
func (a *app) completesFlag(cmd *cobra.Command, flag string, list names) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.offer(cmd, list)
	})
}

func (a *app) offer(cmd *cobra.Command, list names) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	c, err := a.local(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer c.hangUp()
	found, err := list(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func peerNames(ctx context.Context, c *cluster) ([]string, error) {
	peers, err := c.peers(ctx)
	return described(peers, format.ShortName, func(p *ententev1.Peer) string { return p.GetRole() }), err
}

func contractNames(ctx context.Context, c *cluster) ([]string, error) {
	contracts, err := c.contracts(ctx, "")
	return described(contracts, (*ententev1.Contract).GetContractId, func(k *ententev1.Contract) string {
		return k.GetRole() + ", " + k.GetPhase() + ", " + format.Short(k.GetPeer())
	}), err
}

func peeringNames(ctx context.Context, c *cluster) ([]string, error) {
	peerings, err := c.peerings(ctx)
	return described(peerings, func(p *ententev1.Peering) string { return format.Short(p.GetName()) },
		format.ProviderOf), err
}

func requestNames(ctx context.Context, c *cluster) ([]string, error) {
	requests, err := c.requests(ctx, "-")
	return described(requests, func(r *ententev1.PendingRequest) string { return format.Short(r.GetName()) },
		func(r *ententev1.PendingRequest) string { return format.Asked(r.GetResources()) }), err
}

func tokenNames(ctx context.Context, c *cluster) ([]string, error) {
	tokens, err := c.tokens(ctx)
	return described(slices.DeleteFunc(tokens, isRedeemed), func(t *ententev1.Token) string { return format.Short(t.GetName()) },
		func(*ententev1.Token) string { return "" }), err
}

// namespaceNames returns all namespaces that the API server lists for this user.
func namespaceNames(ctx context.Context, c *cluster) ([]string, error) {
	if c.namespaces == nil {
		return nil, nil
	}
	return c.namespaces(ctx)
}

func offloadedNames(ctx context.Context, c *cluster) ([]string, error) {
	all, err := c.offloadings(ctx)
	return described(all, func(o *ententev1.Offloading) string { return format.Short(o.GetNamespace()) },
		func(o *ententev1.Offloading) string { return o.GetPodStrategy() + ", " + o.GetState() }), err
}

// described returns names with descriptions, as shells show them.
func described[T any](items []T, name, what func(T) string) []string {
	out := make([]string, 0, len(items))
	for _, item := range items {
		out = append(out, strings.TrimSuffix(name(item)+"\t"+printer.Clean(what(item)), "\t"))
	}
	return out
}

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/places"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) discoverCommand() *cobra.Command {
	var from places.Places
	var follow bool
	cmd := a.command(&cobra.Command{
		Use:     "discover",
		Short:   "List the clusters that discovery finds",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return from.Check(cmd.Flags().Changed("domain")) },
	}, func(ctx context.Context, r *run) error {
		if follow {
			if err := from.Off(r.label, r.browsedAt(ctx)); err != nil {
				return err
			}
			return r.watchDiscovered(ctx, &from)
		}
		peers, err := r.peers(ctx)
		if err != nil {
			return err
		}
		peers = slices.DeleteFunc(peers, func(p *ententev1.Peer) bool { return len(from.Of(p)) == 0 })
		if len(peers) == 0 {
			return r.noneFound(ctx, &from)
		}
		return printList(r, peers, "", "", func() *printer.Table {
			t := a.noted("NAME", "FOUND", "AT", "TRUSTED", "SEEN", "CLUSTER ID", "WARNING")
			for _, p := range peers {
				for _, m := range from.Of(p) {
					t.Row(format.ShortName(p), format.FoundText(m), format.EndpointText(m), format.TrustStatus(p), a.since(m.GetLastSeenTime()), p.GetClusterId(), format.ConditionOf(p, v1alpha1.ConditionImpostor).GetMessage())
				}
			}
			return t
		})
	}, printer.FormTable)
	cmd.Flags().BoolVar(&from.LAN, "lan", false, "Only those that are on a LAN, or in a domain of --domain")
	cmd.Flags().StringSliceVar(&from.Domains, "domain", nil, "Only those that this domain lists, or a LAN with --lan; may be repeated")
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "Keep running, and print a line for each change, until interrupted")
	cmd.AddCommand(a.discoverZoneCommand())
	return cmd
}

// watchDiscovered prints what is found, and again whenever that changes.
func (r *run) watchDiscovered(ctx context.Context, from *places.Places) error {
	l := printer.NewLines(r.out, r.colour, []int{20, 12, 20, 24}, "TIME", "NAME", "FOUND", "AT", "TRUSTED")
	printed := map[string]string{}
	return watch(ctx, r, "watch peers", func(ctx context.Context) (grpc.ServerStreamingClient[ententev1.WatchPeersResponse], error) {
		return r.admin.WatchPeers(ctx, &ententev1.WatchPeersRequest{})
	}, func(m *ententev1.WatchPeersResponse) error {
		p := m.GetPeer()
		now := from.Of(p)
		if m.GetSynced() || len(now) == 0 && printed[format.ShortName(p)] == "" {
			return nil
		}
		var rows [][]string
		for _, s := range now {
			rows = append(rows, []string{format.ShortName(p), format.FoundText(s), format.EndpointText(s), format.TrustStatus(p)})
		}
		if len(now) == 0 || m.GetForgotten() {
			rows = [][]string{{format.ShortName(p), "gone"}}
		}
		// A reopened watch sends all peers again, and peers change in other ways, too.
		key := fmt.Sprint(rows)
		if printed[format.ShortName(p)] == key {
			return nil
		}
		printed[format.ShortName(p)] = key
		if rows[0][1] == "gone" {
			delete(printed, format.ShortName(p))
		}
		if r.output.Structured() {
			return r.output.WriteNext(r.out, m)
		}
		for _, row := range rows {
			l.Row(append([]string{format.Moment(timestamppb.New(r.now()))}, row...)...)
		}
		return nil
	})
}

// browsedAt is where a cluster looks for others; nil means that the caller may not read it.
func (c *cluster) browsedAt(ctx context.Context) *places.Places {
	if c.browsed == nil {
		return nil
	}
	b, err := c.browsed(ctx)
	if err != nil {
		return nil
	}
	return b
}

// noneFound says why nothing is found: discovery is off, something is wrong, or
// there is no other cluster.
func (r *run) noneFound(ctx context.Context, from *places.Places) error {
	b := r.browsedAt(ctx)
	if err := from.Off(r.label, b); err != nil {
		return err
	}
	info, err := r.self(ctx)
	if err != nil {
		return err
	}
	if err := printList[*ententev1.Peer](r, nil, from.Nothing(b), "Join a cluster that you know of:\n  entente join HOST:PORT", nil); err != nil {
		return err
	}
	return exit.Problems(from.Hindered(format.Problems(info, nil), b))
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) networkCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "network", Short: "Connect to peers, show the network with them, and what it would be"}, a.networkConnectCommand(), a.networkDisconnectCommand(), a.networkParametersCommand(), a.networkPlanCommand(), a.networkStatusCommand(), a.networkRotateCommand())
}

func (a *app) networkStatusCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "status [PEER]", Short: "Show how nodes reach peers, and what is wrong on the nodes"}, func(ctx context.Context, r *run) error {
		resp, err := r.admin.GetNetworkStatus(ctx, &ententev1.GetNetworkStatusRequest{Peer: peerName(r.first())})
		if err != nil {
			return r.call("read the state of the network", err)
		}
		if r.output.Structured() {
			return r.write(resp)
		}
		r.printNetworkStatus(resp)
		return nil
	}, printer.FormTable, printer.FormWide)
}

func (r *run) printNetworkStatus(resp *ententev1.GetNetworkStatusResponse) {
	if len(resp.GetPaths()) == 0 {
		r.none("There is no tunnel.", "")
	} else {
		t := r.noted("PEER", "NODE", "TO", "CONNECTION", "ENDPOINT", "STATE", "RTT", "MTU", "USE", "WHY")
		format.PrintPaths(t, resp.GetPaths())
	}
	if r.output.Form == printer.FormWide && len(resp.GetNodes()) > 0 {
		_, _ = fmt.Fprintln(r.out)
		t := r.table("NODE", "GATEWAY", "CARRIER", "PEER GATEWAYS", "END TO END", "BACKEND", "OFFLOADS", "KEY", "DIALLED HERE", "SENT TO PEERS")
		for _, n := range resp.GetNodes() {
			t.Row(n.GetName(), format.YesNo(n.GetGateway()), format.Hop(n, v1alpha1.ConditionCarrier), format.Hop(n, v1alpha1.ConditionPeerGateways), format.Hop(n, v1alpha1.ConditionEndToEnd),
				cmp.Or(n.GetBackend(), "-"), format.OffloadsOf(n), format.KeyAge(r.now(), n), cmp.Or(strings.Join(n.GetEndpoints(), ","), "-"), cmp.Or(strings.Join(n.GetAnnouncedEndpoints(), ","), "-"))
		}
		t.Flush()
	}
	if format.Troubled(resp.GetNodes()) {
		_, _ = fmt.Fprintln(r.out)
		format.PrintTroubles(r.noted("SEVERITY", "REASON", "NODE", "WHAT"), resp.GetNodes())
	}
	if resp.GetOmitted() > 0 {
		r.next("%d more paths and nodes are not shown.", resp.GetOmitted())
	}
}

func (a *app) networkPlanCommand() *cobra.Command {
	var prefixes []string
	cmd := a.command(&cobra.Command{Use: "plan [PEER]", Short: "Show what the network with a peer would be, and what in it cannot work"}, func(ctx context.Context, r *run) error {
		req := &ententev1.PlanNetworkRequest{Prefixes: prefixes, Peer: peerName(r.first())}
		if req.GetPeer() == "" && len(prefixes) == 0 {
			req.Peer = peerName(format.AnyPeer)
		}
		resp, err := r.admin.PlanNetwork(ctx, req)
		if err != nil {
			return r.call("plan the network", err)
		}
		return r.printPlans(resp.GetPlans())
	}, printer.FormTable)
	cmd.Flags().StringSliceVar(&prefixes, "prefix", nil, "The pod `prefixes` of a peer that has sent none yet")
	return cmd
}

func (r *run) printPlans(plans []*ententev1.NetworkPlan) error {
	switch {
	case r.output.Structured() && len(r.argv) == 1 && len(plans) == 1:
		if err := r.write(plans[0]); err != nil {
			return err
		}
	case r.output.Structured() || len(plans) == 0:
		if err := printList(r, plans, "No peers yet.", "Plan for one with:\n  entente network plan --prefix 10.244.0.0/16", nil); err != nil {
			return err
		}
	default:
		for i, p := range plans {
			if i > 0 {
				_, _ = fmt.Fprintln(r.out)
			}
			format.PrintPlan(r.newTable, p)
		}
	}
	if slices.ContainsFunc(plans, func(p *ententev1.NetworkPlan) bool { return len(p.GetErrors()) > 0 }) {
		return &exit.Error{Code: exit.Unhealthy, Err: errors.New("it cannot work as planned")}
	}
	return nil
}

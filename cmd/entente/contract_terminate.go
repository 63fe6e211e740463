package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) contractTerminateCommand() *cobra.Command {
	var now, yes bool
	var wait flags.Timeout
	cmd := a.command(&cobra.Command{Use: "terminate CONTRACT", Short: "End a contract, in either role, with its notice or at once"}, func(ctx context.Context, r *run) error {
		if now {
			if err := r.confirmEnd(ctx, yes); err != nil {
				return err
			}
		}
		ctx, cancel := wait.Bound(ctx)
		defer cancel()
		resp, err := r.admin.TerminateContract(ctx, &ententev1.AdminServiceTerminateContractRequest{Name: contractName(r.argv[0]), Now: now})
		if err != nil {
			return r.call("terminate contract "+r.argv[0], err)
		}
		k, err := r.ended(ctx, resp.GetContract(), now)
		if err != nil {
			return err
		}
		k.Envelope = "" // the terms are not needed here
		r.noteAsksAgain(ctx, k)
		return r.result(k)
	})
	cmd.Flags().BoolVar(&now, "now", false, "End it at once, without notice: pods that run under it end")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask")
	wait.Add(cmd.Flags(), time.Minute, "How long to wait")
	return cmd
}

// confirmEnd asks before pods are killed.
func (r *run) confirmEnd(ctx context.Context, yes bool) error {
	k, err := r.contract(ctx, r.argv[0])
	if err != nil || k.GetPods() == 0 {
		return err
	}
	return r.confirm(yes, fmt.Sprintf("%s under contract %s will be killed. Continue?", format.Count(int(k.GetPods()), "pod"), k.GetContractId()))
}

// ended waits until a terminated contract drains, or is closed.
func (r *run) ended(ctx context.Context, k *ententev1.Contract, now bool) (*ententev1.Contract, error) {
	id := k.GetContractId()
	err := r.poll(ctx, r.cluster, "see the Contract's conditions: kubectl get contracts -o yaml", func(ctx context.Context) (bool, string, error) {
		// Terminating changes the resource; the agent acts on that later.
		next, err := r.contract(ctx, id)
		if err != nil {
			return false, "", err
		}
		k = next
		over := k.GetPhase() == "Closed" || !now && k.GetPhase() != "Active"
		return over, fmt.Sprintf("contract %s to end: it is %s", id, k.GetPhase()), nil
	})
	switch {
	case err != nil:
		return nil, err
	case k.GetDrainUntil() != nil:
		r.done("Contract %s drains, until %s at the latest", id, format.Moment(k.GetDrainUntil()))
	default:
		r.done("Contract %s is %s", id, strings.ToLower(k.GetPhase()))
	}
	return k, nil
}

// noteAsksAgain says that a policy gives the consumer another contract at once, if one does.
func (r *run) noteAsksAgain(ctx context.Context, k *ententev1.Contract) {
	if k.GetRole() == "Provider" {
		resp, _ := r.admin.TestPolicy(ctx, &ententev1.TestPolicyRequest{Peer: k.GetPeer()}) // without it, the help says so
		r.note("%s", format.AsksAgain(resp.GetResults()))
	}
}

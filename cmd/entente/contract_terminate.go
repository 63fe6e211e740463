package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) contractTerminateCommand() *cobra.Command {
	var now, yes bool
	var timeout time.Duration
	var output printer.Flags
	cmd := &cobra.Command{
		Use:   "terminate CONTRACT",
		Short: "End a contract, in either role, with its notice or at once",
		Long: `End a contract, in either role. A provider gives the notice that the contract has:
until then pods run on, and none are added. With --now they end at once.

It waits until the contract is draining, or with --now until it is closed. A
consumer that ends a contract whose ask stays asks again; ` + "`entente unpeer`" + ` ends
both. One whose provider ended it asks again only if any provider will do.`,
		Example: indent("entente contract terminate 7f3c…\nentente contract terminate 7f3c… --now --yes"),
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.onLocal(&output, func(ctx context.Context, c *cluster, argv []string) error {
			if timeout <= 0 {
				return usageError("--timeout %s: must be positive", timeout)
			}
			if now {
				if err := a.confirmEnd(ctx, c, argv[0], yes); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			resp, err := c.admin.TerminateContract(ctx, &ententev1.AdminServiceTerminateContractRequest{Name: contractName(argv[0]), Now: now})
			if err != nil {
				return c.call("terminate contract "+argv[0], err)
			}
			k, err := a.progress(&output).ended(ctx, c, resp.GetContract(), now)
			if err != nil {
				return err
			}
			k.Envelope = "" // the terms are not asked for here
			return a.result(&output, k)
		}),
	}
	cmd.Flags().BoolVar(&now, "now", false, "At once, without notice: what runs by it ends")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "How long to wait")
	output.Add(cmd)
	return a.completes(cmd, 1, contractNames)
}

// confirmEnd asks before pods are killed.
func (a *app) confirmEnd(ctx context.Context, c *cluster, name string, yes bool) error {
	k, err := c.contract(ctx, name)
	if err != nil || k.GetPods() == 0 {
		return err
	}
	return a.confirm(yes, fmt.Sprintf("%s by contract %s will be killed. Go on?", format.CountPods(int(k.GetPods())), k.GetContractId()))
}

// ended waits until a contract that was ended drains, or is closed.
func (p *progress) ended(ctx context.Context, c *cluster, k *ententev1.Contract, now bool) (*ententev1.Contract, error) {
	id := k.GetContractId()
	err := p.poll(ctx, c, "see the Contract's conditions: kubectl get contracts -o yaml", func(ctx context.Context) (bool, string, error) {
		// Ending it is a change of its resource, which the agent then acts upon.
		next, err := c.contract(ctx, id)
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
		p.done(c.label, "Contract %s drains, until %s at the latest", id, format.Moment(k.GetDrainUntil()))
	default:
		p.done(c.label, "Contract %s is %s", id, strings.ToLower(k.GetPhase()))
	}
	return k, nil
}

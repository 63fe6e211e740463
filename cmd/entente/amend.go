package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/entente-dev/entente/cmd/entente/internal/amendment"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// amendFlags are the changes of a request.
type amendFlags struct {
	resources    flags.Resources
	duration     flags.Duration
	priceCeiling flags.Money
	renewal      bool
	noRenewal    bool
	dryRun, wait bool
	timeout      flags.Timeout
}

func (a *app) amendCommand() *cobra.Command {
	var f amendFlags
	cmd := a.command(&cobra.Command{Use: "amend PEERING", Short: "Ask for more, for less, for longer or at another price"}, func(ctx context.Context, r *run) error {
		req, err := f.request(r.argv[0])
		if err != nil {
			return err
		}
		ctx, cancel := f.timeout.Bound(ctx)
		defer cancel()
		return r.amend(ctx, &f, req)
	})
	f.resources.Add(cmd.Flags())
	cmd.Flags().Var(&f.duration, "duration", "The duration to ask for, from the new revision on")
	cmd.Flags().Var(&f.priceCeiling, "price-ceiling", "The most that all of it may cost per hour, such as \"EUR 0.5\"; \"any\" accepts any price")
	cmd.Flags().BoolVar(&f.renewal, "renewal", false, "Renew the contract before it ends")
	cmd.Flags().BoolVar(&f.noRenewal, "no-renewal", false, "Let the contract end instead of renewing it")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "Only ask the provider what it would offer in the next revision; change nothing")
	cmd.Flags().BoolVar(&f.wait, "wait", true, "Wait until both sides have signed the new revision")
	f.timeout.Add(cmd.Flags(), 2*time.Minute, "How long to wait")
	return cmd
}

// request is what the flags change. It contains only the resources that were named.
func (f *amendFlags) request(name string) (*ententev1.UpdatePeeringRequest, error) {
	if f.renewal && f.noRenewal {
		return nil, exit.Usagef("--renewal and --no-renewal contradict each other")
	}
	peering := &ententev1.Peering{
		Name: peeringName(name), Resources: f.resources.Proto(), Duration: f.duration.Proto(), PriceCeiling: f.priceCeiling.Amount, NoRenewal: f.noRenewal,
	}
	var paths []string
	for _, field := range []struct {
		path  string
		given bool
	}{
		{"resources", peering.GetResources() != nil},
		{"duration", peering.GetDuration() != nil},
		{"price_ceiling", f.priceCeiling.Given()},
		{"no_renewal", f.renewal || f.noRenewal},
	} {
		if field.given {
			paths = append(paths, field.path)
		}
	}
	if len(paths) == 0 {
		return nil, exit.Usagef("nothing changes: give --cpu, --memory, --pods, --resources, --duration, --price-ceiling, --renewal or --no-renewal")
	}
	return &ententev1.UpdatePeeringRequest{
		Peering: peering, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}, ValidateOnly: f.dryRun,
	}, nil
}

func (r *run) amend(ctx context.Context, f *amendFlags, req *ententev1.UpdatePeeringRequest) error {
	name := format.Short(req.GetPeering().GetName())
	before, err := r.peering(ctx, name)
	if err != nil {
		return err
	}
	var signed *ententev1.Contract
	if before.GetContract() != "" {
		if signed, err = r.contract(ctx, before.GetContract()); err != nil {
			return err
		}
	}
	if named := req.GetPeering().GetResources(); named != nil {
		req.Peering.Resources = amendment.Overlay(named, before.GetResources(), signed.GetResources())
		r.note("%s", format.LessThanUsed(req.GetPeering().GetResources(), signed.GetUsed()))
	}
	resp, err := r.admin.UpdatePeering(ctx, req)
	if err != nil {
		return r.call("amend "+name, err)
	}
	after := resp.GetPeering()
	if f.dryRun {
		r.done("%s could be amended; nothing was changed", name)
		if r.output.Structured() {
			return r.write(resp)
		}
		if resp.GetAdvertisement() != nil {
			r.printPreview(cmp.Or(printer.Clean(format.Short(after.GetProvider())), "the provider"), resp.GetAdvertisement())
		}
		return nil
	}
	r.done("Peering %s asks for %s now", name, format.Asked(after.GetResources()))
	// That a contract is not renewed holds before the provider has signed it.
	if f.wait && !slices.Equal(req.GetUpdateMask().GetPaths(), []string{"no_renewal"}) {
		if after, err = r.agreed(ctx, before, after, signed); err != nil {
			return err
		}
	}
	return r.result(after)
}

// agreed waits until both sides have signed what a changed request asks for. signed is the contract
// before the change, or nil.
func (r *run) agreed(ctx context.Context, before, after *ententev1.Peering, signed *ententev1.Contract) (*ententev1.Peering, error) {
	a := &amendment.Amendment{Label: r.label, Before: before, After: after, Signed: signed, Now: signed}
	peering, err := r.awaitPeering(ctx, r.cluster, format.Short(after.GetName()), func(p *ententev1.Peering) (_ bool, _ string, err error) {
		if p.GetContract() != "" {
			if a.Now, err = r.contract(ctx, p.GetContract()); err != nil {
				return false, "", err
			}
		}
		return a.Check(p)
	})
	if err != nil {
		return nil, exit.Remaining(err, a.Stays())
	}
	now := a.Now
	r.done("Contract %s, revision %d, is signed by both: %s until %s, %s", now.GetContractId(), now.GetRevision(), format.Amounts(now.GetResources()), format.Moment(now.GetNotAfter()), format.Cost(now))
	r.noteLacks(ctx, peering, now)
	return peering, nil
}

// noteLacks says which of the usual resources a contract has none of.
func (r *run) noteLacks(ctx context.Context, p *ententev1.Peering, k *ententev1.Contract) {
	peer, _ := r.find(ctx, format.Short(cmp.Or(p.GetProvider(), p.GetPeer()))) // without it, its offer is not known
	r.note("%s", format.Lacks(format.Short(p.GetName()), k, peer.GetOffer()))
}

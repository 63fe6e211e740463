package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func (a *app) policyCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "policy", Short: "Test the policies by which this cluster provides resources"}, a.policyTestCommand())
}

func (a *app) policyTestCommand() *cobra.Command {
	var ask askFlags
	cmd := a.command(&cobra.Command{Use: "test [PEER]", Short: "Show what this cluster would offer a peer that asked, and why"}, func(ctx context.Context, r *run) error {
		req, peer := ask.request(), cmp.Or(r.first(), format.AnyPeer)
		return r.testPolicy(ctx, &ententev1.TestPolicyRequest{
			Peer: peerName(peer), Resources: req.GetResources(), Duration: req.GetDuration(), PriceCeiling: req.GetPriceCeiling(),
			Pool: req.GetPool(), NodeSelector: req.GetNodeSelector(), StorageClasses: req.GetStorageClasses(), RuntimeClasses: req.GetRuntimeClasses(),
			NoNetwork: req.GetNoNetwork(),
		})
	}, printer.FormTable)
	ask.add(cmd)
	return cmd
}

func (r *run) testPolicy(ctx context.Context, req *ententev1.TestPolicyRequest) error {
	resp, err := r.admin.TestPolicy(ctx, req)
	if err != nil {
		return r.call("test the policy", err)
	}
	results := resp.GetResults()
	if req.GetPeer() == peerName(format.AnyPeer) || len(results) != 1 {
		return printList(r, results, "There is no PeeringPolicy, and no peer is known.", "", func() *printer.Table { return r.testTable(results) })
	}
	one := results[0]
	ad, peer := one.GetAdvertisement(), format.Short(one.GetPeer())
	if err := r.result(one); err != nil {
		return err
	}
	switch {
	case ad == nil:
		return &exit.Error{Code: exit.Refused, Err: fmt.Errorf("%s would get nothing: %s [%s]", peer,
			printer.Clean(cmp.Or(one.GetMessage(), "no PeeringPolicy says why")), cmp.Or(one.GetReason(), string(peering.ReasonPolicyRefused)))}
	case r.output.Structured():
		return nil
	}
	when := ""
	if one.GetReason() != "" {
		when = ", once an administrator approves its request"
	}
	_, _ = fmt.Fprintf(r.out, "Policy %s would offer %s%s:\n", one.GetPolicy(), peer, when)
	r.showAdvertisement(ad)
	_, _ = fmt.Fprintln(r.out, printer.Clean(one.GetMessage()))
	return nil
}

func (a *app) testTable(results []*ententev1.PolicyTest) *printer.Table {
	t := a.noted("PEER", "POLICY", "ANSWER", "RESOURCES", "PRICE", "WHY")
	for _, r := range results {
		peer, policy, resources, price := cmp.Or(format.Short(r.GetPeer()), "-"), cmp.Or(r.GetPolicy(), "-"), "-", "-"
		if ad := r.GetAdvertisement(); ad != nil {
			resources, price = format.Amounts(ad.GetResources()), format.PerHour(ad.GetHourlyPrice())
		}
		t.Row(peer, policy, format.PolicyAnswer(r), resources, price, cmp.Or(r.GetMessage(), r.GetReason()))
	}
	return t
}

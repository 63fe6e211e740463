package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) policyCommand() *cobra.Command {
	return group(&cobra.Command{Use: "policy", Short: "Test the policies by which this cluster provides resources"}, a.policyTestCommand())
}

func (a *app) policyTestCommand() *cobra.Command {
	var ask askFlags
	var output printer.Flags
	var req *ententev1.CreatePeeringRequest
	cmd := &cobra.Command{
		Use:   "test [PEER]",
		Short: "Show what this cluster would offer a peer that asked, and why",
		Long: `Show what this cluster would offer a peer that asked now, by which PeeringPolicy,
and what bounds it. Nothing is written, and the peer does not hear of it. Without
PEER it shows each peer; without amounts, all that the policy gives.

It exits with 5 if the peer that is named would get nothing.`,
		Example: indent(`entente policy test
entente policy test office --resources cpu=64,memory=256Gi`),
		Args: args(cobra.MaximumNArgs(1)),
		PreRunE: func(*cobra.Command, []string) (err error) {
			req, err = ask.request()
			return err
		},
		RunE: a.onLocal(&output, func(ctx context.Context, c *cluster, argv []string) error {
			peer := anyPeer
			if len(argv) == 1 {
				peer = argv[0]
			}
			return a.testPolicy(ctx, c, &output, &ententev1.TestPolicyRequest{
				Peer: peerName(peer), Resources: req.GetResources(), Duration: req.GetDuration(), PriceCeiling: req.GetPriceCeiling(),
				NodeSelector: req.GetNodeSelector(), StorageClasses: req.GetStorageClasses(), RuntimeClasses: req.GetRuntimeClasses(),
				NoNetwork: req.GetNoNetwork(),
			})
		}),
	}
	ask.add(cmd)
	output.Add(cmd, printer.FormTable)
	return a.completes(cmd, 1, peerNames)
}

func (a *app) testPolicy(ctx context.Context, c *cluster, output *printer.Flags, req *ententev1.TestPolicyRequest) error {
	resp, err := c.admin.TestPolicy(ctx, req)
	if err != nil {
		return c.call("test the policy", err)
	}
	results := resp.GetResults()
	one := req.GetPeer() != peerName(anyPeer) && len(results) == 1
	switch {
	case output.Structured() && one:
		err = output.Write(a.out, results[0])
	case output.Structured():
		err = printer.WriteList(output, a.out, results)
	case one && results[0].GetAdvertisement() != nil:
		when := ""
		if results[0].GetReason() != "" {
			when = ", once an administrator approves its request"
		}
		_, _ = fmt.Fprintf(a.out, "Policy %s would offer %s%s:\n", results[0].GetPolicy(), format.Short(results[0].GetPeer()), when)
		a.printAdvertisement(results[0].GetAdvertisement())
		_, _ = fmt.Fprintln(a.out, printer.Clean(results[0].GetMessage()))
	case one:
		// The error says it.
	case len(results) == 0:
		a.none("No peer is known.", "")
	default:
		a.printTests(results)
	}
	if err == nil && one && results[0].GetAdvertisement() == nil {
		r := results[0]
		return &codeError{exitRefused, fmt.Errorf("%s would get nothing: %s [%s]", format.Short(r.GetPeer()), printer.Clean(cmp.Or(r.GetMessage(), "no PeeringPolicy says why")), cmp.Or(r.GetReason(), "POLICY_REFUSED"))}
	}
	return err
}

func (a *app) printTests(results []*ententev1.PolicyTest) {
	t := a.noted("PEER", "POLICY", "ANSWER", "RESOURCES", "PRICE", "WHY")
	for _, r := range results {
		ad := r.GetAdvertisement()
		if ad == nil {
			t.Row(format.Short(r.GetPeer()), cmp.Or(r.GetPolicy(), "-"), "refused", "-", "-", cmp.Or(r.GetMessage(), r.GetReason()))
			continue
		}
		answer := "granted"
		if r.GetReason() != "" {
			answer = "after approval"
		}
		t.Row(format.Short(r.GetPeer()), cmp.Or(r.GetPolicy(), "-"), answer, format.Amounts(ad.GetResources()), format.PerHour(ad.GetHourly()), r.GetMessage())
	}
	t.Flush()
}

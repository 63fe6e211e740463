package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) policyCommand() *cobra.Command {
	return group(&cobra.Command{Use: "policy", Short: "Test the policies by which this cluster provides resources"}, a.policyTestCommand())
}

func (a *app) policyTestCommand() *cobra.Command {
	var ask askFlags
	var output outputFlags
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
	output.add(cmd, formTable)
	return a.completes(cmd, 1, peerNames)
}

func (a *app) testPolicy(ctx context.Context, c *cluster, output *outputFlags, req *ententev1.TestPolicyRequest) error {
	resp, err := c.admin.TestPolicy(ctx, req)
	if err != nil {
		return c.call("test the policy", err)
	}
	results := resp.GetResults()
	one := req.GetPeer() != peerName(anyPeer) && len(results) == 1
	switch {
	case output.structured() && one:
		err = output.write(a.out, results[0])
	case output.structured():
		err = writeList(output, a.out, results)
	case one && results[0].GetAdvertisement() != nil:
		when := ""
		if results[0].GetReason() != "" {
			when = ", once an administrator approves its request"
		}
		_, _ = fmt.Fprintf(a.out, "Policy %s would offer %s%s:\n", results[0].GetPolicy(), short(results[0].GetPeer()), when)
		a.printAdvertisement(results[0].GetAdvertisement())
		_, _ = fmt.Fprintln(a.out, clean(results[0].GetMessage()))
	case one:
		// The error says it.
	case len(results) == 0:
		a.none("No peer is known.", "")
	default:
		a.printTests(results)
	}
	if err == nil && one && results[0].GetAdvertisement() == nil {
		r := results[0]
		return &codeError{exitRefused, fmt.Errorf("%s would get nothing: %s [%s]", short(r.GetPeer()), clean(orNone(r.GetMessage(), "no PeeringPolicy says why")), orNone(r.GetReason(), "POLICY_REFUSED"))}
	}
	return err
}

func (a *app) printTests(results []*ententev1.PolicyTest) {
	t := a.noted("PEER", "POLICY", "ANSWER", "RESOURCES", "PRICE", "WHY")
	for _, r := range results {
		ad := r.GetAdvertisement()
		if ad == nil {
			t.row(short(r.GetPeer()), orNone(r.GetPolicy(), "-"), "refused", "-", "-", orNone(r.GetMessage(), r.GetReason()))
			continue
		}
		answer := "granted"
		if r.GetReason() != "" {
			answer = "after approval"
		}
		t.row(short(r.GetPeer()), orNone(r.GetPolicy(), "-"), answer, amounts(ad.GetResources()), perHour(ad.GetHourly()), r.GetMessage())
	}
	t.flush()
}

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) denyCommand() *cobra.Command {
	var yes bool
	cmd := a.command(&cobra.Command{Use: "deny PEER", Short: "Stop trusting a cluster, refuse to trust it, or refuse a request"}, func(ctx context.Context, r *run) error {
		known, err := r.find(ctx, r.argv[0])
		if err != nil {
			return err
		}
		if open := format.OpenContracts(known, ""); len(open) > 0 {
			_, pods := format.NodesAndPods(open)
			question := fmt.Sprintf("The contracts with %s end at once, and %s under them will be killed. Continue?", format.ShortName(known), format.Count(pods, "pod"))
			if err := a.confirm(yes, question); err != nil {
				return err
			}
		}
		resp, err := r.admin.DenyPeer(ctx, &ententev1.DenyPeerRequest{Name: peerName(r.argv[0])})
		if err != nil {
			return r.call("deny "+r.argv[0], err)
		}
		r.done("Denied %s (%s)", format.ShortName(resp.GetPeer()), resp.GetPeer().GetClusterId())
		return r.result(resp.GetPeer())
	})
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask")
	cmd.AddCommand(a.requestDecision("deny", "Refuse a peer's request for resources for good",
		"Refused request %s", func(ctx context.Context, c *cluster, name string) error {
			_, err := c.admin.DenyPeeringRequest(ctx, &ententev1.DenyPeeringRequestRequest{Name: name})
			return err
		}))
	return cmd
}

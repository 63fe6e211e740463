package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) identityCommand() *cobra.Command {
	return group(&cobra.Command{Use: "identity", Short: "Renew this cluster's identity"}, a.identityRolloverCommand())
}

func (a *app) identityRolloverCommand() *cobra.Command {
	var output printer.Flags
	cmd := &cobra.Command{
		Use:   "rollover",
		Short: "Replace the key under this cluster's root certificate",
		Long: `Replace the key under this cluster's root certificate. The cluster ID stays, and
peers follow by themselves: the old key signs for the new one. For some time the
old root is shown as well, for peers that were away; one rollover has to be over
before the next.

Do it from time to time, and when the old key may be known to others. The clusters
that joined keep trusting this one; contracts hold.`,
		Example: indent("entente identity rollover"),
		Args:    args(cobra.NoArgs),
		RunE: a.onLocal(&output, func(ctx context.Context, c *cluster, _ []string) error {
			resp, err := c.admin.RolloverIdentity(ctx, &ententev1.RolloverIdentityRequest{})
			if err != nil {
				return c.call("replace the identity key", err)
			}
			a.progress(&output).done(c.label, "The identity has a new key: its root holds until %s, the old one is shown until %s",
				format.Moment(resp.GetRootExpireTime()), format.Moment(resp.GetOverlapEndTime()))
			return a.result(&output, resp)
		}),
	}
	output.Add(cmd)
	return a.completes(cmd, 0, nil)
}

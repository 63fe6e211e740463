package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) identityCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "identity", Short: "Renew this cluster's identity"}, a.identityRolloverCommand())
}

func (a *app) identityRolloverCommand() *cobra.Command {
	return a.command(&cobra.Command{
		Use:   "rollover",
		Short: "Replace the key under this cluster's root certificate",
		Long: `Replace the key under this cluster's root certificate. The cluster ID stays, and
peers follow by themselves: the old key signs for the new one. For some time the
old root is shown as well, for peers that were away; one rollover has to be over
before the next.

Do it from time to time, and when the old key may be known to others. The clusters
that joined keep trusting this one; contracts hold.`,
		Example: indent("entente identity rollover"),
	}, func(ctx context.Context, r *run) error {
		resp, err := r.admin.RolloverIdentity(ctx, &ententev1.RolloverIdentityRequest{})
		if err != nil {
			return r.call("replace the identity key", err)
		}
		r.done("The identity has a new key: its root holds until %s, the old one is shown until %s",
			format.Moment(resp.GetRootExpireTime()), format.Moment(resp.GetOverlapEndTime()))
		return r.result(resp)
	})
}

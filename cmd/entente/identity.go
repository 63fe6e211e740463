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
	return a.command(&cobra.Command{Use: "rollover", Short: "Replace the key of this cluster's root certificate"}, func(ctx context.Context, r *run) error {
		resp, err := r.admin.RolloverIdentity(ctx, &ententev1.RolloverIdentityRequest{})
		if err != nil {
			return r.call("replace the identity key", err)
		}
		r.done("The identity has a new key: its root is valid until %s, the old one is presented until %s",
			format.Moment(resp.GetRootExpireTime()), format.Moment(resp.GetOverlapEndTime()))
		return r.result(resp)
	})
}

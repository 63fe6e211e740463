package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) tokenCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "token", Short: "Make, list and revoke one-time tokens with which other clusters join this one"}, a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var ttl time.Duration
	cmd := a.command(&cobra.Command{
		Use:   "create",
		Short: "Make a token with which one other cluster can join this one, once",
		PreRunE: func(*cobra.Command, []string) error {
			if ttl < time.Second || ttl > 15*time.Minute {
				return exit.Usagef("--ttl %s: want from 1s to 15m", ttl)
			}
			return nil
		},
	}, func(ctx context.Context, r *run) error {
		resp, err := r.admin.CreateToken(ctx, &ententev1.CreateTokenRequest{Ttl: durationpb.New(ttl)})
		if err != nil {
			return r.call("make token", err)
		}
		if r.output.Structured() {
			return r.write(resp)
		}
		// The token alone goes to standard output, so that it can be piped.
		_, _ = fmt.Fprintln(a.out, resp.GetToken())
		a.next("Redeem it in the other cluster before %s:\n  entente join <token>", format.Moment(resp.GetExpireTime()))
		return nil
	})
	cmd.Flags().DurationVar(&ttl, "ttl", 15*time.Minute, "How long the token can be redeemed, at most 15m")
	return cmd
}

func (a *app) tokenListCommand() *cobra.Command {
	var all bool
	cmd := a.command(&cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the tokens that can still be redeemed, by name, without their secrets"}, func(ctx context.Context, r *run) error {
		tokens, err := r.tokens(ctx)
		if err != nil {
			return err
		}
		if !all {
			tokens = slices.DeleteFunc(tokens, isRedeemed)
		}
		names := map[string]string{}
		if all && !r.output.Structured() {
			if names, err = r.namesByID(ctx); err != nil {
				return err
			}
		}
		return printList(r, tokens, "There are no tokens that can be redeemed.", "Make one with:\n  entente token create", func() *printer.Table {
			t := a.table("NAME", "AGE", "EXPIRES IN")
			if all {
				t = a.table("NAME", "AGE", "EXPIRES IN", "REDEEMED BY")
			}
			for _, k := range tokens {
				cells := []string{format.Short(k.GetName()), a.since(k.GetCreateTime()), a.until(k.GetExpireTime())}
				if by := k.GetRedeemedBy(); all {
					cells = append(cells, cmp.Or(names[by], by, "-"))
				}
				t.Row(cells...)
			}
			return t
		})
	}, printer.FormTable)
	cmd.Flags().BoolVar(&all, "all", false, "Also list redeemed tokens")
	return cmd
}

func isRedeemed(t *ententev1.Token) bool { return t.GetRedeemedBy() != "" }

// namesByID returns the peers' names here by cluster ID.
func (c *cluster) namesByID(ctx context.Context) (map[string]string, error) {
	peers, err := c.peers(ctx)
	names := make(map[string]string, len(peers))
	for _, p := range peers {
		names[p.GetClusterId()] = format.ShortName(p)
	}
	return names, err
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "revoke TOKEN...", Short: "Revoke tokens that were not redeemed yet"}, func(ctx context.Context, r *run) error {
		var done []*ententev1.RevokeTokenRequest
		for _, id := range r.argv {
			req := &ententev1.RevokeTokenRequest{Name: tokenName(id)}
			if _, err := r.admin.RevokeToken(ctx, req); err != nil {
				return r.call("revoke token", err)
			}
			r.done("Revoked token %s", format.Short(req.GetName()))
			done = append(done, req)
		}
		if r.output.Structured() {
			return printer.WriteList(r.output, r.out, done)
		}
		return nil
	})
}

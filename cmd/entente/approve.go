package main

import (
	"context"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) approveCommand() *cobra.Command {
	var codeSeen string
	var yes bool
	cmd := a.command(&cobra.Command{
		Use:   "approve PEER",
		Short: "Trust a cluster that introduced itself, or approve a request",
		PreRunE: func(*cobra.Command, []string) error {
			codeSeen = strings.TrimSpace(codeSeen)
			if codeSeen != "" && !regexp.MustCompile(`^[0-9]{3} ?[0-9]{3}$`).MatchString(codeSeen) {
				return exit.Usagef("--code %q: want six digits", codeSeen)
			}
			return nil
		},
	}, func(ctx context.Context, r *run) error {
		if codeSeen == "" && !yes {
			var err error
			if codeSeen, err = r.compare(ctx, r.argv[0]); err != nil {
				return err
			}
		}
		resp, err := r.admin.ApprovePeer(ctx, &ententev1.ApprovePeerRequest{Name: peerName(r.argv[0]), Code: codeSeen})
		if err != nil {
			return r.call("approve "+r.argv[0], err)
		}
		peer := resp.GetPeer()
		r.done("Approved %s (%s)", format.ShortName(peer), peer.GetClusterId())
		if r.output.Structured() {
			return r.write(peer)
		}
		if format.IsTrue(peer, v1alpha1.ConditionTrusted) {
			a.next("Ask it for resources with:\n  entente peer %s", format.ShortName(peer))
		} else {
			a.next("The two trust each other as soon as the other side approves this cluster, too. See:\n  entente info peer %s", format.ShortName(peer))
		}
		return nil
	})
	cmd.Flags().StringVar(&codeSeen, "code", "", "The code that the other side shows")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Approve without comparing codes")
	cmd.AddCommand(a.approveRequestCommand())
	return cmd
}

// compare asks the user to compare the codes of an introduction, and returns the code
// that was compared.
func (r *run) compare(ctx context.Context, name string) (string, error) {
	peer, err := r.find(ctx, name)
	if err != nil || peer == nil || peer.GetCode() == "" {
		// With no code to compare, the ID that the administrator wrote down is what counts.
		return "", err
	}
	if !r.interactive {
		return "", exit.Usagef("give the code that the other side shows with --code, or --yes to trust without comparing; this cluster's is shown by `entente info peer %s --get code`", format.ShortName(peer))
	}
	return peer.GetCode(), r.confirm(false, "The code for "+format.ShortName(peer)+" is "+format.Code(peer)+" here. Does the other side show the same?")
}

func (a *app) approveRequestCommand() *cobra.Command {
	return a.requestDecision("approve", "Approve a peer's request for resources, where the policy says AfterApproval",
		"Approved request %s", func(ctx context.Context, c *cluster, name string) error {
			_, err := c.admin.ApprovePeeringRequest(ctx, &ententev1.ApprovePeeringRequestRequest{Name: name})
			return err
		})
}

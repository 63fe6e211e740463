package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) tokenCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "token",
		Short: "Make one-time tokens with which other clusters join this one",
	})
	cmd.AddCommand(a.tokenCreateCommand())
	return cmd
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var ttl time.Duration
	var output outputFlags
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token with which one other cluster can join this one, once",
		Long: `Make a token with which one other cluster can join this one, once.

Afterwards the two clusters trust each other; nothing is shared yet. Hand the
token over by a way that others cannot read: whoever redeems it first is
trusted. It is shown this once; only a hash of it is kept.`,
		Example: indent(`# Make a token and show it
entente token create

# Make one that holds for two minutes, for a script
TOKEN=$(entente token create --ttl 2m)`),
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			if ttl < time.Second || ttl > 15*time.Minute {
				return usageError("--ttl %s: want from 1s to 15m", ttl)
			}
			c, err := a.local(cmd.Context())
			if err != nil {
				return err
			}
			defer c.done()
			resp, err := c.admin.CreateToken(cmd.Context(), &ententev1.CreateTokenRequest{Ttl: durationpb.New(ttl)})
			if err != nil {
				return c.call("make token", err)
			}
			if output.structured() {
				return output.print(a.out, resp)
			}
			// The token alone goes to standard output, so that it can be piped.
			_, _ = fmt.Fprintln(a.out, resp.GetToken())
			_, _ = fmt.Fprintf(a.errOut, "Redeem it in the other cluster before %s:\n  entente join <token>\n",
				resp.GetExpireTime().AsTime().Format(time.RFC3339))
			return nil
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 15*time.Minute, "How long the token can be redeemed, at most 15m")
	output.add(cmd)
	return cmd
}

func (a *app) joinCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "join TOKEN",
		Short: "Redeem a token that another cluster made: afterwards both trust each other",
		Long: `Redeem a token that another cluster made: afterwards both trust each other.

This cluster's agent dials the other's; the token says where and pins its key.
With - the token is read from standard input, where other users of this machine
cannot see it.`,
		Example: indent(`# Join
entente join ent1.…

# Join with a token from a pipe, and call the peer "office" here
pbpaste | entente join - --name office`),
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			token := argv[0]
			if token == "-" {
				line, err := bufio.NewReader(io.LimitReader(a.in, 16<<10)).ReadString('\n')
				if err != nil && line == "" {
					return usageError("no token on standard input")
				}
				token = line
			}
			if token = strings.TrimSpace(token); token == "" {
				return usageError("the token is empty")
			}
			c, err := a.local(cmd.Context())
			if err != nil {
				return err
			}
			defer c.done()
			p := a.progress()
			p.wait(c.label, "the other cluster")
			resp, err := c.admin.JoinPeer(cmd.Context(), &ententev1.JoinPeerRequest{Token: token, Name: name})
			p.clear()
			if err != nil {
				return c.call("join", err)
			}
			peer := shortName(resp.GetPeer())
			p.done(c.label, "Joined cluster %s (%s)", peer, resp.GetPeer().GetClusterId())
			_, _ = fmt.Fprintf(a.errOut, "Ask it for resources with:\n  entente peer %s\n", peer)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "What to call the peer here (default: the name that it gives itself)")
	return cmd
}

// shortName is a peer's name without peers/.
func shortName(p *ententev1.Peer) string { return strings.TrimPrefix(p.GetName(), "peers/") }

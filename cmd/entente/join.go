package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

func (a *app) joinCommand() *cobra.Command {
	var name string
	var whom invitation
	cmd := a.command(&cobra.Command{
		Use:   "join TOKEN | HOST:PORT | ID@HOST:PORT",
		Short: "Make this cluster and another trust each other",
		PreRunE: func(_ *cobra.Command, argv []string) (err error) {
			whom, err = a.readInvitation(argv[0])
			return err
		},
	}, func(ctx context.Context, r *run) error {
		r.progress.Wait(r.label, "the other cluster")
		peer, err := whom.join(ctx, r.cluster, name)
		r.progress.Clear()
		if ctx.Err() != nil {
			return whom.interrupted(ctx, r.cluster)
		}
		if err != nil {
			return err
		}
		return r.joined(ctx, whom, peer, name)
	})
	cmd.Flags().StringVar(&name, "name", "", "The peer's name here (default: its own name)")
	return cmd
}

// invitation names the cluster to join, in one of the ways that join accepts.
type invitation struct {
	// token is a secret, which no message contains.
	token string
	// endpoint is set where there is no token; id is the ID that the cluster has to prove, if known.
	endpoint, id string
}

// readInvitation reads the argument of join. It takes an argument that is not an address for
// a token; the agent says what is wrong with it.
func (a *app) readInvitation(arg string) (invitation, error) {
	if arg == "-" {
		line, err := bufio.NewReader(io.LimitReader(a.in, maxTokenLine)).ReadString('\n')
		if err != nil && line == "" {
			return invitation{}, exit.Usagef("no token on standard input")
		}
		arg = line
	}
	arg = strings.TrimSpace(arg)
	if arg == "" {
		return invitation{}, exit.Usagef("the token is empty")
	}
	if id, endpoint, ok := strings.Cut(arg, "@"); ok {
		if _, err := peering.ParseClusterID(id); err != nil {
			return invitation{}, exit.Usagef("the part before the @ must be a cluster ID: %w", err)
		}
		if err := peering.CheckEndpoint(endpoint); err != nil {
			return invitation{}, exit.Usagef("the part after the @ must be HOST:PORT: %w", err)
		}
		return invitation{id: id, endpoint: endpoint}, nil
	}
	if peering.CheckEndpoint(arg) == nil {
		return invitation{endpoint: arg}, nil
	}
	return invitation{token: arg}, nil
}

func (i invitation) join(ctx context.Context, c *cluster, name string) (*ententev1.Peer, error) {
	if i.token != "" {
		resp, err := c.admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: i.token, Name: name})
		return resp.GetPeer(), c.call("join", err)
	}
	resp, err := c.admin.IntroducePeer(ctx, &ententev1.IntroducePeerRequest{
		Endpoint: i.endpoint, ClusterId: i.id, Name: name, Approve: i.id != "",
	})
	return resp.GetPeer(), c.call("introduce this cluster to "+i.endpoint, err)
}

// afterwards limits the time for calls after an interruption.
const afterwards = 5 * time.Second

// interrupted reports the state of an interrupted join, and how to finish or undo it:
// one side may already trust the other, which does not trust it yet.
func (i invitation) interrupted(ctx context.Context, c *cluster) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	id := i.id
	if token, err := jointoken.Parse(i.token); err == nil {
		id = string(token.Issuer)
	}
	here := "the other side may know this cluster already"
	if id != "" {
		here = "this cluster does not trust the other one; that one may trust this one already"
		peer, err := c.find(ctx, id)
		switch {
		case err != nil:
			here = "whether this cluster trusts the other one is not known"
		case format.IsTrue(peer, v1alpha1.ConditionTrusted):
			here = "this cluster trusts the other one, " + format.ShortName(peer)
		case peer != nil:
			here = "this cluster knows the other one, " + format.ShortName(peer) + ", and does not trust it; that one may trust this one already"
		}
	}
	return &exit.Error{Code: exit.Interrupted, Err: fmt.Errorf(`(%s) interrupted while joining: %s
  next: to finish, run the same command again; to undo, on each side where `+"`entente info`"+` lists the other: entente unpeer PEER --forget`, c.label, printer.Clean(here))}
}

// joined prints the result of joining, and what to do next. wanted is the name that was asked for, if any.
func (r *run) joined(ctx context.Context, whom invitation, peer *ententev1.Peer, wanted string) error {
	name := format.ShortName(peer)
	switch {
	case whom.token != "" || format.IsTrue(peer, v1alpha1.ConditionTrusted):
		r.done("Joined cluster %s (%s)", name, peer.GetClusterId())
	case whom.id != "":
		r.done("Approved cluster %s (%s)", name, peer.GetClusterId())
	default:
		r.done("Introduced to cluster %s (%s)", name, peer.GetClusterId())
	}
	if wanted != "" && wanted != name {
		r.note("it is known here as %s already and keeps that name; --name %s was not applied", name, wanted)
	}
	if r.output.Structured() {
		return r.write(peer)
	}
	if format.IsTrue(peer, v1alpha1.ConditionTrusted) || whom.token != "" {
		r.next("Ask it for resources with:\n  entente peer %s", name)
		return nil
	}
	// This cluster's name there is not known, but its ID always works.
	id := "THIS-CLUSTER"
	if here, err := r.self(ctx); err == nil {
		id = here.GetClusterId()
	}
	if whom.id != "" {
		_, _ = fmt.Fprintf(r.out, "\nThe two trust each other as soon as the other side approves this cluster:\n  entente approve %s\n", id)
		return nil
	}
	// The code is not in the commands, as copying it would compare nothing.
	_, _ = fmt.Fprintf(r.out, `
The code is %s. Nothing is trusted yet.

1. Ask the other side's administrator, over a channel that you trust, which code they see:
     entente info peer %s --get code
2. Approve here with the code that they read to you, and there with the one above:
     entente approve %s --code CODE
     entente approve %s --code CODE
3. Codes that differ mean a man in the middle. Then deny the peer:
     entente deny %s
`, format.Code(peer), id, name, id, name)
	return nil
}

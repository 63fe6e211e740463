package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/parameters"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) networkParametersCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "parameters", Short: "Print what another cluster needs for an in-band tunnel to this one"}, func(ctx context.Context, r *run) error {
		own, err := r.parameters(ctx)
		if err != nil {
			return err
		}
		if r.output.Structured() {
			return r.write(own)
		}
		text, err := parameters.Encode(own)
		if err != nil {
			return err
		}
		_, err = r.out.Write(text)
		if err == nil {
			r.next("Give it to the administrator of the other cluster, who runs:\n  entente network connect --in-band -f FILE")
		}
		return err
	}, printer.FormTable)
}

// parameters returns the in-band parameters of a cluster.
func (c *cluster) parameters(ctx context.Context) (*ententev1.NetworkParameters, error) {
	resp, err := c.admin.GetNetworkParameters(ctx, &ententev1.GetNetworkParametersRequest{})
	return resp.GetParameters(), c.call("read the network's parameters", err)
}

// readParameters reads another cluster's file; - is standard input.
func (a *app) readParameters(path string) (_ *ententev1.NetworkParameters, err error) {
	in := a.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read parameters: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, parameters.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read parameters: %w", err)
	}
	p, err := parameters.Decode(text)
	if err != nil {
		return nil, exit.Usagef("%s: %w", path, err)
	}
	return p, nil
}

// setInBand makes a side reach the other one by its parameters, and returns the peer as that
// side knows it.
func (r *run) setInBand(ctx context.Context, at *cluster, theirs *ententev1.NetworkParameters, name string) (*ententev1.Peer, error) {
	resp, err := at.admin.ConnectInBand(ctx, &ententev1.ConnectInBandRequest{Parameters: theirs, Name: name})
	if err != nil {
		return nil, at.call("connect in-band", err)
	}
	peer := resp.GetPeer()
	r.progress.Done(at.label, "Reaches %s (%s) in-band, through %s, and trusts it", format.ShortName(peer), theirs.GetClusterId(), format.Count(len(theirs.GetGateways()), "gateway"))
	return peer, nil
}

const hintInBand = "give this cluster's parameters (entente network parameters) to the administrator there, who runs: entente network connect --in-band -f FILE; and let UDP 51820 pass between the gateways: see `entente network status`"

// awaitInBand waits until the peer API runs through the tunnel.
func (r *run) awaitInBand(ctx context.Context, s side) error {
	if err := r.awaitPeer(ctx, s, hintInBand, condition(v1alpha1.ConditionInBand, "the tunnel")); err != nil {
		return err
	}
	r.progress.Done(s.label, "The tunnel is up")
	if err := r.awaitPeer(ctx, s, hintInBand, condition(v1alpha1.ConditionTrusted, "trust between the two clusters")); err != nil {
		return err
	}
	err := r.awaitPeer(ctx, s, hintInBand, func(peer *ententev1.Peer) (bool, string, error) {
		return format.IsTrue(peer, v1alpha1.ConditionConnected) && peer.GetSession().GetInBand(), "a session inside the tunnel" + format.Because(peer, v1alpha1.ConditionConnected), nil
	})
	if err == nil {
		r.progress.Done(s.label, "Connected to the peer's agent, inside the tunnel")
	}
	return err
}

// inBandFlags are the flags of network connect for in-band tunnels.
type inBandFlags struct {
	on   bool
	file string
	name string
}

// check returns an error if the flags contradict each other or the arguments.
func (f inBandFlags) check(argv []string, path string) error {
	switch {
	case !f.on && (f.file != "" || f.name != ""):
		return exit.Usagef("--filename and --name need --in-band; see `%s --help`", path)
	case !f.on && len(argv) == 0:
		return exit.Usagef("name a peer, or give --in-band and --filename; see `%s --help`", path)
	case f.on && f.file == "":
		return exit.Usagef("--in-band needs the other cluster's parameters: --filename FILE; see `%s --help`", path)
	case f.on && len(argv) > 0:
		return exit.Usagef("--in-band takes the peer from the file: to choose its name here use --name")
	}
	return nil
}

// connectInBand sets up this cluster's end of an in-band tunnel, and waits for the other one.
func (c *connecting) connectInBand(ctx context.Context, f inBandFlags) error {
	theirs, err := c.app.readParameters(f.file)
	if err != nil {
		return err
	}
	if c.dryRun {
		c.done("The file is of cluster %s (%s), with %s; nothing was changed", theirs.GetDisplayName(), theirs.GetClusterId(), format.Count(len(theirs.GetGateways()), "gateway"))
		return nil
	}
	peer, err := c.setInBand(ctx, c.cluster, theirs, f.name)
	if err != nil {
		return err
	}
	c.local.peer = format.ShortName(peer)
	if err := c.awaitInBand(ctx, c.local); err != nil {
		var coded *exit.Error
		if errors.As(err, &coded) && (coded.Code == exit.Timeout || coded.Code == exit.Interrupted) {
			return &exit.Error{Code: coded.Code, Err: fmt.Errorf("%w\n  ForeignCluster %s stays, and the agents continue with it; to end it: entente unpeer %s --forget", err, c.local.peer, c.local.peer)}
		}
		return err
	}
	if c.output.Structured() {
		peer, err := c.local.find(ctx, c.local.peer)
		if err != nil {
			return err
		}
		return c.write(peer)
	}
	c.next("Use its resources with:\n  entente peer %s", c.local.peer)
	return nil
}

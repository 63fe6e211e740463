package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) networkRotateCommand() *cobra.Command {
	var c rotation
	var timeout flags.Timeout
	cmd := a.command(&cobra.Command{Use: "rotate [PEER]", Short: "Replace the keys of tunnels, without interrupting traffic"}, func(ctx context.Context, r *run) error {
		ctx, cancel := timeout.Bound(ctx)
		defer cancel()
		c.run = r
		if c.allNodes || len(c.nodes) > 0 {
			if len(r.argv) > 0 {
				return exit.Usagef("a peer's key and those of nodes are replaced one after the other: leave out PEER, or --nodes")
			}
			return c.rotateNodes(ctx)
		}
		return c.rotatePreshared(ctx)
	})
	cmd.Flags().BoolVar(&c.allNodes, "nodes", false, "Replace the WireGuard keys of all nodes")
	cmd.Flags().StringSliceVar(&c.nodes, "node", nil, "Replace the WireGuard key of this `node`")
	cmd.Flags().BoolVar(&c.noWait, "no-wait", false, "Only ask for it, and do not wait")
	timeout.Add(cmd.Flags(), 2*time.Minute, "How long to wait")
	return cmd
}

// rotation is one run of network rotate.
type rotation struct {
	*run
	allNodes, noWait bool
	nodes            []string
}

func (c *rotation) rotatePreshared(ctx context.Context) error {
	resp, err := c.admin.RotatePresharedKey(ctx, &ententev1.RotatePresharedKeyRequest{Name: peerName(cmp.Or(c.first(), format.AnyPeer))})
	if err != nil {
		return c.call("replace the preshared key", err)
	}
	if len(resp.GetPeers()) == 0 {
		c.done("There is no tunnel whose key could be replaced")
		return c.result(resp)
	}
	c.done("Asked for a new preshared key of the tunnel to %s", format.Shorts(resp.GetPeers()))
	if !c.noWait {
		if err := c.awaitPresharedKeys(ctx, resp); err != nil {
			return err
		}
	}
	return c.result(resp)
}

func (c *rotation) rotateNodes(ctx context.Context) error {
	resp, err := c.admin.RotateNodeKeys(ctx, &ententev1.RotateNodeKeysRequest{Nodes: c.nodes})
	if err != nil {
		return c.call("replace the keys of nodes", err)
	}
	if len(resp.GetNodes()) == 0 {
		c.done("There is no node with a fabric")
		return c.result(resp)
	}
	whose := fmt.Sprintf("%d nodes", len(resp.GetNodes()))
	if len(resp.GetNodes()) == 1 {
		whose = "node " + resp.GetNodes()[0]
	}
	c.done("Asked for a new key of %s", whose)
	if !c.noWait {
		if err := c.awaitNodeKeys(ctx, resp); err != nil {
			return err
		}
	}
	return c.result(resp)
}

// awaitNodeKeys waits until each node uses a key that is younger than the request.
func (c *rotation) awaitNodeKeys(ctx context.Context, asked *ententev1.RotateNodeKeysResponse) error {
	left := slices.Clone(asked.GetNodes())
	return c.poll(ctx, c.cluster, hintRotate, func(ctx context.Context) (bool, string, error) {
		resp, err := c.admin.GetNetworkStatus(ctx, &ententev1.GetNetworkStatusRequest{})
		if err != nil {
			return false, "", c.call("read the state of the network", err)
		}
		waits := ""
		for _, name := range slices.Clone(left) {
			i := slices.IndexFunc(resp.GetNodes(), func(n *ententev1.NetworkNode) bool { return n.GetName() == name })
			switch {
			case i >= 0 && !resp.GetNodes()[i].GetKeyFirstUseTime().AsTime().Before(asked.GetRequestTime().AsTime()):
				c.done("Node %s has a new key", name)
			case i < 0 && resp.GetOmitted() == 0:
				c.done("Node %s is gone", name)
			default:
				if waits == "" {
					waits = "a new key of node " + name
					if i >= 0 && resp.GetNodes()[i].GetKeyRotationMessage() != "" {
						waits += ": " + resp.GetNodes()[i].GetKeyRotationMessage()
					}
				}
				continue
			}
			left = slices.DeleteFunc(left, func(n string) bool { return n == name })
		}
		return len(left) == 0, waits, nil
	})
}

const hintRotate = "the keys are replaced once the condition above is met; see `entente info peer` and `entente network status -o wide`"

// awaitPresharedKeys waits until each tunnel uses a key that is younger than the request.
func (c *rotation) awaitPresharedKeys(ctx context.Context, asked *ententev1.RotatePresharedKeyResponse) error {
	left := slices.Clone(asked.GetPeers())
	return c.poll(ctx, c.cluster, hintRotate, func(ctx context.Context) (bool, string, error) {
		waits := ""
		for _, name := range slices.Clone(left) {
			resp, err := c.admin.GetPeer(ctx, &ententev1.GetPeerRequest{Name: name})
			if err != nil {
				return false, "", c.call("get peer "+format.Short(name), err)
			}
			key := resp.GetPeer().GetTunnel().GetPresharedKey()
			if key == nil || !key.GetFirstUseTime().AsTime().Before(asked.GetRequestTime().AsTime()) {
				c.done("The tunnel to %s %s", format.Short(name), format.Rotated(key))
				left = slices.DeleteFunc(left, func(n string) bool { return n == name })
				continue
			}
			if waits == "" {
				waits = fmt.Sprintf("a new key of the tunnel to %s", format.Short(name))
				if m := strings.TrimPrefix(key.GetMessage(), "the next key waits for "); m != "" {
					waits += ": " + m
				}
			}
		}
		return len(left) == 0, waits, nil
	})
}

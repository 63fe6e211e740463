package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

type unpeerFlags struct {
	remote           remoteFlags
	now, forget, yes bool
	timeout          time.Duration
}

func (a *app) unpeerCommand() *cobra.Command {
	var f unpeerFlags
	cmd := &cobra.Command{
		Use:   "unpeer [PEER]",
		Short: "Stop using resources of another cluster",
		Long: `Stop using resources of another cluster: the contracts by which this cluster
consumes from it end, and the virtual node goes.

By default what runs there is drained first, as kubectl drain does. With --now it
is not: it says first what will die. It never waits for the peer, which may be
gone for good.

The peering in the other direction stays, unless the peer is forgotten.`,
		Example: indent(`# Drain and end
entente unpeer office

# End at once, with the other side dead, and forget that it was ever trusted
entente unpeer office --now --forget

# With access to both clusters; the provider is watched too
entente unpeer --remote-kubeconfig provider.yaml`),
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if (len(argv) == 1) == f.remote.given() {
				return usageError("name a peer, or the other cluster by --remote-kubeconfig or --remote-context, not both; see `%s --help`", cmd.CommandPath())
			}
			if f.timeout <= 0 {
				return usageError("--timeout %s: want more than nothing", f.timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			local, err := a.local(ctx)
			if err != nil {
				return err
			}
			defer local.done()
			u := &unpeering{app: a, progress: a.progress(), local: local, flags: f}
			if f.remote.given() {
				if u.remote, err = a.remote(ctx, f.remote); err != nil {
					return err
				}
				defer u.remote.done()
				if err := u.identify(ctx); err != nil {
					return err
				}
			} else {
				u.peer = argv[0]
			}
			return u.run(ctx)
		},
	}
	f.remote.add(cmd)
	cmd.Flags().BoolVar(&f.now, "now", false, "Do not drain: what runs there ends with the contract")
	cmd.Flags().BoolVar(&f.forget, "forget", false, "End the trust too, and with it the peering in the other direction; with --remote-kubeconfig on both sides")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "Do not ask")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "How long to wait for everything together")
	return cmd
}

// unpeering is one run of unpeer.
type unpeering struct {
	app           *app
	progress      *progress
	local, remote *cluster
	flags         unpeerFlags
	peer, localID string
}

// identify finds out what the two clusters call each other.
func (u *unpeering) identify(ctx context.Context) error {
	here, err := u.local.admin.GetInfo(ctx, &ententev1.GetInfoRequest{})
	if err != nil {
		return u.local.call("reach the agent", err)
	}
	there, err := u.remote.admin.GetInfo(ctx, &ententev1.GetInfoRequest{})
	if err != nil {
		return u.remote.call("reach the agent", err)
	}
	u.localID, u.peer = here.GetClusterId(), there.GetClusterId()
	return nil
}

func (u *unpeering) run(ctx context.Context) error {
	peer, err := u.local.find(ctx, u.peer)
	if err != nil {
		return err
	}
	if peer == nil {
		u.progress.done("local", "No peer %s is known: nothing to end", u.peer)
		return u.forgetRemote(ctx)
	}
	u.peer = shortName(peer)
	ending := openContracts(peer, "Consumer")
	nodes, pods := nodesAndPods(ending)
	if err := u.confirm(peer, pods); err != nil {
		return err
	}
	resp, err := u.local.admin.EndPeering(ctx, &ententev1.EndPeeringRequest{
		Peer: peer.GetName(), Now: u.flags.now, Forget: u.flags.forget,
	})
	if err != nil {
		return u.local.call("end the peering", err)
	}
	how := "draining"
	if u.flags.now {
		how = "at once"
	}
	u.progress.done("local", "Ending the peering with %s, %s; %s ran there", u.peer, how, countPods(int(resp.GetPods())))
	if err := u.awaitEnd(ctx, u.local, u.peer, "Consumer"); err != nil {
		return err
	}
	if len(ending) > 0 {
		u.progress.done("local", "%s closed", ids(ending))
	}
	if err := u.awaitNodes(ctx, nodes); err != nil {
		return err
	}
	if u.remote != nil {
		if err := u.awaitEnd(ctx, u.remote, u.localID, "Provider"); err != nil {
			return err
		}
		u.progress.done("remote", "Nothing is lent any more")
	}
	if u.flags.forget {
		if err := u.awaitForgotten(ctx, u.local, u.peer); err != nil {
			return err
		}
		u.progress.done("local", "Forgot %s", u.peer)
	}
	return u.forgetRemote(ctx)
}

// confirm says what dies, and asks where somebody is there to answer.
func (u *unpeering) confirm(peer *ententev1.Peer, pods int) error {
	losing := pods
	if u.flags.forget {
		_, lent := nodesAndPods(openContracts(peer, "Provider"))
		losing += lent
	}
	if !u.flags.now || losing == 0 {
		return nil
	}
	u.progress.note("local", "%s by the contracts with %s will be killed", countPods(losing), u.peer)
	if u.flags.yes || !u.app.interactive {
		return nil
	}
	_, _ = fmt.Fprint(u.app.errOut, "Go on? [y/N] ")
	answer, _ := bufio.NewReader(u.app.in).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return fmt.Errorf("nothing was done")
	}
	u.progress.begin()
	return nil
}

// awaitEnd waits until no contract is open in which the cluster has the role.
func (u *unpeering) awaitEnd(ctx context.Context, c *cluster, name, role string) error {
	hint := "end it without draining: entente unpeer " + u.peer + " --now"
	if u.flags.now {
		hint = "see the Contract's conditions: kubectl get contracts -o yaml"
	}
	return u.progress.poll(ctx, c, hint, func(ctx context.Context) (bool, string, error) {
		peer, err := c.find(ctx, name)
		if err != nil {
			return false, "", err
		}
		open := openContracts(peer, role)
		if len(open) == 0 {
			return true, "", nil
		}
		_, pods := nodesAndPods(open)
		return false, fmt.Sprintf("%s to close; %s left", ids(open), countPods(pods)), nil
	})
}

// awaitNodes waits until the virtual nodes are gone, where the caller may see
// that.
func (u *unpeering) awaitNodes(ctx context.Context, nodes []string) error {
	if u.local.nodeExists == nil {
		return nil
	}
	for _, node := range nodes {
		seen := true
		err := u.progress.poll(ctx, u.local, "see `kubectl describe node "+node+"`", func(ctx context.Context) (bool, string, error) {
			exists, err := u.local.nodeExists(ctx, node)
			if err != nil {
				// Who may not see nodes may end peerings nevertheless.
				seen = false
				u.progress.note("local", "cannot see whether node %s is gone: %v", node, err)
				return true, "", nil
			}
			return !exists, "virtual node " + node + " to go", nil
		})
		if err != nil {
			return err
		}
		if seen {
			u.progress.done("local", "Virtual node %s is gone", node)
		}
	}
	return nil
}

func (u *unpeering) awaitForgotten(ctx context.Context, side *cluster, peer string) error {
	hint := "see what holds it: kubectl get foreignclusters -o yaml"
	return u.progress.poll(ctx, side, hint, func(ctx context.Context) (bool, string, error) {
		found, err := side.find(ctx, peer)
		return found == nil, "foreign cluster " + peer + " to go", err
	})
}

// forgetRemote makes the other side forget this cluster too.
func (u *unpeering) forgetRemote(ctx context.Context) error {
	if u.remote == nil || !u.flags.forget {
		return nil
	}
	_, err := u.remote.admin.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/" + u.localID, Now: u.flags.now, Forget: true})
	if err != nil && client.ReasonOf(err) != "PEER_UNKNOWN" {
		return u.remote.call("forget this cluster", err)
	}
	if err := u.awaitForgotten(ctx, u.remote, u.localID); err != nil {
		return err
	}
	u.progress.done("remote", "Forgot this cluster")
	return nil
}

// openContracts is the contracts that are not over in which the cluster has a
// role.
func openContracts(peer *ententev1.Peer, role string) []*ententev1.Contract {
	var open []*ententev1.Contract
	for _, c := range peer.GetContracts() {
		if c.GetRole() == role && c.GetPhase() != "Closed" {
			open = append(open, c)
		}
	}
	return open
}

func nodesAndPods(contracts []*ententev1.Contract) (nodes []string, pods int) {
	for _, c := range contracts {
		pods += int(c.GetPods())
		if c.GetNode() != "" {
			nodes = append(nodes, c.GetNode())
		}
	}
	return nodes, pods
}

func ids(contracts []*ententev1.Contract) string {
	list := make([]string, 0, len(contracts))
	for _, c := range contracts {
		list = append(list, c.GetContractId())
	}
	if len(list) == 1 {
		return "Contract " + list[0]
	}
	return "Contracts " + strings.Join(list, ", ")
}

func countPods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

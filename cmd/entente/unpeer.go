package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/storage"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

type unpeerFlags struct {
	remote           remoteFlags
	peering          string
	now, forget, yes bool
	volumes          volumesFlag
	timeout          flags.Timeout
}

func (a *app) unpeerCommand() *cobra.Command {
	var f unpeerFlags
	cmd := a.offline(&cobra.Command{Use: "unpeer [PEER]", Short: "Stop using resources of another cluster"}, func(ctx context.Context, r *run) error {
		peer, err := f.check(r)
		if err != nil {
			return err
		}
		ctx, cancel := f.timeout.Bound(ctx)
		defer cancel()
		u := &unpeering{run: r, flags: &f}
		if u.sides, err = r.sides(ctx, peer, f.remote); err != nil {
			return err
		}
		defer u.sides.hangUp()
		if f.peering != "" {
			return u.endOne(ctx)
		}
		return u.do(ctx)
	})
	f.remote.add(cmd)
	cmd.Flags().StringVar(&f.peering, "peering", "", "End only this request")
	a.completesFlag(cmd, "peering", peeringNames)
	cmd.Flags().BoolVar(&f.now, "now", false, "Do not drain: pods there end with the contract")
	cmd.Flags().BoolVar(&f.forget, "forget", false, "End the trust too, and with it at once the peerings in both directions; with --remote-kubeconfig on both sides")
	f.volumes.add(cmd, "that it keeps for this cluster")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "Do not ask")
	f.timeout.Add(cmd.Flags(), 5*time.Minute, "How long to wait for everything together")
	return cmd
}

// atOnce reports whether nothing is drained: contracts end with the trust.
func (f *unpeerFlags) atOnce() bool { return f.now || f.forget }

// check checks that the arguments say in exactly one way what ends, and returns the name
// of the peer, if it is given.
func (f *unpeerFlags) check(r *run) (string, error) {
	ways := count(len(r.argv) == 1, f.remote.given(), f.peering != "")
	switch {
	case ways != 1:
		return "", exit.Usagef("name either a peer, or the other cluster with --remote-kubeconfig or --remote-context, or a --peering; see `%s --help`", r.path)
	case f.peering != "" && f.volumes.delete:
		return "", exit.Usagef("--delete-volumes deletes all volumes at the peer and cannot be combined with --peering")
	case f.peering != "" && (f.now || f.forget):
		return "", exit.Usagef("--now and --forget end all that this cluster asks of a peer, not one --peering; to end its contract at once: entente contract terminate CONTRACT --now")
	}
	return r.first(), nil
}

// unpeering is one run of unpeer.
type unpeering struct {
	*run
	*sides
	flags *unpeerFlags
}

func (u *unpeering) do(ctx context.Context) error {
	local := &u.local
	peer, err := local.find(ctx, local.peer)
	if err != nil {
		return err
	}
	ended := &ententev1.EndPeeringResponse{}
	if peer == nil {
		u.done("No peer %s is known: nothing to end", local.peer)
		if err := u.forgetRemote(ctx); err != nil {
			return err
		}
	} else {
		local.peer = format.ShortName(peer)
		if ended, err = u.end(ctx, peer); err != nil {
			return err
		}
	}
	if err := u.awaitRemote(ctx); err != nil {
		return err
	}
	return u.result(ended)
}

// end ends what this cluster uses of the peer, and waits until it is gone.
func (u *unpeering) end(ctx context.Context, peer *ententev1.Peer) (*ententev1.EndPeeringResponse, error) {
	local := u.local
	id := peer.GetClusterId()
	again := "entente unpeer " + format.ShortName(peer) + " --delete-volumes"
	if err := u.flags.volumes.apply(ctx, u.run, u.flags.yes, again, func(v storage.Volume) bool { return storage.Peer(v.PersistentVolume) == id }); err != nil {
		return nil, err
	}
	ending := format.OpenContracts(peer, "Consumer")
	asks, chosen := u.asks(ctx, format.ShortName(peer))
	if !u.flags.forget && len(ending) == 0 && !asks {
		u.done("This cluster uses nothing of %s: nothing to end", local.peer)
		if len(format.OpenContracts(peer, "Provider")) > 0 {
			u.note("what this cluster provides to it ends with --forget, or with: entente contract terminate CONTRACT")
		}
		return &ententev1.EndPeeringResponse{}, nil
	}
	nodes, pods := format.NodesAndPods(ending)
	if err := u.confirm(peer, pods); err != nil {
		return nil, err
	}
	resp, err := local.admin.EndPeering(ctx, &ententev1.EndPeeringRequest{
		Peer: peer.GetName(), Now: u.flags.now, Forget: u.flags.forget,
	})
	if err != nil {
		return nil, local.call("end the peering", err)
	}
	how := "draining"
	if u.flags.atOnce() {
		how = "at once"
	}
	u.done("Ending the peering with %s, %s; %s ran there", local.peer, how, format.Count(int(resp.GetPods()), "pod"))
	for _, name := range chosen {
		u.note("peering %s asks any peer: it stays, and looks for another provider than %s", name, local.peer)
	}
	// Both sides at once: a side that is forgotten first, and is not notified, keeps its
	// contracts for minutes.
	if err := u.forgetRemote(ctx); err != nil {
		return nil, err
	}
	return resp, u.awaitGone(ctx, peer, ending, nodes)
}

// awaitGone waits until the used resources are gone: contracts, their virtual nodes and, with
// --forget, the peer.
func (u *unpeering) awaitGone(ctx context.Context, peer *ententev1.Peer, ending []*ententev1.Contract, nodes []string) error {
	local := u.local
	if err := u.awaitEnd(ctx, local, "Consumer"); err != nil {
		return err
	}
	if len(ending) > 0 {
		u.done("%s closed", format.IDs(ending))
	}
	if err := u.awaitNodes(ctx, nodes); err != nil {
		return err
	}
	if remote := u.remote; remote != nil {
		if err := u.awaitEnd(ctx, *remote, "Provider"); err != nil {
			return err
		}
		u.progress.Done(remote.label, "Nothing is provided any longer")
	}
	if u.flags.forget {
		if err := u.awaitForgotten(ctx, local); err != nil {
			return err
		}
		u.done("Forgot %s", local.peer)
		if policy := peer.GetLabels()[v1alpha1.LabelAutomatic]; policy != "" {
			u.note("policies leave it alone from now on; while discovery finds it, it is listed as %s-%s without trust; to trust it again: entente join", local.peer, peer.GetClusterId()[:min(8, len(peer.GetClusterId()))])
		}
	}
	return nil
}

// asks reports whether this cluster asks a peer for anything, as far as the caller may read
// that, and returns the requests to any peer that it fulfils.
func (u *unpeering) asks(ctx context.Context, peer string) (asked bool, chosen []string) {
	peerings, err := u.local.peerings(ctx)
	for _, p := range peerings {
		switch {
		case format.Short(p.GetPeer()) == peer:
			asked = true
		case format.Short(p.GetPeer()) == format.AnyPeer && format.Short(p.GetProvider()) == peer:
			asked, chosen = true, append(chosen, format.Short(p.GetName()))
		}
	}
	return asked || err != nil, chosen
}

// endOne ends one peering, and waits until it is gone.
func (u *unpeering) endOne(ctx context.Context) error {
	local := u.local
	name := u.flags.peering
	req := &ententev1.DeletePeeringRequest{Name: peeringName(name)}
	if _, err := local.admin.DeletePeering(ctx, req); err != nil {
		return local.call("end peering "+name, err)
	}
	u.done("Ending peering %s, draining", name)
	err := u.poll(ctx, local.cluster, "see what it waits for: kubectl get peeringrequests -o yaml", func(ctx context.Context) (bool, string, error) {
		_, err := local.peering(ctx, name)
		if client.ReasonOf(err) == peering.ReasonPeeringUnknown {
			return true, "", nil
		}
		return false, "peering " + name + " to go", err
	})
	if err != nil {
		return err
	}
	u.done("Peering %s is gone", name)
	return u.result(req)
}

// confirm says which pods end, and asks where a person can answer.
func (u *unpeering) confirm(peer *ententev1.Peer, pods int) error {
	losing := pods
	if u.flags.forget {
		_, granted := format.NodesAndPods(format.OpenContracts(peer, "Provider"))
		losing += granted
	}
	if !u.flags.atOnce() || losing == 0 {
		return nil
	}
	u.note("%s under the contracts with %s will be killed", format.Count(losing, "pod"), format.ShortName(peer))
	if err := u.app.confirm(u.flags.yes, "Continue?"); err != nil {
		return err
	}
	u.progress.Begin()
	return nil
}

// awaitEnd waits until no contract is open in which the side has the role.
func (u *unpeering) awaitEnd(ctx context.Context, s side, role string) error {
	hint := "end it without draining: entente unpeer " + u.local.peer + " --now"
	if u.flags.atOnce() {
		hint = "see the Contract's conditions: kubectl get contracts -o yaml"
	}
	away := false
	err := u.poll(ctx, s.cluster, hint, func(ctx context.Context) (bool, string, error) {
		peer, err := s.find(ctx, s.peer)
		if err != nil {
			return false, "", err
		}
		open := format.OpenContracts(peer, role)
		if len(open) == 0 {
			return true, "", nil
		}
		_, pods := format.NodesAndPods(open)
		waiting := fmt.Sprintf("%s to close; %s left", format.IDs(open), format.Count(pods, "pod"))
		if away = format.StatusOf(peer, v1alpha1.ConditionConnected) == "False"; away {
			waiting += "; the peer is not connected" + format.Because(peer, v1alpha1.ConditionConnected)
		}
		return false, waiting, nil
	})
	if away {
		return exit.Remaining(err, "while the peer is not connected, pods there do not end: see `entente info peer "+s.peer+"`, and `entente doctor`")
	}
	return err
}

// awaitNodes waits until the virtual nodes are gone, if the caller may read
// nodes.
func (u *unpeering) awaitNodes(ctx context.Context, nodes []string) error {
	local := u.local
	if local.nodeExists == nil {
		return nil
	}
	for _, node := range nodes {
		var unseen error
		err := u.poll(ctx, local.cluster, "see `kubectl describe node "+node+"`", func(ctx context.Context) (bool, string, error) {
			exists, err := local.nodeExists(ctx, node)
			unseen = err
			return err != nil || !exists, "virtual node " + node + " to go", nil //nolint:nilerr // ending a peering does not need the right to see nodes
		})
		switch {
		case err != nil:
			return err
		case unseen != nil:
			u.note("cannot see whether node %s is gone: %v", node, unseen)
		default:
			u.done("Virtual node %s is gone", node)
		}
	}
	return nil
}

func (u *unpeering) awaitForgotten(ctx context.Context, s side) error {
	hint := "see what it waits for: kubectl get foreignclusters -o yaml"
	return u.poll(ctx, s.cluster, hint, func(ctx context.Context) (bool, string, error) {
		found, err := s.find(ctx, s.peer)
		return found == nil, "foreign cluster " + s.peer + " to go", err
	})
}

// forgetRemote makes the other side forget this cluster too, with --forget.
func (u *unpeering) forgetRemote(ctx context.Context) error {
	remote := u.remote
	if remote == nil || !u.flags.forget {
		return nil
	}
	_, err := remote.admin.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: peerName(remote.peer), Now: u.flags.now, Forget: true})
	if err != nil && client.ReasonOf(err) != peering.ReasonPeerUnknown {
		return remote.call("forget this cluster", err)
	}
	return nil
}

// awaitRemote waits until the other side has forgotten this cluster, with --forget.
func (u *unpeering) awaitRemote(ctx context.Context) error {
	remote := u.remote
	if remote == nil || !u.flags.forget {
		return nil
	}
	if err := u.awaitForgotten(ctx, *remote); err != nil {
		return err
	}
	u.progress.Done(remote.label, "Forgot this cluster")
	return nil
}

package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/cmd/entente/internal/storage"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func (a *app) offloadCommand() *cobra.Command {
	return a.group(&cobra.Command{Use: "offload", Short: "Let pods run in other clusters"}, a.offloadNamespaceCommand())
}

func (a *app) offloadNamespaceCommand() *cobra.Command {
	var strategy, mapping, remoteName, homeAPI string
	var peers []string
	var all bool
	var move flags.Switch
	var lost flags.PeerLost
	var open flags.Namespaces
	cmd := a.command(&cobra.Command{Use: "namespace NAMESPACE", Short: "Let the pods of a namespace run in other clusters"}, func(ctx context.Context, r *run) error {
		how := " with strategy " + strategy
		if strategy == "" {
			how = ": `entente offloadings` shows where its pods may run"
		}
		if all {
			peers = append(peers, peerName(format.AnyPeer))
		}
		req := &ententev1.OffloadNamespaceRequest{
			Namespace: "namespaces/" + r.argv[0], PodStrategy: strategy, NameMapping: mapping, RemoteName: remoteName, Peers: peers, Move: move.Given, PeerLost: lost.Proto(), HomeApi: homeAPI,
			OpenTo: open.List,
		}
		if _, err := r.admin.OffloadNamespace(ctx, req); err != nil {
			return r.call("offload namespace "+r.argv[0], err)
		}
		r.done("Namespace %s is offloaded%s", r.argv[0], how)
		r.opened(ctx, open.List)
		if req.GetMove() {
			r.done("Those that run where they no longer may are moved: `entente offloadings` shows how many are left")
		}
		return r.result(req)
	})
	flags.Choice(cmd, &strategy, "strategy", "", "", "Where pods may run: Local, Remote or LocalAndRemote (default: unchanged, and LocalAndRemote at first)", "Local", "Remote", "LocalAndRemote")
	flags.Choice(cmd, &mapping, "mapping", "", "", "How the namespace is named abroad: Suffixed (NAME-CONSUMER, the default), Same or Chosen; this never changes", "Suffixed", "Same", "Chosen")
	cmd.Flags().StringVar(&remoteName, "remote-name", "", "The namespace's name abroad, with --mapping Chosen, which it implies; providers have to list it in their policies")
	cmd.Flags().StringArrayVar(&peers, "peer", nil, "A peer in which the pods may run; may be repeated (default: unchanged, and all at first)")
	cmd.Flags().BoolVar(&all, "all-peers", false, "Let the pods run in all peers again")
	move.Add(cmd.Flags(), "move", "Move pods that run where they no longer may; --move=false lets them stay until they end (default: unchanged, and they stay at first)")
	cmd.Flags().Var(&lost, "peer-lost", "What happens to pods in a provider that does not respond: keep, evict=DURATION or fence=DURATION (default: unchanged, and keep at first)")
	flags.Choice(cmd, &homeAPI, "home-api", "", "", "Whether pods that opt in may ask this cluster's API server from where they run: Denied or Allowed (default: unchanged, and Denied at first)", "Denied", "Allowed")
	cmd.Flags().Var(&open, "open-to", "Another offloaded `namespace` whose pods abroad may use the Services of this one; may be repeated; * is all, and \"\" none (default: unchanged, and none at first)")
	a.completesFlag(cmd, "peer", peerNames)
	return cmd
}

// opened prints to which namespaces one is open from now on, and which of them have no pods abroad.
func (r *run) opened(ctx context.Context, to *ententev1.NamespaceList) {
	if to == nil {
		return
	}
	r.done("Its Services are open to pods abroad of %s", format.OpenTo(to.GetNamespaces(), "no other namespace"))
	if all, err := r.offloadings(ctx); err == nil {
		for _, name := range format.NotOffloaded(to.GetNamespaces(), all) {
			r.note("namespace %s is not offloaded, so no pod of it runs abroad: entente offload namespace %s", name, name)
		}
	}
}

func (a *app) offloadingsCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "offloadings", Short: "List the namespaces whose pods may run in other clusters"}, func(ctx context.Context, r *run) error {
		all, err := r.offloadings(ctx)
		if err != nil {
			return err
		}
		next := "Let the pods of one run in other clusters with:\n  entente offload namespace NAMESPACE"
		return printList(r, all, "No namespace is offloaded.", next, func() *printer.Table {
			if r.output.Form == printer.FormWide {
				return a.offloadingsWide(all)
			}
			t := a.noted("NAMESPACE", "STRATEGY", "MAPPING", "STATE", "PROVIDERS", "PEER LOST", "AGE", "WHY")
			for _, o := range all {
				var peers []string
				for _, in := range o.GetClusters() {
					peers = append(peers, format.Short(in.GetPeer()))
				}
				peers = slices.Compact(peers) // sorted; there may be several contracts with one
				t.Row(format.Short(o.GetNamespace()), o.GetPodStrategy(), o.GetNameMapping(), cmp.Or(o.GetState(), v1alpha1.OffloadingPending),
					cmp.Or(strings.Join(peers, ","), "-"), format.PeerLost(o.GetPeerLost()), a.since(o.GetCreateTime()), format.WhyOffloading(o))
			}
			return t
		})
	}, printer.FormTable, printer.FormWide)
}

func (a *app) offloadingsWide(all []*ententev1.Offloading) *printer.Table {
	t := a.noted("NAMESPACE", "PROVIDER", "CONTRACT", "CALLED THERE", "STATE", "FENCE", "OPEN TO", "WHY")
	for _, o := range all {
		for _, in := range o.GetClusters() {
			t.Row(format.Short(o.GetNamespace()), format.Short(in.GetPeer()), cmp.Or(in.GetContract(), "-"), cmp.Or(in.GetRemoteName(), "-"), in.GetState(), format.Span(in.GetFence(), "-"), format.OpenTo(o.GetOpenTo(), "-"), in.GetMessage())
		}
		if len(o.GetClusters()) == 0 {
			t.Row(format.Short(o.GetNamespace()), "-", "-", "-", cmp.Or(o.GetState(), v1alpha1.OffloadingPending), "-", format.OpenTo(o.GetOpenTo(), "-"), o.GetMessage())
		}
	}
	return t
}

func (a *app) unoffloadCommand() *cobra.Command {
	var volumes volumesFlag
	var yes bool
	var timeout flags.Timeout
	cmd := a.command(&cobra.Command{Use: "namespace NAMESPACE", Short: "Stop letting the pods of a namespace run in other clusters"}, func(ctx context.Context, r *run) error {
		ctx, cancel := timeout.Bound(ctx)
		defer cancel()
		namespace := r.argv[0]
		again := "entente unoffload namespace " + namespace + " --delete-volumes"
		if err := volumes.apply(ctx, r, yes, again, func(v storage.Volume) bool { return v.Namespace() == namespace }); err != nil {
			return err
		}
		req := &ententev1.UnoffloadNamespaceRequest{Namespace: "namespaces/" + namespace}
		switch resp, err := r.admin.UnoffloadNamespace(ctx, req); {
		case client.ReasonOf(err) == peering.ReasonNamespaceNotOffloaded:
			r.done("Namespace %s is not offloaded: nothing to do", namespace)
		case err != nil:
			return r.call("unoffload namespace "+namespace, err)
		default:
			r.done("New pods of namespace %s run here only; those abroad are moved home (kubectl -n %s get namespaceoffloadings: gone when done)", namespace, namespace)
			if to := resp.GetOpenTo(); len(to) > 0 {
				r.done("Its Services are no longer open to pods abroad of %s", format.OpenTo(to, ""))
				r.note("to open them again while its own pods stay here: %s", format.OpenAgain(namespace, to))
			}
		}
		return r.result(req)
	})
	volumes.add(cmd, "of its claims that providers keep")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "Do not ask")
	timeout.Add(cmd.Flags(), 5*time.Minute, "How long to wait until volumes are deleted")
	a.completes(cmd, offloadedNames)
	return a.group(&cobra.Command{Use: "unoffload", Short: "Stop letting pods run in other clusters"}, cmd)
}

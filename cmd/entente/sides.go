package main

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// remoteFlags say which other cluster to work on too.
type remoteFlags struct{ kubeconfig, context, namespace string }

func (r *remoteFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.kubeconfig, "remote-kubeconfig", "", "The kubeconfig of the other cluster")
	cmd.Flags().StringVar(&r.context, "remote-context", "", "The context of the other cluster; without --remote-kubeconfig, one of the same kubeconfig")
	cmd.Flags().StringVar(&r.namespace, "remote-entente-namespace", "", "The namespace in which Entente is installed there (default: as here)")
}

func (r *remoteFlags) given() bool { return r.kubeconfig != "" || r.context != "" }

// remote reaches the other cluster.
func (a *app) remote(ctx context.Context, r remoteFlags) (*cluster, error) {
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &r.kubeconfig
	flags.Context = &r.context
	if r.kubeconfig == "" {
		flags.KubeConfig = a.flags.KubeConfig
	}
	namespace := r.namespace
	if namespace == "" {
		namespace = a.namespace
	}
	return a.connect(ctx, target{label: "remote", flags: flags, namespace: namespace})
}

// side is one cluster of a peering, and what it calls the other one.
type side struct {
	*cluster
	// peer is the other cluster's name here, or its cluster ID.
	peer string
}

// sides is the clusters of a peering as far as they can be reached: the local
// one, and the other where remote flags lead to it.
type sides struct {
	local side
	// remote is nil if nothing leads to the other cluster.
	remote *side
}

// done ends the connections.
func (s *sides) done() {
	s.local.done()
	if s.remote != nil {
		s.remote.done()
	}
}

// each returns the sides that can be reached, the local one first.
func (s *sides) each() []side {
	if s.remote == nil {
		return []side{s.local}
	}
	return []side{s.local, *s.remote}
}

// sides reaches the clusters of a peering: with remote flags both, and then it
// learns who they are; otherwise the local one, which knows the other as peer.
func (a *app) sides(ctx context.Context, p *progress, peer string, r remoteFlags) (*sides, error) {
	local, err := a.local(ctx)
	if err != nil {
		return nil, err
	}
	s := &sides{local: side{local, peer}}
	if !r.given() {
		return s, nil
	}
	if err := a.meet(ctx, p, s, r); err != nil {
		s.done()
		return nil, err
	}
	return s, nil
}

// meet reaches the other cluster and introduces the two.
func (a *app) meet(ctx context.Context, p *progress, s *sides, r remoteFlags) error {
	remote, err := a.remote(ctx, r)
	if err != nil {
		return err
	}
	s.remote = &side{cluster: remote}
	here, err := s.local.self(ctx)
	if err != nil {
		return err
	}
	p.done(s.local.label, "Reached cluster %s (%s)", here.GetClusterName(), here.GetClusterId())
	there, err := remote.self(ctx)
	if err != nil {
		return err
	}
	p.done(remote.label, "Reached cluster %s (%s)", there.GetClusterName(), there.GetClusterId())
	if here.GetClusterId() == there.GetClusterId() {
		return usageError("both kubeconfigs lead to the same cluster, %s", here.GetClusterId())
	}
	s.local.peer, s.remote.peer = there.GetClusterId(), here.GetClusterId()
	return nil
}

// self is what a cluster says of itself.
func (c *cluster) self(ctx context.Context) (*ententev1.GetInfoResponse, error) {
	info, err := c.admin.GetInfo(ctx, &ententev1.GetInfoRequest{})
	return info, c.call("reach the agent", err)
}

// await waits until what a side knows of its peer is as it should be.
func (p *progress) await(ctx context.Context, s side, hint string, check func(*ententev1.Peer) (bool, string, error)) error {
	return p.poll(ctx, s.cluster, hint, func(ctx context.Context) (bool, string, error) {
		peer, err := s.find(ctx, s.peer)
		if err != nil {
			return false, "", err
		}
		if peer == nil {
			return false, "the peer to be known", nil
		}
		return check(peer)
	})
}

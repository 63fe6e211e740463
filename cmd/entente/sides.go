package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// remoteFlags name the other cluster to work on, too.
type remoteFlags struct{ kubeconfig, context, namespace string }

func (r *remoteFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.kubeconfig, "remote-kubeconfig", "", "The kubeconfig of the other cluster")
	cmd.Flags().StringVar(&r.context, "remote-context", "", "The context of the other cluster; without --remote-kubeconfig, one of the same kubeconfig")
	cmd.Flags().StringVar(&r.namespace, "remote-entente-namespace", "", "The namespace in which Entente is installed there (default: the same as here)")
}

func (r *remoteFlags) given() bool { return r.kubeconfig != "" || r.context != "" }

// reach reaches the other cluster.
func (a *app) reach(ctx context.Context, r remoteFlags) (*cluster, error) {
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &r.kubeconfig
	flags.Context = &r.context
	if r.kubeconfig == "" {
		flags.KubeConfig = a.flags.KubeConfig
	}
	return a.connect(ctx, target{label: "remote", flags: flags, namespace: cmp.Or(r.namespace, a.namespace)})
}

// side is one cluster of a peering, and its name for the other one.
type side struct {
	*cluster
	// peer is the other cluster's name here, or its cluster ID.
	peer string
}

// sides are the clusters of a peering that can be reached: the local
// one, and the other if remote flags name it.
type sides struct {
	local side
	// remote is nil without access to the other cluster.
	remote *side
}

// hangUp ends the connections.
func (s *sides) hangUp() {
	s.local.hangUp()
	if s.remote != nil {
		s.remote.hangUp()
	}
}

// each returns the sides that can be reached, the local one first.
func (s *sides) each() []side {
	if s.remote == nil {
		return []side{s.local}
	}
	return []side{s.local, *s.remote}
}

// count is how many of its arguments are true.
func count(ways ...bool) (n int) {
	for _, taken := range ways {
		if taken {
			n++
		}
	}
	return n
}

// sides connects to the clusters of a peering: with remote flags to both, and then it
// reads their identities; otherwise to the local one, which knows the other as peer.
func (r *run) sides(ctx context.Context, peer string, f remoteFlags) (s *sides, err error) {
	if r.cluster, err = r.app.local(ctx); err != nil {
		return nil, err
	}
	s = &sides{local: side{r.cluster, peer}}
	if f.given() {
		if err := r.meet(ctx, s, f); err != nil {
			s.hangUp()
			return nil, err
		}
	}
	return s, nil
}

// meet connects to the other cluster and reads the identities of both.
func (r *run) meet(ctx context.Context, s *sides, f remoteFlags) error {
	remote, err := r.reach(ctx, f)
	if err != nil {
		return err
	}
	s.remote = &side{cluster: remote}
	var met [2]*ententev1.GetInfoResponse
	for i, side := range s.each() {
		if met[i], err = side.self(ctx); err != nil {
			return err
		}
		r.progress.Done(side.label, "Reached cluster %s (%s)", met[i].GetClusterName(), met[i].GetClusterId())
	}
	s.local.peer, s.remote.peer = met[1].GetClusterId(), met[0].GetClusterId()
	if s.local.peer == s.remote.peer {
		return exit.Usagef("both kubeconfigs lead to the same cluster, %s", s.local.peer)
	}
	return nil
}

// awaitPeer waits until a side's status of its peer is as it should be.
func (r *run) awaitPeer(ctx context.Context, s side, hint string, check func(*ententev1.Peer) (bool, string, error)) error {
	return r.poll(ctx, s.cluster, hint, func(ctx context.Context) (bool, string, error) {
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

// poll calls check until it is done.
func (r *run) poll(ctx context.Context, c *cluster, hint string, check func(context.Context) (done bool, waiting string, err error)) error {
	return r.progress.Poll(ctx, c.label, c.admin, hint, check)
}

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// target says which cluster to reach.
type target struct {
	// label is local or remote, for messages.
	label string
	// flags is the kubeconfig to use.
	flags *genericclioptions.ConfigFlags
	// namespace is where Entente is installed.
	namespace string
}

// cluster is a cluster that can be driven.
type cluster struct {
	label string
	admin ententev1.AdminServiceClient
	// nodeExists says whether a node is there. It may be nil: then nobody knows.
	nodeExists func(ctx context.Context, name string) (bool, error)
	// namespaces lists the cluster's namespaces. It may be nil.
	namespaces func(ctx context.Context) ([]string, error)
	// browsed tells where the cluster looks for others. It may be nil.
	browsed func(ctx context.Context) (*browsed, error)
	close   func() error
	// follower is there once something is waited for at the cluster.
	follower *follower
}

func connectCluster(ctx context.Context, t target) (*cluster, error) {
	config, err := t.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	admin, err := client.DialAdmin(ctx, client.AdminConfig{REST: config, Namespace: t.namespace})
	if client.ReasonOf(err) == "CALLER_NOT_ALLOWED" {
		return nil, &callError{cluster: t.label, doing: "reach the agent", err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("(%s) %w\n  next: see whether kubectl works with the same kubeconfig: kubectl -n %s get pods", t.label, err, t.namespace)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	return &cluster{
		label: t.label, admin: admin, close: admin.Close,
		nodeExists: func(ctx context.Context, name string) (bool, error) { return nodeExists(ctx, clients, name) },
		namespaces: func(ctx context.Context) ([]string, error) { return namespacesOf(ctx, clients) },
		browsed:    func(ctx context.Context) (*browsed, error) { return browsedBy(ctx, clients, t.namespace) },
	}, nil
}

func nodeExists(ctx context.Context, clients kubernetes.Interface, name string) (bool, error) {
	_, err := clients.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get node %s: %w", name, err)
	}
	return true, nil
}

func namespacesOf(ctx context.Context, clients kubernetes.Interface) ([]string, error) {
	list, err := clients.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: pageSize})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// local reaches the cluster of the current kubeconfig.
func (a *app) local(ctx context.Context) (*cluster, error) {
	return a.connect(ctx, target{label: "local", flags: a.flags, namespace: a.namespace})
}

func (a *app) onLocal(o *printer.Flags, run func(ctx context.Context, c *cluster, argv []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, argv []string) error {
		if err := o.Check(); err != nil {
			return usageError("%w", err)
		}
		c, err := a.local(cmd.Context())
		if err != nil {
			return err
		}
		defer c.done()
		return run(cmd.Context(), c, argv)
	}
}

// call is a failed call with where and what.
func (c *cluster) call(doing string, err error) error {
	if err == nil {
		return nil
	}
	return &callError{cluster: c.label, doing: doing, err: err}
}

func (c *cluster) done() {
	if c != nil && c.close != nil {
		_ = c.close()
	}
}

// find returns a peer by name or cluster ID, or nil if it is not known.
func (c *cluster) find(ctx context.Context, name string) (*ententev1.Peer, error) {
	resp, err := c.admin.GetPeer(ctx, &ententev1.GetPeerRequest{Name: peerName(name)})
	if client.ReasonOf(err) == "PEER_UNKNOWN" {
		return nil, nil //nolint:nilnil // not known is an answer
	}
	if err != nil {
		return nil, c.call("get peer "+name, err)
	}
	if resp.GetPeer() == nil {
		return nil, c.call("get peer "+name, errors.New("the agent answered with no peer"))
	}
	return resp.GetPeer(), nil
}

// pageSize is how many items of a list are asked for at once: as many as the agent
// gives.
const pageSize = 500

// pages collects the pages of a list.
func pages[T any](page func(token string) ([]T, string, error)) ([]T, error) {
	var all []T
	token := ""
	for range maxPages {
		items, next, err := page(token)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if next == "" {
			return all, nil
		}
		token = next
	}
	return nil, fmt.Errorf("the list has no end: more than %d pages", maxPages)
}

func (c *cluster) peers(ctx context.Context) ([]*ententev1.Peer, error) {
	return pages(func(token string) ([]*ententev1.Peer, string, error) {
		resp, err := c.admin.ListPeers(ctx, &ententev1.ListPeersRequest{PageSize: pageSize, PageToken: token})
		return resp.GetPeers(), resp.GetNextPageToken(), c.call("list peers", err)
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"iter"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/places"
	"github.com/entente-dev/entente/cmd/entente/internal/podexec"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// target names the cluster to connect to.
type target struct {
	// label is local or remote, for messages.
	label string
	// flags is the kubeconfig to use.
	flags *genericclioptions.ConfigFlags
	// namespace is where Entente is installed.
	namespace string
}

// cluster is a cluster that commands work on.
type cluster struct {
	label string
	admin *client.Admin
	// nodeExists reports whether a node exists. It is nil where that cannot be found out.
	nodeExists func(ctx context.Context, name string) (bool, error)
	// kube is the cluster's API server, with the rights of the caller. It may be nil.
	kube kubernetes.Interface
	// exec runs a command in a pod and returns what it prints.
	exec func(ctx context.Context, namespace, pod, container string, command ...string) ([]byte, error)
	// namespaces lists the cluster's namespaces. It may be nil.
	namespaces func(ctx context.Context) ([]string, error)
	// browsed returns where the cluster looks for others. It may be nil.
	browsed func(ctx context.Context) (*places.Places, error)
}

func connectCluster(ctx context.Context, t target) (*cluster, error) {
	config, err := t.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	admin, err := client.DialAdmin(ctx, client.AdminConfig{REST: config, Namespace: t.namespace})
	if client.ReasonOf(err) == peering.ReasonCallerNotAllowed {
		return nil, &exit.CallError{Cluster: t.label, Doing: "reach the agent", Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("(%s) %w\n  next: see whether kubectl works with the same kubeconfig: kubectl -n %s get pods", t.label, err, t.namespace)
	}
	// Polling takes more calls than the default allows.
	config.QPS, config.Burst = 50, 100
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	return &cluster{
		label: t.label, admin: admin, kube: clients, exec: podexec.In(config, clients),
		nodeExists: func(ctx context.Context, name string) (bool, error) { return nodeExists(ctx, clients, name) },
		namespaces: func(ctx context.Context) ([]string, error) { return namespacesOf(ctx, clients) },
		browsed:    func(ctx context.Context) (*places.Places, error) { return places.Browsed(ctx, clients, t.namespace) },
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
	list, err := clients.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: maxNamespaces})
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

// call is the error of a call to a cluster.
func (c *cluster) call(doing string, err error) error {
	if err == nil {
		return nil
	}
	return &exit.CallError{Cluster: c.label, Doing: doing, Err: err}
}

// hangUp ends the connection.
func (c *cluster) hangUp() {
	if c != nil {
		_ = c.admin.Close()
	}
}

// known returns a peer by name or cluster ID.
func (c *cluster) known(ctx context.Context, name string) (*ententev1.Peer, error) {
	resp, err := c.admin.GetPeer(ctx, &ententev1.GetPeerRequest{Name: peerName(name)})
	if err == nil && resp.GetPeer() == nil {
		err = errors.New("the agent returned no peer")
	}
	return resp.GetPeer(), c.call("get peer "+name, err)
}

// find returns a peer by name or cluster ID, or nil if it is not known.
func (c *cluster) find(ctx context.Context, name string) (*ententev1.Peer, error) {
	peer, err := c.known(ctx, name)
	if client.ReasonOf(err) == peering.ReasonPeerUnknown {
		return nil, nil //nolint:nilnil // unknown is a valid result
	}
	return peer, err
}

// all collects the rows of a list.
func all[T any](c *cluster, doing string, rows iter.Seq2[T, error]) ([]T, error) {
	var out []T
	for row, err := range rows {
		if err != nil {
			return nil, c.call(doing, err)
		}
		out = append(out, row)
	}
	return out, nil
}

// named gets the named items, or all if no name is given.
func named[T any](names []string, get func(name string) (T, error), all func() ([]T, error)) ([]T, error) {
	if len(names) == 0 {
		return all()
	}
	var out []T
	for _, name := range names {
		item, err := get(name)
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

func (c *cluster) peers(ctx context.Context) ([]*ententev1.Peer, error) {
	return all(c, "list peers", c.admin.Peers(ctx))
}

func (c *cluster) peerings(ctx context.Context) ([]*ententev1.Peering, error) {
	return all(c, "list peerings", c.admin.Peerings(ctx))
}

// contracts returns the contracts with a peer; an empty name means all peers.
func (c *cluster) contracts(ctx context.Context, peer string) ([]*ententev1.Contract, error) {
	return all(c, "list contracts", c.admin.Contracts(ctx, peerName(peer)))
}

// requests returns the requests of a peer that wait for approval; - means all peers.
func (c *cluster) requests(ctx context.Context, peer string) ([]*ententev1.PendingRequest, error) {
	return all(c, "list requests", c.admin.PeeringRequests(ctx, peerName(peer)))
}

// offloadings returns the namespaces whose pods may run in other clusters.
func (c *cluster) offloadings(ctx context.Context) ([]*ententev1.Offloading, error) {
	return all(c, "list offloadings", c.admin.Offloadings(ctx))
}

func (c *cluster) tokens(ctx context.Context) ([]*ententev1.Token, error) {
	return all(c, "list tokens", c.admin.Tokens(ctx))
}

func (c *cluster) peering(ctx context.Context, name string) (*ententev1.Peering, error) {
	resp, err := c.admin.GetPeering(ctx, &ententev1.GetPeeringRequest{Name: peeringName(name)})
	return resp.GetPeering(), c.call("get peering "+name, err)
}

// contract returns a contract with its envelope.
func (c *cluster) contract(ctx context.Context, name string) (*ententev1.Contract, error) {
	resp, err := c.admin.GetContract(ctx, &ententev1.AdminServiceGetContractRequest{Name: contractName(name)})
	return resp.GetContract(), c.call("get contract "+format.Short(contractName(name)), err)
}

// self returns the info of a cluster.
func (c *cluster) self(ctx context.Context) (*ententev1.GetInfoResponse, error) {
	info, err := c.admin.GetInfo(ctx, &ententev1.GetInfoRequest{})
	return info, c.call("reach the agent", err)
}

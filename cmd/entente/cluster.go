package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
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
	// contract returns a contract with its envelope.
	contract func(ctx context.Context, name string) (*v1alpha1.Contract, error)
	close    func() error
}

// connectCluster reaches the agent of a cluster by its kubeconfig.
func connectCluster(ctx context.Context, t target) (*cluster, error) {
	config, err := t.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("(%s) read kubeconfig: %w", t.label, err)
	}
	admin, err := client.DialAdmin(ctx, client.AdminConfig{REST: config, Namespace: t.namespace})
	if err != nil {
		return nil, fmt.Errorf("(%s) %w", t.label, err)
	}
	return &cluster{
		label: t.label, admin: admin, close: admin.Close,
		nodeExists: func(ctx context.Context, name string) (bool, error) { return nodeExists(ctx, config, name) },
		contract: func(ctx context.Context, name string) (*v1alpha1.Contract, error) {
			return getContract(ctx, config, name)
		},
	}, nil
}

func nodeExists(ctx context.Context, config *rest.Config, name string) (bool, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false, fmt.Errorf("read kubeconfig: %w", err)
	}
	_, err = clients.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get node %s: %w", name, err)
	}
	return true, nil
}

func getContract(ctx context.Context, config *rest.Config, name string) (*v1alpha1.Contract, error) {
	clients, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	object, err := clients.Resource(v1alpha1.GroupVersion.WithResource("contracts")).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get contract %s: %w", name, err)
	}
	var c v1alpha1.Contract
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &c); err != nil {
		return nil, fmt.Errorf("read contract %s: %w", name, err)
	}
	return &c, nil
}

// local reaches the cluster of the current kubeconfig.
func (a *app) local(ctx context.Context) (*cluster, error) {
	return a.connect(ctx, target{label: "local", flags: a.flags, namespace: a.namespace})
}

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
	resp, err := c.admin.GetPeer(ctx, &ententev1.GetPeerRequest{Name: "peers/" + name})
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

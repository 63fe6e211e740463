package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
)

// Read reads the resources of a cluster with Entente in a namespace from its API server, without the agent, for all
// areas or one. If a webhook of the agent places pods, and that is to be checked, it also dials that.
func Read(ctx context.Context, label string, flags genericclioptions.RESTClientGetter, namespace, area string) (Report, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return Report{}, fmt.Errorf("(%s) read kubeconfig: %w", label, err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Report{}, fmt.Errorf("(%s) read kubeconfig: %w", label, err)
	}
	is := Report{Namespace: namespace}
	if is.Nodes, err = listOf[v1alpha1.FabricNode](ctx, clients.RESTClient(), "fabricnodes"); err != nil {
		return is, fmt.Errorf("(%s) list fabric nodes: %w%s", label, err, hintFor(err))
	}
	if is.Peers, err = listOf[v1alpha1.ForeignCluster](ctx, clients.RESTClient(), "foreignclusters"); err != nil {
		return is, fmt.Errorf("(%s) list foreign clusters: %w%s", label, err, hintFor(err))
	}
	if area == "" || area == AreaPeers {
		if is.Agent = agentFault(ctx, clients, namespace); errors.Is(is.Agent, client.ErrNoAgent) {
			is.Elsewhere = agentsElsewhere(ctx, clients, namespace)
		}
	}
	if area == "" || area == AreaPlacement {
		is.Placed = placed(ctx, clients.RESTClient(), func(ctx context.Context, namespace string, port int) (net.Conn, error) {
			return client.DialPort(ctx, config, namespace, port)
		})
	}
	if area == "" || area == AreaServices {
		is.Abroad = readAbroad(ctx, clients)
	}
	return is, nil
}

// listOf lists a resource of ours, page by page.
func listOf[T any](ctx context.Context, c rest.Interface, resource string) ([]T, error) {
	var all []T
	for next := ""; ; {
		raw, err := c.Get().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, resource).
			Param("limit", strconv.Itoa(pageSize)).Param("continue", next).Do(ctx).Raw()
		if err != nil {
			return nil, err //nolint:wrapcheck // the caller says of what
		}
		var list struct {
			metav1.ListMeta `json:"metadata"`
			Items           []T `json:"items"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, fmt.Errorf("read the response: %w", err)
		}
		if all = append(all, list.Items...); list.Continue == "" {
			return all, nil
		}
		next = list.Continue
	}
}

// hintFor says what to do if FabricNodes cannot be read.
func hintFor(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "\n  next: ask an administrator to bind the ClusterRole entente-view"
	case apierrors.IsNotFound(err):
		return "\n  next: install Entente in this cluster, or choose another one with --context"
	}
	return ""
}

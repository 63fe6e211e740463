package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/peering"
)

// The clusters call each other by the names that they give themselves; the request
// and so the virtual node is called as tests like.
const (
	homeName, abroadName = "home", "abroad"
	requestName          = "abroad"
	// nodeName is the virtual node of the request.
	nodeName = requestName + v1alpha1.VirtualNodeSuffix
)

// agents makes both agents run, and everything of the test be gone when it ends.
func agents(t *testing.T) (home, abroad *cluster) {
	t.Helper()
	p := needLab(t)
	home, abroad = p.home, p.abroad
	if err := p.both(func(c *cluster) error { return c.start(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := p.both(func(c *cluster) error { return c.start(ctx) }); err != nil {
			t.Error(err)
		}
		if err := part(ctx, home, abroad, later); err != nil {
			p.broken = true
			t.Errorf("clear up: %v", err)
		}
	})
	return home, abroad
}

// both does something with both clusters of a pair at once.
func (p *pair) both(do func(*cluster) error) error {
	errs := make(chan error, 2)
	for _, c := range p.clusters() {
		go func() { errs <- do(c) }()
	}
	return errors.Join(<-errs, <-errs)
}

// call calls the admin API of a cluster's agent as its administrator.
func call[T any](ctx context.Context, c *cluster, do func(context.Context, ententev1.AdminServiceClient) (T, error)) (T, error) {
	admin, err := c.admin(ctx, "")
	if err != nil {
		var zero T
		return zero, err
	}
	defer admin.Close()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return do(ctx, admin)
}

func createToken(ctx context.Context, c *cluster) (string, error) {
	resp, err := call(ctx, c, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.CreateTokenResponse, error) {
		return a.CreateToken(ctx, &ententev1.CreateTokenRequest{})
	})
	if err != nil {
		return "", err
	}
	return resp.GetToken(), world.secrets.Token(resp.GetToken())
}

func redeem(ctx context.Context, c *cluster, token string) error {
	_, err := call(ctx, c, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.JoinPeerResponse, error) {
		return a.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: token})
	})
	return err
}

// join makes the two clusters trust each other.
func join(ctx context.Context, home, abroad *cluster) error {
	token, err := createToken(ctx, abroad)
	if err != nil {
		return fmt.Errorf("create a token: %w", err)
	}
	if err := redeem(ctx, home, token); err != nil {
		return fmt.Errorf("redeem the token: %w", err)
	}
	return home.pair.both(func(c *cluster) error { return connected(ctx, c, later) })
}

func peerOf(c *cluster) string {
	if c.name == homeName {
		return abroadName
	}
	return homeName
}

// connected waits until a cluster says that a session with the other is up.
func connected(ctx context.Context, c *cluster, limit time.Duration) error {
	return eventually.Is(ctx, limit, c.name+" to be connected", func(ctx context.Context) error {
		var fc v1alpha1.ForeignCluster
		if err := c.get(ctx, peerOf(c), &fc); err != nil {
			return err
		}
		return conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected)
	})
}

func conditionTrue(conditions []metav1.Condition, kind string) error {
	c := meta.FindStatusCondition(conditions, kind)
	switch {
	case c == nil:
		return fmt.Errorf("there is no condition %s", kind)
	case c.Status != metav1.ConditionTrue:
		return fmt.Errorf("%s is %s: %s: %s", kind, c.Status, c.Reason, c.Message)
	}
	return nil
}

// amounts makes a list of resources of "cpu=1" and the like.
func amounts(texts ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, text := range texts {
		name, amount, _ := strings.Cut(text, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return out
}

// ask is the PeeringRequest that most tests use: without a tunnel, as there is no fabric here.
func ask(resources ...string) *v1alpha1.PeeringRequest {
	return requestOf(requestName, abroadName, func(s *v1alpha1.PeeringRequest) {
		s.Spec.Network, s.Spec.Resources = v1alpha1.NetworkNone, amounts(resources...)
	})
}

// contract waits until both sides hold the contract of a request, and its virtual
// node is ready; it returns its name.
func contract(ctx context.Context, home, abroad *cluster, limit time.Duration) (string, error) {
	name := ""
	err := eventually.Is(ctx, limit, "the contract to be in force and its node ready", func(ctx context.Context) error {
		var request v1alpha1.PeeringRequest
		if err := home.get(ctx, requestName, &request); err != nil {
			return err
		}
		if err := conditionTrue(request.Status.Conditions, v1alpha1.ConditionAccepted); err != nil {
			return err
		}
		name = request.Status.Contract
		for _, c := range []*cluster{home, abroad} {
			var held v1alpha1.Contract
			if err := c.get(ctx, name, &held); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if held.Status.Phase != peering.PhaseActive.String() {
				return fmt.Errorf("it is %q for %s: %s", held.Status.Phase, c.name, held.Status.Message)
			}
		}
		return nodeReady(ctx, home, request.Status.Node)
	})
	return name, err
}

func nodeReady(ctx context.Context, c *cluster, name string) error {
	if name == "" {
		return errors.New("no node is named yet")
	}
	var node corev1.Node
	if err := c.get(ctx, name, &node); err != nil {
		return err
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return fmt.Errorf("node %s says nothing yet", name)
	}
	if r := node.Status.Conditions[i]; r.Status != corev1.ConditionTrue {
		return fmt.Errorf("node %s is not ready: %s: %s", name, r.Reason, r.Message)
	}
	return nil
}

// peered joins the two clusters and makes home consume; it returns the contract.
func peered(t *testing.T, home, abroad *cluster, resources ...string) string {
	t.Helper()
	ctx := t.Context()
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	if err := home.client.Create(ctx, ask(resources...)); err != nil {
		t.Fatal(err)
	}
	name, err := contract(ctx, home, abroad, later)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// forget asks a cluster to end everything with all others.
func forget(ctx context.Context, c *cluster) error {
	for _, o := range []ctrlclient.Object{&v1alpha1.PeeringRequest{}, &v1alpha1.ForeignCluster{}} {
		if err := c.client.DeleteAllOf(ctx, o); err != nil {
			return fmt.Errorf("forget at %s: %w", c.name, err)
		}
	}
	return nil
}

// part ends everything between the clusters and waits until all of it is gone.
func part(ctx context.Context, home, abroad *cluster, limit time.Duration) error {
	if err := errors.Join(forget(ctx, home), forget(ctx, abroad)); err != nil {
		return err
	}
	return home.pair.both(func(c *cluster) error { return empty(ctx, c, limit) })
}

// empty waits until a cluster has no objects of any peering.
func empty(ctx context.Context, c *cluster, limit time.Duration) error {
	return eventually.Is(ctx, limit, c.name+" to have no objects of the peering", func(ctx context.Context) error {
		var left []string
		for _, l := range []ctrlclient.ObjectList{
			&v1alpha1.ForeignClusterList{}, &v1alpha1.PeeringRequestList{}, &v1alpha1.ContractList{},
			&v1alpha1.OffloadedPodList{}, &v1alpha1.TunnelList{},
		} {
			if err := c.client.List(ctx, l); err != nil {
				return err
			}
			_ = meta.EachListItem(l, func(o runtime.Object) error {
				if contract, ok := o.(*v1alpha1.Contract); ok && contract.Status.Phase == peering.PhaseClosed.String() && len(contract.Finalizers) == 0 {
					// Kept for what it cost; nothing stands because of it.
					return ctrlclient.IgnoreNotFound(c.client.Delete(ctx, contract))
				}
				left = append(left, describe(o.(ctrlclient.Object)))
				return nil
			})
		}
		var nodes corev1.NodeList
		if err := c.client.List(ctx, &nodes, ctrlclient.HasLabels{v1alpha1.LabelVirtualNode}); err != nil {
			return err
		}
		for i := range nodes.Items {
			left = append(left, describe(&nodes.Items[i]))
		}
		if len(left) > 0 {
			return fmt.Errorf("there are %s", strings.Join(left, ", "))
		}
		return nil
	})
}

func describe(o ctrlclient.Object) string {
	text := fmt.Sprintf("%T %s", o, strings.TrimPrefix(ctrlclient.ObjectKeyFromObject(o).String(), "/"))
	if !o.GetDeletionTimestamp().IsZero() {
		text += " (deleted)"
	}
	if c, ok := o.(*v1alpha1.Contract); ok {
		text += fmt.Sprintf(" (%s, termination %q, node %q, %s)", c.Status.Phase, c.Spec.Termination, c.Status.Node, c.Status.Message)
	}
	return text
}

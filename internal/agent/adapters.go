package agent

import (
	"context"
	"crypto/x509"
	"fmt"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/offload"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

type peerState = ententev1.PeerState

// provider asks providers over their sessions. It implements
// controller.Provider.
type provider struct {
	conn func(peering.ClusterID) *grpc.ClientConn
}

// Request implements controller.Provider.
func (p provider) Request(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (wire.Advertisement, error) {
	return client.Peering{Conn: p.conn(peer)}.Request(ctx, ask)
}

// Sign implements controller.Provider.
func (p provider) Sign(ctx context.Context, peer peering.ClusterID, e peering.Envelope) (peering.Envelope, error) {
	return client.Peering{Conn: p.conn(peer)}.Sign(ctx, e)
}

// Terminate implements controller.Provider.
func (p provider) Terminate(ctx context.Context, peer peering.ClusterID, contract, message string) error {
	return client.Peering{Conn: p.conn(peer)}.Terminate(ctx, contract, message)
}

// joining is what TrustService needs. It implements server.Trust.
type joining struct{ a *agent }

// Self implements server.Trust.
func (j joining) Self(context.Context) (wire.ClusterInfo, error) { return j.a.self(), nil }

// Redeem implements server.Trust.
func (j joining) Redeem(ctx context.Context, id string, secret peering.Secret, by peering.ClusterID) error {
	return j.a.tokens.Redeem(ctx, id, secret, by)
}

// AddPeer implements server.Trust.
func (j joining) AddPeer(ctx context.Context, id peering.ClusterID, info wire.ClusterInfo) error {
	_, err := j.a.addPeer(ctx, id, info, "")
	return err
}

func (a *agent) self() wire.ClusterInfo {
	return wire.ClusterInfo{Name: a.name(), Endpoints: a.endpoints(), Roots: []*x509.Certificate{a.identity.Root()}}
}

// addPeer records trust and lets the peer's session in at once: it will be
// dialling while the reconciler still sleeps.
func (a *agent) addPeer(ctx context.Context, id peering.ClusterID, info wire.ClusterInfo, wanted string) (string, error) {
	name, err := store.AddPeer(ctx, a.direct, id, info, wanted)
	if err != nil {
		return "", err
	}
	return name, a.bundles.Set(id, info.Roots)
}

// join redeems a token at the cluster that made it.
func (a *agent) join(ctx context.Context, token peering.Token, name string) (string, error) {
	if token.Issuer == a.identity.ID() {
		return "", wire.Errorf(wire.ReasonPeerIsSelf, "this cluster made the token: redeem it in the other one")
	}
	info, err := client.Join(ctx, client.JoinConfig{
		Token: token, Source: a.source, Self: a.self(),
	})
	if err != nil {
		return "", err
	}
	return a.addPeer(ctx, token.Issuer, info, name)
}

// contractCache tells of contracts in which this cluster lends.
type contractCache struct {
	reader ctrlclient.Reader
	self   peering.ClusterID
	lender *controller.Lender
}

func (c *contractCache) get(id string) (*v1alpha1.Contract, bool) {
	var contract v1alpha1.Contract
	err := c.reader.Get(context.Background(), ctrlclient.ObjectKey{Name: id}, &contract) //nolint:forbidigo // a cache answers at once
	if err != nil || contract.Spec.Role != v1alpha1.ContractProvider {
		return nil, false
	}
	return &contract, true
}

// state returns the contract as a value. What is asked for is what was signed:
// the envelope, not the readable copy.
func (c *contractCache) state(id string) (*v1alpha1.Contract, peering.Contract, peering.Terms, bool) {
	stored, ok := c.get(id)
	if !ok {
		return nil, peering.Contract{}, peering.Terms{}, false
	}
	contract, terms, err := store.ReadContract(stored, c.self)
	if err != nil {
		return nil, peering.Contract{}, peering.Terms{}, false
	}
	// Restored, it has not seen the time yet; its reconciler, which has, wrote the
	// phase.
	contract.Begun = contract.Begun || stored.Status.Phase != ""
	return stored, contract, terms, true
}

func (c *contractCache) peer(id string) peering.ClusterID {
	if contract, ok := c.get(id); ok {
		return peering.ClusterID(contract.Spec.PeerID)
	}
	return ""
}

func (c *contractCache) lent(id string) (offload.Contract, bool) {
	stored, contract, terms, ok := c.state(id)
	if !ok || contract.State == peering.Closed {
		return offload.Contract{}, false
	}
	resources, err := store.ResourceList(terms.Resources)
	if err != nil {
		return offload.Contract{}, false
	}
	return offload.Contract{
		Peer: terms.Consumer.ID, Resources: resources,
		PodSecurity:    v1alpha1.PodSecurityLevel(terms.PodSecurity),
		SameNamespaces: c.lender.SameNamespaces(context.Background(), terms.Consumer.ID), //nolint:forbidigo // a cache answers at once
		AcceptNew:      contract.Wants().AcceptNew && stored.Spec.Termination == "",
	}, true
}

func (c *contractCache) offered(id string) (server.OffloadContract, bool) {
	_, contract, terms, ok := c.state(id)
	if !ok {
		return server.OffloadContract{}, false
	}
	return server.OffloadContract{Consumer: terms.Consumer.ID, Closed: contract.State == peering.Closed}, true
}

// lent is what runs here for others. It implements controller.Lent.
type lent struct{ *offload.Provider }

// Close implements controller.Lent.
func (l lent) Close(ctx context.Context, c *v1alpha1.Contract) (bool, error) {
	left, err := l.CloseContract(ctx, peering.ClusterID(c.Spec.PeerID), c.Name)
	return err == nil && left.None(), err
}

// evict moves a namespace's pods off virtual nodes, as their disruption budgets
// allow, and says how many are left.
func (a *agent) evict(ctx context.Context, namespace string) (int, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := a.mgr.GetClient().List(ctx, &nodes, ctrlclient.HasLabels{v1alpha1.LabelVirtualNode}); err != nil {
		return 0, fmt.Errorf("list virtual nodes: %w", err)
	}
	if err := a.mgr.GetClient().List(ctx, &pods, ctrlclient.InNamespace(namespace)); err != nil {
		return 0, fmt.Errorf("list pods: %w", err)
	}
	virtual := map[string]bool{}
	for i := range nodes.Items {
		virtual[nodes.Items[i].Name] = true
	}
	left := 0
	for i := range pods.Items {
		p := &pods.Items[i]
		// A DaemonSet's pod would come back to the same node at once, and does not
		// run there anyway.
		owner := metav1.GetControllerOf(p)
		if !virtual[p.Spec.NodeName] || (owner != nil && owner.Kind == "DaemonSet") {
			continue
		}
		left++
		if !p.DeletionTimestamp.IsZero() {
			continue
		}
		err := a.kubernetes.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err) {
			return left, fmt.Errorf("evict pod %s/%s: %w", namespace, p.Name, err)
		}
	}
	return left, nil
}

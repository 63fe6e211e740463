package store

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// NewContract returns the custom resource for a contract that both sides signed.
func NewContract(envelope peering.Envelope, self peering.ClusterID, foreignCluster string) (*v1alpha1.Contract, error) {
	terms, err := envelope.Verify()
	if err != nil {
		return nil, err
	}
	role, ok := terms.RoleOf(self)
	if !ok {
		return nil, fmt.Errorf("contract %s is between %s and %s, not with this cluster %s", terms.ContractID, terms.Consumer.ID, terms.Provider.ID, self)
	}
	text, err := envelope.Marshal()
	if err != nil {
		return nil, err
	}
	resources, err := ResourceList(terms.Resources)
	if err != nil {
		return nil, err
	}
	peer := terms.Party(role.Other()).ID
	c := &v1alpha1.Contract{
		ObjectMeta: metav1.ObjectMeta{
			Name: terms.ContractID,
			Labels: map[string]string{
				v1alpha1.LabelManaged: v1alpha1.Manager,
				v1alpha1.LabelPeer:    string(peer),
			},
			Finalizers: []string{v1alpha1.Finalizer},
		},
		Spec: v1alpha1.ContractSpec{
			ForeignCluster: foreignCluster,
			PeerID:         string(peer),
			Role:           v1alpha1.ContractConsumer,
			Revision:       int64(terms.Revision),
			RequestID:      terms.RequestID,
			Resources:      resources,
			NotBefore:      metav1.NewTime(terms.NotBefore),
			NotAfter:       metav1.NewTime(terms.NotAfter),
			Network:        v1alpha1.NetworkNone,
			PodSecurity:    v1alpha1.PodSecurityLevel(terms.PodSecurity),
			NodeLabels:     terms.NodeLabels,
			Envelope:       string(text),
		},
	}
	if role == peering.Provider {
		c.Spec.Role = v1alpha1.ContractProvider
	}
	if terms.Network {
		c.Spec.Network = v1alpha1.NetworkTunnel
	}
	return c, nil
}

// ReadContract returns a contract's state as a value, and its terms. Both come
// from the envelope: who can write custom resources can end a contract, but not
// change what was signed.
func ReadContract(c *v1alpha1.Contract, self peering.ClusterID) (peering.Contract, peering.Terms, error) {
	envelope, err := peering.ParseEnvelope([]byte(c.Spec.Envelope))
	if err != nil {
		return peering.Contract{}, peering.Terms{}, fmt.Errorf("envelope of contract %s: %w", c.Name, err)
	}
	terms, err := envelope.Verify()
	if err != nil {
		return peering.Contract{}, peering.Terms{}, fmt.Errorf("envelope of contract %s: %w", c.Name, err)
	}
	role, ok := terms.RoleOf(self)
	if !ok || terms.ContractID != c.Name || string(terms.Party(role.Other()).ID) != c.Spec.PeerID {
		return peering.Contract{}, peering.Terms{}, fmt.Errorf("envelope of contract %s is of contract %s between %s and %s", c.Name, terms.ContractID, terms.Consumer.ID, terms.Provider.ID)
	}
	var closedAt time.Time
	if c.Status.ClosedAt != nil {
		closedAt = c.Status.ClosedAt.Time
	}
	return peering.Restore(terms, envelope.Hash(), role, peering.ParsePhase(c.Status.Phase), closedAt), terms, nil
}

// ResourceList returns amounts as Kubernetes writes them.
func ResourceList(r peering.Resources) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for name, amount := range r {
		q, err := resource.ParseQuantity(amount.String())
		if err != nil {
			return nil, fmt.Errorf("amount of %s: %w", name, err)
		}
		out[corev1.ResourceName(name)] = q
	}
	return out, nil
}

// Resources returns amounts as values of package peering.
func Resources(list corev1.ResourceList) (peering.Resources, error) {
	texts := make(map[string]string, len(list))
	for name, q := range list {
		texts[string(name)] = q.String()
	}
	return peering.ParseResources(texts)
}

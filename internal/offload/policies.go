package offload

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/netpolicy"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

const (
	// notePolicy has a NetworkPolicy in the consumer's form.
	notePolicy = "entente.dev/network-policy"
	// noteOmitted counts the blocks of a NetworkPolicy that were left out because there are too many.
	noteOmitted = "entente.dev/omitted-blocks"
)

// nameHere returns the name here of an object that contracts of a peer share.
func nameHere(ref peering.ObjectRef) string {
	if ref.Kind == peering.KindNetworkPolicy {
		return netpolicy.Name(ref.Name)
	}
	return ref.Name
}

// originName returns the name that an object here has at its home.
func originName(kind peering.Kind, o metav1.Object) string {
	if name := o.GetAnnotations()[api.LabelOriginName]; kind == peering.KindNetworkPolicy && name != "" {
		return name
	}
	return o.GetName()
}

// applyPolicy writes a NetworkPolicy for the consumer's pods here. One that is here is updated even
// if this cluster's policy no longer allows new ones: traffic that home denies by now would be
// allowed otherwise.
func (p *Provider) applyPolicy(ctx context.Context, contract string, c Contract, o peering.Object) error {
	if len(o.JSON) > netpolicy.MaxBytes {
		return refuse(peering.RefusedInvalid, false, "%s has %d bytes; the limit is %d", o.Ref, len(o.JSON), netpolicy.MaxBytes)
	}
	in, err := netpolicy.Read(o.JSON)
	if err != nil {
		return refuse(peering.RefusedInvalid, false, "read %s: %v", o.Ref, err)
	}
	ns, err := p.home(ctx, contract, c, o.Ref)
	if err != nil {
		return err
	}
	if !c.NetworkPolicies || p.cfg.Here == nil {
		have := byKey[networkingv1.NetworkPolicy](p.inv.policies, client.ObjectKey{Namespace: ns.Name, Name: nameHere(o.Ref)})
		if p.cfg.Here == nil || have == nil || have.Labels[api.LabelOriginUID] != o.Ref.UID {
			return refuse(peering.RefusedInvalid, true,
				"the provider takes no NetworkPolicies; ask it to set networkPolicies: %s in its PeeringPolicy, or keep pods that need them at home", api.NetworkPoliciesAllowed)
		}
	}
	note, err := reflection.Pack(o.JSON)
	if err != nil {
		return fmt.Errorf("encode %s: %w", o.Ref, err)
	}
	if len(note) > reflection.MaxNote {
		return refuse(peering.RefusedInvalid, false, "%s has %d bytes, compressed; the limit is %d", o.Ref, len(note), reflection.MaxNote)
	}
	want := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		notePolicy: note, api.LabelOriginName: o.Ref.Name,
	}}}
	here, err := p.here(c.Peer)
	if err != nil {
		return err
	}
	translatePolicy(in, here, want)
	return p.writeShared(ctx, contract, c, ns, o, want, stock.Item{Blocks: netpolicy.CountBlocks(&want.Spec)})
}

// here returns what is needed to translate NetworkPolicies of a peer.
func (p *Provider) here(peer peering.ClusterID) (netpolicy.Here, error) {
	here, err := p.cfg.Here(peer)
	if err != nil {
		return here, fmt.Errorf("find out how to translate network policies: %w", err)
	}
	here.Peer = peer
	return here, nil
}

// translatePolicy translates a consumer's NetworkPolicy into one of this cluster.
func translatePolicy(in *netpolicy.Policy, here netpolicy.Here, out *networkingv1.NetworkPolicy) {
	spec, left := netpolicy.Admit(in, here)
	out.Spec = spec
	if left == 0 {
		delete(out.Annotations, noteOmitted)
	} else {
		setAnnotation(out, noteOmitted, strconv.Itoa(left))
	}
}

func (v *inventory) seePolicy(np *networkingv1.NetworkPolicy) {
	v.p.stock.Set(stock.Key{Kind: peering.KindNetworkPolicy, Namespace: np.Namespace, Name: np.Name}, stock.Item{
		Peer: peering.ClusterID(np.Labels[api.LabelPeer]), Contract: firstHolder(np), Bytes: notedBytes(np.Annotations), Blocks: netpolicy.CountBlocks(&np.Spec),
	})
	v.p.policies.Namespace(np.Namespace)
}

func (v *inventory) leavePolicy(np *networkingv1.NetworkPolicy) {
	v.p.stock.Drop(stock.Key{Kind: peering.KindNetworkPolicy, Namespace: np.Namespace, Name: np.Name})
}

// reflectPolicies translates the NetworkPolicies of a namespace again: the address plan may have changed.
// Until the caches are synced, it changes nothing.
func (p *Provider) reflectPolicies(ctx context.Context, key types.NamespacedName) error {
	name := key.Namespace
	if !p.inv.known() {
		return nil
	}
	policies := indexed[*networkingv1.NetworkPolicy](p.inv.policies, cache.NamespaceIndex, name)
	if len(policies) == 0 || p.cfg.Here == nil {
		return nil
	}
	here, err := p.here(p.inv.peerOf(name))
	if err != nil {
		return err
	}
	var problems []error
	for _, np := range policies {
		if np.DeletionTimestamp != nil || np.Labels[api.LabelPeer] != string(here.Peer) {
			continue
		}
		note, ok := p.checkNote(np)
		if !ok {
			continue
		}
		if err := p.reflectPolicy(ctx, np, note, here); err != nil {
			problems = append(problems, fmt.Errorf("network policy %s: %w", np.Name, err))
		}
	}
	return errors.Join(problems...)
}

func (p *Provider) reflectPolicy(ctx context.Context, np *networkingv1.NetworkPolicy, note []byte, here netpolicy.Here) error {
	in, err := netpolicy.Read(note)
	if err != nil {
		return fmt.Errorf("decode the consumer's form: %w", err)
	}
	want := np.DeepCopy()
	translatePolicy(in, here, want)
	if equality.Semantic.DeepEqual(want.Spec, np.Spec) && want.Annotations[noteOmitted] == np.Annotations[noteOmitted] {
		return nil
	}
	if err := p.client.Update(ctx, want, client.FieldOwner(api.Manager)); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update it: %w", err)
	}
	return nil
}

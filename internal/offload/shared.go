package offload

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/pages"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

// applyConfig writes a ConfigMap or Secret.
func (p *Provider) applyConfig(ctx context.Context, contract string, c Contract, o peering.Object) error {
	if o.Ref.Name == recordName {
		return refuse(peering.RefusedInvalid, false, "%s has a name that the provider's agent uses itself; use another", o.Ref)
	}
	want, err := reflection.ReadConfig(o)
	if err != nil {
		return err
	}
	ns, err := p.home(ctx, contract, c, o.Ref)
	if err != nil {
		return err
	}
	setAnnotation(want, noteContent, reflection.Content(want))
	return p.writeShared(ctx, contract, c, ns, o, want, stock.Item{})
}

// writeShared writes an object that contracts of a peer share, unless an object that is not the
// peer's has its name. item is what a Service counts in addition to its bytes.
func (p *Provider) writeShared(ctx context.Context, contract string, c Contract, ns *corev1.Namespace, o peering.Object, want client.Object, item stock.Item) error {
	have := newShared(o.Ref.Kind)
	name := nameHere(o.Ref)
	err := p.client.Get(ctx, types.NamespacedName{Namespace: ns.Name, Name: name}, have)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read %s: %w", o.Ref, err)
	}
	if err == nil && !ours(have, c.Peer) {
		return refuse(peering.RefusedInvalid, true,
			"the provider's namespace %s has a %s %s that is not the consumer's, and it is not overwritten; use another name", ns.Name, o.Ref.Kind, name)
	}
	item.Peer, item.Contract, item.Bytes = c.Peer, contract, sharedBytes(o)
	setAnnotation(want, noteBytes, strconv.Itoa(item.Bytes))
	if err == nil {
		item.Contract = min(contract, cmp.Or(firstHolder(have), contract))
	}
	key := stock.Key{Kind: o.Ref.Kind, Namespace: ns.Name, Name: name}
	undo, refusal := p.stock.Admit(key, item)
	if refusal != nil {
		return refusal
	}
	if err := p.putShared(ctx, contract, c, ns, o, want, have, err == nil); err != nil {
		undo()
		return err
	}
	if o.Ref.Kind != peering.KindService && o.Ref.Kind != peering.KindNetworkPolicy { // those are watched
		// Once more: a list that began before the write does not have the object.
		p.stock.Set(key, item)
	}
	return nil
}

// sharedBytes is how many bytes an object counts. A Service is stored with its note, and once more
// in its EndpointSlices; a NetworkPolicy with its note.
func sharedBytes(o peering.Object) int {
	if o.Ref.Kind == peering.KindService || o.Ref.Kind == peering.KindNetworkPolicy {
		return 2 * len(o.JSON)
	}
	return len(o.JSON)
}

// putShared writes an object in place of have, if that exists.
func (p *Provider) putShared(ctx context.Context, contract string, c Contract, ns *corev1.Namespace, o peering.Object, want, have client.Object, exists bool) error {
	if exists && reflection.Replaces(have, want) {
		p.inv.unwrote(configKey(o.Ref.Kind, have))
		if err := p.client.Delete(ctx, have, client.Preconditions{UID: new(have.GetUID())}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("replace %s: %w", o.Ref, err)
		}
		want.SetAnnotations(keepHolders(have, o.Ref.UID, want.GetAnnotations()))
		exists = false
	}
	if !exists {
		want.SetNamespace(ns.Name)
		want.SetName(nameHere(o.Ref))
		setOrigin(want, c.Peer, o.Ref.UID)
		setAnnotation(want, heldKey(contract), o.Hash().String())
		if err := p.client.Create(ctx, want, client.FieldOwner(api.Manager)); err != nil {
			return fmt.Errorf("create %s: %w", o.Ref, err)
		}
		p.inv.wrote(want)
		return nil
	}
	annotations := keepHolders(have, o.Ref.UID, want.GetAnnotations())
	have.SetLabels(want.GetLabels())
	have.SetAnnotations(annotations)
	setOrigin(have, c.Peer, o.Ref.UID)
	setAnnotation(have, heldKey(contract), o.Hash().String())
	reflection.Adopt(have, want)
	if err := p.client.Update(ctx, have, client.FieldOwner(api.Manager)); err != nil {
		return fmt.Errorf("update %s: %w", o.Ref, err)
	}
	p.inv.wrote(have)
	return nil
}

// keepHolders adds to annotations those of other contracts that hold the object, if it is the same
// object at home.
func keepHolders(have metav1.Object, uid string, annotations map[string]string) map[string]string {
	out := make(map[string]string)
	maps.Copy(out, annotations)
	if have.GetLabels()[api.LabelOriginUID] == uid {
		for _, id := range holders(have) {
			out[heldKey(id)] = have.GetAnnotations()[heldKey(id)]
		}
	}
	return out
}

func newShared(k peering.Kind) client.Object {
	switch k {
	case peering.KindConfigMap:
		return &corev1.ConfigMap{}
	case peering.KindSecret:
		return &corev1.Secret{}
	case peering.KindNetworkPolicy:
		return &networkingv1.NetworkPolicy{}
	default:
		return &corev1.Service{}
	}
}

func kindOf(o client.Object) peering.Kind {
	switch o.(type) {
	case *corev1.ConfigMap:
		return peering.KindConfigMap
	case *corev1.Secret:
		return peering.KindSecret
	case *networkingv1.NetworkPolicy:
		return peering.KindNetworkPolicy
	default:
		return peering.KindService
	}
}

// deleteShared ends a contract's hold on an object, and deletes the object when no other contract
// holds it.
func (p *Provider) deleteShared(ctx context.Context, contract string, c Contract, ref peering.ObjectRef) error {
	ns, _, err := p.findNamespace(ctx, c.Peer, ref.Namespace, "")
	if err != nil || ns == nil {
		return err
	}
	have := newShared(ref.Kind)
	err = p.client.Get(ctx, types.NamespacedName{Namespace: ns.Name, Name: nameHere(ref)}, have)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", ref, err)
	}
	if !ours(have, c.Peer) || have.GetLabels()[api.LabelOriginUID] != ref.UID {
		return nil
	}
	return p.release(ctx, contract, have)
}

// release ends a contract's hold on an object, and deletes the object when no other contract holds
// it. EndpointSlices are deleted with their Service.
func (p *Provider) release(ctx context.Context, contract string, o client.Object) error {
	if _, ok := heldBy(o, contract); !ok && len(holders(o)) > 0 {
		return nil
	}
	annotations := o.GetAnnotations()
	delete(annotations, heldKey(contract))
	o.SetAnnotations(annotations)
	if len(holders(o)) > 0 {
		if err := p.client.Update(ctx, o, client.FieldOwner(api.Manager)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("release %s/%s: %w", o.GetNamespace(), o.GetName(), err)
		}
		return nil
	}
	p.inv.unwrote(configKey(kindOf(o), o))
	version := o.GetResourceVersion()
	err := p.client.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID()), ResourceVersion: &version})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	p.stock.Drop(stock.Key{Kind: kindOf(o), Namespace: o.GetNamespace(), Name: o.GetName()})
	if svc, ok := o.(*corev1.Service); ok {
		return p.slices.Delete(ctx, svc)
	}
	return nil
}

// metadataList returns a list of the metadata of objects of a kind.
func metadataList(kind peering.Kind) *metav1.PartialObjectMetadataList {
	list, group := &metav1.PartialObjectMetadataList{}, corev1.SchemeGroupVersion
	if kind == peering.KindNetworkPolicy {
		group = networkingv1.SchemeGroupVersion
	}
	list.SetGroupVersionKind(group.WithKind(kind.String() + "List"))
	return list
}

// eachShared calls f with each object of these kinds of a peer in a namespace, except for the
// namespace's record. It reads only metadata: a peer may have much in one namespace.
func (p *Provider) eachShared(ctx context.Context, namespace string, peer peering.ClusterID, f func(peering.Kind, *metav1.PartialObjectMetadata) error, kinds ...peering.Kind) error {
	for _, kind := range kinds {
		err := pages.Each(ctx, p.client, func() *metav1.PartialObjectMetadataList { return metadataList(kind) }, func(list *metav1.PartialObjectMetadataList) error {
			for i := range list.Items {
				if kind == peering.KindConfigMap && list.Items[i].Name == recordName {
					continue
				}
				if err := f(kind, &list.Items[i]); err != nil {
					return err
				}
			}
			return nil
		}, client.InNamespace(namespace), client.MatchingLabels{api.LabelManaged: api.Manager, api.LabelPeer: string(peer)})
		if err != nil {
			return fmt.Errorf("read each %s in namespace %s: %w", kind, namespace, err)
		}
	}
	return nil
}

// releaseShared ends a contract's hold on everything in a namespace but pods.
func (p *Provider) releaseShared(ctx context.Context, contract string, ns *corev1.Namespace, peer peering.ClusterID) error {
	return p.eachShared(ctx, ns.Name, peer, func(kind peering.Kind, o *metav1.PartialObjectMetadata) error {
		if !slices.Contains(holders(o), contract) {
			return nil
		}
		whole := newShared(kind)
		if err := p.client.Get(ctx, client.ObjectKeyFromObject(o), whole); err != nil {
			return client.IgnoreNotFound(err)
		}
		if whole.GetUID() != o.UID {
			return nil
		}
		return p.release(ctx, contract, whole)
	}, peering.KindConfigMap, peering.KindSecret, peering.KindService, peering.KindNetworkPolicy)
}

// heldIn returns the objects, except for pods, that a contract holds in a namespace.
func (p *Provider) heldIn(ctx context.Context, contract string, ns *corev1.Namespace) (held []peering.Held, err error) {
	record, err := p.readRecord(ctx, ns.Name)
	if record == nil && (err == nil || apierrors.IsForbidden(err)) {
		// The namespace is half created or half deleted, or lacks our rights: the consumer applies it again.
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	hash, ok := heldBy(record, contract)
	if !ok {
		return nil, nil
	}
	origin := ns.Labels[api.LabelOriginNamespace]
	held = append(held, peering.Held{
		Ref:  peering.ObjectRef{Kind: peering.KindNamespace, Name: origin, UID: ns.Labels[api.LabelOriginUID]},
		Hash: hash,
	})
	err = p.eachShared(ctx, ns.Name, peering.ClusterID(ns.Labels[api.LabelPeer]), func(k peering.Kind, o *metav1.PartialObjectMetadata) error {
		if hash, ok := heldBy(o, contract); ok {
			ref := sharedRef(k, origin, o)
			if !noted(ref, o, hash) || !p.inv.asApplied(k, o) {
				hash = peering.Hash{} // the consumer applies it again
			}
			held = append(held, peering.Held{Ref: ref, Hash: hash})
		}
		return nil
	}, peering.KindConfigMap, peering.KindSecret, peering.KindService, peering.KindNetworkPolicy, peering.KindClaim)
	return held, err
}

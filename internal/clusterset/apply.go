package clusterset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// apply updates a ServiceImport, the Service that has its address, and its EndpointSlices to a plan.
func (r *Reconciler) apply(ctx context.Context, name peering.ServiceName, have *mcs.ServiceImport, p plan) error {
	if err := kube.Bind(ctx, r.Client, name.Namespace, ClusterRole, r.ServiceAccount); err != nil {
		return err
	}
	before := have.DeepCopy()
	now, err := r.applyImport(ctx, name, have, p)
	if err != nil {
		return err
	}
	ready := store.Condition(string(mcs.ServiceImportConditionReady), metav1.ConditionTrue, string(mcs.ServiceImportReasonReady), "")
	if p.headless {
		err = r.dropDerived(ctx, now)
	} else {
		var taken bool
		if taken, err = r.applyDerived(ctx, now, p); taken {
			ready.Status, ready.Reason = metav1.ConditionFalse, string(mcs.ServiceImportReasonPending)
			ready.Message = fmt.Sprintf("the namespace has a Service %s that is not this import's: delete it", endpoints.SetName(name.Name))
		}
	}
	if err != nil {
		return err
	}
	if err := r.applySlices(ctx, now, p); err != nil {
		return err
	}
	if err := r.writeAddresses(ctx, before, now); err != nil {
		return err
	}
	after := now.DeepCopy()
	after.Status.Clusters = p.clusters()
	ready.ObservedGeneration = after.Generation
	meta.SetStatusCondition(&after.Status.Conditions, ready)
	return client.IgnoreNotFound(store.PatchStatus(ctx, r.Direct, now, after))
}

// payer is the peer whose budget pays for the writes of a Service; empty for this cluster itself.
func (p plan) payer() peering.ClusterID {
	if len(p.sides) == 0 || slices.ContainsFunc(p.sides, func(s side) bool { return s.own }) {
		return ""
	}
	return p.sides[0].cluster
}

// take takes a write from a peer's budget.
func (r *Reconciler) take(payer peering.ClusterID, o client.Object) error {
	if payer == "" {
		return nil
	}
	return r.Budget.Take(payer, o)
}

// applyImport creates the ServiceImport, or updates it to a plan. Addresses stay as they are.
func (r *Reconciler) applyImport(ctx context.Context, name peering.ServiceName, have *mcs.ServiceImport, p plan) (*mcs.ServiceImport, error) {
	if p.frozen {
		return have, nil
	}
	want := p.serviceImport(name)
	if have == nil {
		if err := r.take(p.payer(), want); err != nil {
			return nil, err
		}
		if err := r.Direct.Create(ctx, want, client.FieldOwner(api.Manager)); err != nil {
			return nil, fmt.Errorf("create service import %s: %w", name, err)
		}
		return want, nil
	}
	want.Spec.IPs, want.Spec.IPFamilies = have.Spec.IPs, have.Spec.IPFamilies
	if equality.Semantic.DeepEqual(want.Spec, have.Spec) && equality.Semantic.DeepEqual(want.Labels, have.Labels) &&
		equality.Semantic.DeepEqual(want.Annotations, have.Annotations) {
		return have, nil
	}
	if err := r.take(p.payer(), want); err != nil {
		return nil, err
	}
	now := have.DeepCopy()
	now.Spec, now.Labels, now.Annotations = want.Spec, want.Labels, want.Annotations
	if err := r.Direct.Update(ctx, now, client.FieldOwner(api.Manager)); err != nil {
		return nil, fmt.Errorf("update service import %s: %w", name, err)
	}
	return now, nil
}

// applyDerived creates or updates the Service that has the address, and records it in the import. taken reports
// that the name belongs to another Service.
func (r *Reconciler) applyDerived(ctx context.Context, i *mcs.ServiceImport, p plan) (taken bool, err error) {
	want, have := derived(i), &corev1.Service{}
	err = r.Direct.Get(ctx, client.ObjectKeyFromObject(want), have)
	absent := err != nil
	switch {
	case client.IgnoreNotFound(err) != nil:
		return false, fmt.Errorf("read service %s: %w", want.Name, err)
	case !absent && services.Leftover(have, mcs.ServiceImportKindName, i):
		if err := services.DeleteLeftover(ctx, r.Direct, have); err != nil {
			return false, err
		}
		absent = true
	}
	switch {
	case absent:
		if err := r.take(p.payer(), want); err != nil {
			return false, err
		}
		if err := r.Direct.Create(ctx, want, client.FieldOwner(api.Manager)); err != nil {
			return false, fmt.Errorf("create service %s: %w", want.Name, err)
		}
		have = want
	case !metav1.IsControlledBy(have, i):
		return true, nil
	default:
		if have, err = r.updateDerived(ctx, have, want, p); err != nil {
			return false, err
		}
	}
	i.Spec.IPs, i.Spec.IPFamilies = have.Spec.ClusterIPs, have.Spec.IPFamilies
	return false, nil
}

func (r *Reconciler) updateDerived(ctx context.Context, have, want *corev1.Service, p plan) (*corev1.Service, error) {
	now := have.DeepCopy()
	now.Labels, now.Spec.Ports = want.Labels, want.Spec.Ports
	now.Spec.SessionAffinity, now.Spec.SessionAffinityConfig = want.Spec.SessionAffinity, want.Spec.SessionAffinityConfig
	now.Spec.TrafficDistribution = want.Spec.TrafficDistribution
	was := have.DeepCopy()
	for i := range was.Spec.Ports {
		q := was.Spec.Ports[i]
		was.Spec.Ports[i] = corev1.ServicePort{Name: q.Name, Protocol: q.Protocol, AppProtocol: q.AppProtocol, Port: q.Port} // without what the API server fills in
	}
	if equality.Semantic.DeepEqual(was.Labels, now.Labels) && equality.Semantic.DeepEqual(was.Spec, now.Spec) {
		return have, nil
	}
	if err := r.take(p.payer(), now); err != nil {
		return nil, err
	}
	if err := r.Direct.Update(ctx, now, client.FieldOwner(api.Manager)); err != nil {
		return nil, fmt.Errorf("update service %s: %w", now.Name, err)
	}
	return now, nil
}

// dropDerived deletes the Service of a ServiceImport that no longer has an address.
func (r *Reconciler) dropDerived(ctx context.Context, i *mcs.ServiceImport) error {
	i.Spec.IPs = nil
	have := &corev1.Service{}
	err := r.Direct.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: endpoints.SetName(i.Name)}, have)
	if err != nil || !metav1.IsControlledBy(have, i) {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(r.Direct.Delete(ctx, have, client.Preconditions{UID: &have.UID}))
}

// writeAddresses writes the addresses of a ServiceImport.
func (r *Reconciler) writeAddresses(ctx context.Context, before, now *mcs.ServiceImport) error {
	var was mcs.ServiceImport
	if before != nil {
		was = *before
	}
	if slices.Equal(was.Spec.IPs, now.Spec.IPs) && slices.Equal(was.Spec.IPFamilies, now.Spec.IPFamilies) {
		return nil
	}
	if err := r.Direct.Update(ctx, now, client.FieldOwner(api.Manager)); err != nil {
		return fmt.Errorf("update service import %s: %w", now.Name, err)
	}
	return nil
}

// applySlices updates the EndpointSlices to a plan. A headless import has the IP families of its endpoints.
func (r *Reconciler) applySlices(ctx context.Context, i *mcs.ServiceImport, p plan) error {
	var list discoveryv1.EndpointSliceList
	if err := r.Direct.List(ctx, &list, client.InNamespace(i.Namespace), client.MatchingLabels{
		discoveryv1.LabelManagedBy: api.Manager, mcs.LabelServiceName: i.Name,
	}); err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	have := map[string]*discoveryv1.EndpointSlice{}
	var there []*discoveryv1.EndpointSlice
	for n := range list.Items {
		if s := &list.Items[n]; p.kept[s.Labels[mcs.LabelSourceCluster]] {
			there = append(there, s)
		} else {
			have[s.Name] = s
		}
	}
	for _, s := range p.sides {
		payer := s.cluster
		if s.own {
			payer = ""
		}
		take := func(o client.Object) error { return r.take(payer, o) }
		for _, want := range p.slicesOf(s, i) {
			if err := services.ApplySlice(ctx, r.Direct, have[want.Name], want, take); err != nil {
				return err
			}
			delete(have, want.Name)
			there = append(there, want)
		}
	}
	if err := services.DeleteSlices(ctx, r.Direct, have); err != nil {
		return err
	}
	if p.headless {
		i.Spec.IPFamilies = families(there)
	}
	return nil
}

// drop deletes a ServiceImport that no cluster exports to. What was created for it is deleted with it, as its
// owner; the agent's rights in the namespace are removed with the last one.
func (r *Reconciler) drop(ctx context.Context, name peering.ServiceName, have *mcs.ServiceImport) error {
	if have != nil {
		if err := r.Direct.Delete(ctx, have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete service import %s: %w", name, err)
		}
	}
	var left mcs.ServiceImportList
	if err := r.Client.List(ctx, &left, client.InNamespace(name.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list service imports: %w", err)
	}
	if slices.ContainsFunc(left.Items, func(i mcs.ServiceImport) bool {
		return i.Labels[api.LabelManaged] == api.Manager && i.DeletionTimestamp.IsZero()
	}) {
		return nil
	}
	binding := &rbacv1.RoleBinding{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: ClusterRole}, binding)
	if err == nil {
		err = r.Client.Delete(ctx, binding)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop the agent's rights in namespace %s: %w", name.Namespace, err)
	}
	return nil
}

package server

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// CreatePeering implements AdminService: it writes a ResourceSlice.
func (s *adminServer) CreatePeering(ctx context.Context, req *ententev1.CreatePeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	fc, err := s.foreignCluster(ctx, req.GetPeer())
	if err != nil {
		return nil, err
	}
	spec, err := sliceSpec(fc.Name, req)
	if err != nil {
		return nil, err
	}
	name := req.GetResourceSlice()
	if name == "" {
		name = fc.Name
	}
	slice := &v1alpha1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	err = s.cfg.Client.Create(ctx, slice, ctrlclient.FieldOwner(adminFieldManager))
	if apierrors.IsAlreadyExists(err) {
		return nil, s.peeringExists(ctx, name, fc.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("create resource slice %s: %w", name, err)
	}
	return &ententev1.CreatePeeringResponse{ResourceSlice: name}, nil
}

// sliceSpec is the ask as a ResourceSlice says it.
func sliceSpec(foreignCluster string, req *ententev1.CreatePeeringRequest) (v1alpha1.ResourceSliceSpec, error) {
	spec := v1alpha1.ResourceSliceSpec{ForeignCluster: foreignCluster, Network: v1alpha1.NetworkTunnel}
	if req.GetNoNetwork() {
		spec.Network = v1alpha1.NetworkNone
	}
	// The core's rules for amounts, so that what cannot be agreed on is refused
	// here and not by the provider.
	resources, err := peering.ParseResources(req.GetResources().GetAmounts())
	if err != nil {
		return spec, badField("resources", "%s", err)
	}
	for _, name := range resources.Names() {
		q := resources[name]
		if q.IsZero() {
			return spec, badField("resources", "%s is nothing: leave it out", name)
		}
		if !peering.Fractional(name) && !q.IsWhole() {
			return spec, badField("resources", "%s is not a whole number", name)
		}
		amount, err := resource.ParseQuantity(q.String())
		if err != nil {
			return spec, badField("resources", "%s: %s", name, err)
		}
		if spec.Resources == nil {
			spec.Resources = corev1.ResourceList{}
		}
		spec.Resources[corev1.ResourceName(name)] = amount
	}
	if req.GetDuration() != nil {
		d := req.GetDuration().AsDuration()
		if err := req.GetDuration().CheckValid(); err != nil || d <= 0 || d > peering.MaxContractLife {
			return spec, badField("duration", "want more than nothing and at most %s", peering.MaxContractLife)
		}
		spec.Duration = &metav1.Duration{Duration: d}
	}
	return spec, nil
}

func (s *adminServer) peeringExists(ctx context.Context, name, foreignCluster string) error {
	var old v1alpha1.ResourceSlice
	if err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &old); err != nil {
		return fmt.Errorf("get resource slice %s: %w", name, err)
	}
	e := &wire.Error{
		Reason: wire.ReasonPeeringExists,
		Metadata: map[string]string{
			"resourceSlice": name, "peer": old.Spec.ForeignCluster,
		},
	}
	switch {
	case !old.DeletionTimestamp.IsZero():
		e.Message = fmt.Sprintf("resource slice %s is being taken down; try again when it is gone", name)
		e.Metadata["ending"] = "true"
		e.RetryAfter = retryConflict
	case old.Spec.ForeignCluster != foreignCluster:
		e.Message = fmt.Sprintf("resource slice %s asks another peer, %s: choose another name", name, old.Spec.ForeignCluster)
	default:
		e.Message = fmt.Sprintf("resource slice %s asks peer %s already", name, foreignCluster)
	}
	return e
}

// EndPeering implements AdminService. It says what is to end and leaves ending
// it to the reconcilers, which do not wait for the peer.
func (s *adminServer) EndPeering(ctx context.Context, req *ententev1.EndPeeringRequest) (*ententev1.EndPeeringResponse, error) {
	fc, err := s.foreignCluster(ctx, req.GetPeer())
	if err != nil {
		return nil, err
	}
	var contracts v1alpha1.ContractList
	if err := s.cfg.Client.List(ctx, &contracts); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	var asks v1alpha1.ResourceSliceList
	if err := s.cfg.Client.List(ctx, &asks); err != nil {
		return nil, fmt.Errorf("list resource slices: %w", err)
	}
	ending := slices.DeleteFunc(contracts.Items, func(c v1alpha1.Contract) bool {
		ours := c.Spec.Role == v1alpha1.ContractConsumer || req.GetForget()
		return c.Spec.PeerID != fc.Spec.ClusterID || !ours || c.Status.Phase == peering.PhaseClosed.String()
	})
	resp := &ententev1.EndPeeringResponse{}
	for i := range ending {
		resp.Pods += ending[i].Status.Pods
	}
	if req.GetRefuseIfRunning() && resp.GetPods() > 0 {
		return nil, &wire.Error{
			Reason:   wire.ReasonPodsRunning,
			Message:  fmt.Sprintf("%d pods run by the contracts with %s", resp.GetPods(), fc.Name),
			Metadata: map[string]string{"pods": fmt.Sprint(resp.GetPods())},
		}
	}
	if err := s.terminate(ctx, ending, req.GetNow()); err != nil {
		return nil, err
	}
	for i := range asks.Items {
		if asks.Items[i].Spec.ForeignCluster != fc.Name {
			continue
		}
		if err := s.remove(ctx, &asks.Items[i]); err != nil {
			return nil, fmt.Errorf("delete resource slice %s: %w", asks.Items[i].Name, err)
		}
	}
	if req.GetForget() {
		if err := s.remove(ctx, fc); err != nil {
			return nil, fmt.Errorf("delete foreign cluster %s: %w", fc.Name, err)
		}
	}
	return resp, nil
}

// terminate asks contracts to end: at once, or where nothing was asked yet, by
// draining.
func (s *adminServer) terminate(ctx context.Context, contracts []v1alpha1.Contract, now bool) error {
	for i := range contracts {
		c := &contracts[i]
		mode := v1alpha1.TerminateDrain
		if now {
			mode = v1alpha1.TerminateNow
		}
		if c.Spec.Termination == v1alpha1.TerminateNow || c.Spec.Termination == mode {
			continue
		}
		before := c.DeepCopy()
		c.Spec.Termination = mode
		err := s.cfg.Client.Patch(ctx, c, ctrlclient.MergeFrom(before), ctrlclient.FieldOwner(adminFieldManager))
		if ctrlclient.IgnoreNotFound(err) != nil {
			return fmt.Errorf("terminate contract %s: %w", c.Name, err)
		}
	}
	return nil
}

// remove deletes what was looked at and nothing that came by its name since.
func (s *adminServer) remove(ctx context.Context, o ctrlclient.Object) error {
	if !o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	uid := o.GetUID()
	err := s.cfg.Client.Delete(ctx, o, ctrlclient.Preconditions{UID: &uid})
	return ctrlclient.IgnoreNotFound(err)
}

// OffloadNamespace implements AdminService: it writes a NamespaceOffloading.
func (s *adminServer) OffloadNamespace(ctx context.Context, req *ententev1.OffloadNamespaceRequest) (*ententev1.OffloadNamespaceResponse, error) {
	namespace := namespaceName(req.GetNamespace())
	var ns corev1.Namespace
	if err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: namespace}, &ns); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, wire.Errorf(wire.ReasonNamespaceUnknown, "there is no namespace %s", namespace)
		}
		return nil, fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	selector, err := s.selectPeers(ctx, req.GetPeers())
	if err != nil {
		return nil, err
	}
	want := v1alpha1.NamespaceOffloadingSpec{
		PodStrategy:     v1alpha1.PodStrategy(req.GetPodStrategy()),
		NameMapping:     v1alpha1.NameMapping(req.GetNameMapping()),
		ClusterSelector: selector,
	}
	if want.PodStrategy == "" {
		want.PodStrategy = v1alpha1.StrategyLocalAndRemote
	}
	key := ctrlclient.ObjectKey{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}
	var old v1alpha1.NamespaceOffloading
	err = s.cfg.Client.Get(ctx, key, &old)
	switch {
	case apierrors.IsNotFound(err):
		if want.NameMapping == "" {
			want.NameMapping = v1alpha1.MappingSuffixed
		}
		o := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key.Name}, Spec: want}
		if err := s.cfg.Client.Create(ctx, o, ctrlclient.FieldOwner(adminFieldManager)); err != nil {
			return nil, fmt.Errorf("create namespace offloading in %s: %w", namespace, err)
		}
		return &ententev1.OffloadNamespaceResponse{}, nil
	case err != nil:
		return nil, fmt.Errorf("get namespace offloading in %s: %w", namespace, err)
	}
	if want.NameMapping == "" {
		want.NameMapping = old.Spec.NameMapping
	}
	if want.NameMapping != old.Spec.NameMapping {
		return nil, wire.Errorf(wire.ReasonMappingFixed, "namespace %s is offloaded with mapping %s, which never changes: `entente unoffload namespace %s` first",
			namespace, old.Spec.NameMapping, namespace)
	}
	old.Spec = want
	if err := s.cfg.Client.Update(ctx, &old, ctrlclient.FieldOwner(adminFieldManager)); err != nil {
		return nil, fmt.Errorf("update namespace offloading in %s: %w", namespace, err)
	}
	return &ententev1.OffloadNamespaceResponse{}, nil
}

// selectPeers returns a selector of the named peers; nil, which is all, for none.
// Peers are selected by the label that carries their cluster ID.
func (s *adminServer) selectPeers(ctx context.Context, names []string) (*metav1.LabelSelector, error) {
	if len(names) == 0 {
		return nil, nil //nolint:nilnil // no selector is what selects all
	}
	ids := make(map[string]bool, len(names))
	for i, name := range names {
		fc, err := s.foreignCluster(ctx, name)
		if err != nil {
			return nil, err
		}
		if fc.Labels[v1alpha1.LabelPeer] != fc.Spec.ClusterID {
			before := fc.DeepCopy()
			metav1.SetMetaDataLabel(&fc.ObjectMeta, v1alpha1.LabelPeer, fc.Spec.ClusterID)
			if err := s.cfg.Client.Patch(ctx, fc, ctrlclient.MergeFrom(before), ctrlclient.FieldOwner(adminFieldManager)); err != nil {
				return nil, fmt.Errorf("label foreign cluster %s: %w", names[i], err)
			}
		}
		ids[fc.Spec.ClusterID] = true
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: v1alpha1.LabelPeer, Operator: metav1.LabelSelectorOpIn, Values: slices.Sorted(maps.Keys(ids)),
	}}}, nil
}

// UnoffloadNamespace implements AdminService.
func (s *adminServer) UnoffloadNamespace(ctx context.Context, req *ententev1.UnoffloadNamespaceRequest) (*ententev1.UnoffloadNamespaceResponse, error) {
	namespace := namespaceName(req.GetNamespace())
	var o v1alpha1.NamespaceOffloading
	err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}, &o)
	if apierrors.IsNotFound(err) {
		return nil, wire.Errorf(wire.ReasonNamespaceNotOffloaded, "namespace %s is not offloaded", namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("get namespace offloading in %s: %w", namespace, err)
	}
	if err := s.remove(ctx, &o); err != nil {
		return nil, fmt.Errorf("delete namespace offloading in %s: %w", namespace, err)
	}
	return &ententev1.UnoffloadNamespaceResponse{}, nil
}

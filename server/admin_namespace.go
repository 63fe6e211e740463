package server

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
)

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

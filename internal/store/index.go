package store

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Index is a field by which a cache finds objects without reading all of them.
type Index struct {
	// Object is an object of the indexed kind.
	Object client.Object
	Field  string
	// Values returns the values of an object; an object without values is not in the index.
	Values client.IndexerFunc
}

const (
	fieldCluster        = "spec.clusterID"
	fieldPeer           = "spec.peerID"
	fieldRequest        = "spec.requestID"
	fieldNode           = "status.node"
	fieldForeignCluster = "spec.foreignCluster"
)

// Indexes returns the indexes that Cached, the functions of contracts and RequestsOf use.
func Indexes() []Index {
	return []Index{
		{&v1alpha1.ForeignCluster{}, fieldCluster, func(o client.Object) []string { return some(o.(*v1alpha1.ForeignCluster).Spec.ClusterID) }},
		{&v1alpha1.Contract{}, fieldPeer, func(o client.Object) []string { return some(o.(*v1alpha1.Contract).Spec.PeerID) }},
		{&v1alpha1.Contract{}, fieldRequest, func(o client.Object) []string { return some(o.(*v1alpha1.Contract).Spec.RequestID) }},
		{&v1alpha1.Contract{}, fieldNode, func(o client.Object) []string { return some(o.(*v1alpha1.Contract).Status.Node) }},
		{&v1alpha1.PeeringRequest{}, fieldForeignCluster, func(o client.Object) []string { return some(o.(*v1alpha1.PeeringRequest).Spec.ForeignCluster) }},
	}
}

func some(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

// AddIndexes adds the indexes to a cache, before it is read.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range Indexes() {
		if err := indexer.IndexField(ctx, i.Object, i.Field, i.Values); err != nil {
			return fmt.Errorf("index %T by %s: %w", i.Object, i.Field, err)
		}
	}
	return nil
}

// Cached returns a copy of the ForeignCluster that Known would choose, or nil, from a cache that has the indexes.
// Its cost does not grow with the number of ForeignClusters.
func Cached(ctx context.Context, cache client.Reader, id peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
	fc, err := Peek(ctx, cache, id)
	return fc.DeepCopy(), err
}

// Peek is Cached without a copy, for reading only. An offer alone has hundreds of kilobytes to copy, and pods are
// reconciled often.
func Peek(ctx context.Context, cache client.Reader, id peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
	if id == "" {
		return nil, nil //nolint:nilnil // nil means absent
	}
	var list v1alpha1.ForeignClusterList
	if err := cache.List(ctx, &list, client.MatchingFields{fieldCluster: string(id)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	return Known(list.Items, id), nil
}

// ContractsWith returns the contracts with a peer, including those that are over, from a cache that has the
// indexes. With client.UnsafeDisableDeepCopy they must only be read.
func ContractsWith(ctx context.Context, cache client.Reader, peer peering.ClusterID, options ...client.ListOption) ([]v1alpha1.Contract, error) {
	return contractsBy(ctx, cache, fieldPeer, string(peer), options)
}

// ContractsFor is ContractsWith for the contracts of a request.
func ContractsFor(ctx context.Context, cache client.Reader, request string, options ...client.ListOption) ([]v1alpha1.Contract, error) {
	return contractsBy(ctx, cache, fieldRequest, request, options)
}

// ContractsOn is ContractsWith for the contracts of a virtual node.
func ContractsOn(ctx context.Context, cache client.Reader, node string, options ...client.ListOption) ([]v1alpha1.Contract, error) {
	return contractsBy(ctx, cache, fieldNode, node, options)
}

func contractsBy(ctx context.Context, cache client.Reader, field, value string, options []client.ListOption) ([]v1alpha1.Contract, error) {
	if value == "" {
		return nil, nil
	}
	var list v1alpha1.ContractList
	if err := cache.List(ctx, &list, append(options, client.MatchingFields{field: value})...); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	return list.Items, nil
}

// RequestsOf returns the PeeringRequests that ask a ForeignCluster by its name, from a cache that has the indexes.
func RequestsOf(ctx context.Context, cache client.Reader, foreignCluster string) ([]v1alpha1.PeeringRequest, error) {
	var list v1alpha1.PeeringRequestList
	if err := cache.List(ctx, &list, client.MatchingFields{fieldForeignCluster: foreignCluster}); err != nil {
		return nil, fmt.Errorf("list peering requests: %w", err)
	}
	return list.Items, nil
}

package store

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Index is a field by which a cache finds objects without looking at all of them.
type Index struct {
	// Object says of which kind.
	Object client.Object
	Field  string
	// Values returns the values of an object; none leaves it out.
	Values client.IndexerFunc
}

const (
	fieldCluster        = "spec.clusterID"
	fieldPeer           = "spec.peerID"
	fieldRequest        = "spec.requestID"
	fieldNode           = "status.node"
	fieldForeignCluster = "spec.foreignCluster"
)

// Indexes returns the fields that Cached, the functions of contracts and RequestsOf look at.
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

// AddIndexes has a cache keep them. Call it before the cache is asked anything.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range Indexes() {
		if err := indexer.IndexField(ctx, i.Object, i.Field, i.Values); err != nil {
			return fmt.Errorf("index %T by %s: %w", i.Object, i.Field, err)
		}
	}
	return nil
}

// Cached returns what Known does of the ForeignClusters in a cache that has the
// indexes: a copy, or nil. However many there are, it costs the same.
func Cached(ctx context.Context, cache client.Reader, id peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
	fc, err := Peek(ctx, cache, id)
	return fc.DeepCopy(), err
}

// Peek is Cached without a copy: it is to be read only. An offer alone has hundreds of
// kilobytes to copy, and pods are looked at often.
func Peek(ctx context.Context, cache client.Reader, id peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
	if id == "" {
		return nil, nil //nolint:nilnil // absent is an answer
	}
	var list v1alpha1.ForeignClusterList
	if err := cache.List(ctx, &list, client.MatchingFields{fieldCluster: string(id)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	return Known(list.Items, id), nil
}

// ContractsWith returns the contracts with a peer, those that are over included,
// from a cache that has the indexes. With client.UnsafeDisableDeepCopy they are to
// be read only.
func ContractsWith(ctx context.Context, cache client.Reader, peer peering.ClusterID, options ...client.ListOption) ([]v1alpha1.Contract, error) {
	return contractsBy(ctx, cache, fieldPeer, string(peer), options)
}

// ContractsFor is ContractsWith for those that a request made.
func ContractsFor(ctx context.Context, cache client.Reader, request string, options ...client.ListOption) ([]v1alpha1.Contract, error) {
	return contractsBy(ctx, cache, fieldRequest, request, options)
}

// ContractsOn is ContractsWith for those that a virtual node stands for.
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

// RequestsOf returns the PeeringRequests that ask a ForeignCluster by its name, from a
// cache that has the indexes.
func RequestsOf(ctx context.Context, cache client.Reader, foreignCluster string) ([]v1alpha1.PeeringRequest, error) {
	var list v1alpha1.PeeringRequestList
	if err := cache.List(ctx, &list, client.MatchingFields{fieldForeignCluster: foreignCluster}); err != nil {
		return nil, fmt.Errorf("list peering requests: %w", err)
	}
	return list.Items, nil
}

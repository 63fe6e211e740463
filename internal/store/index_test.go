package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// fields is a cache that records what it has to index.
type fields struct {
	added []string
	err   error
}

func (f *fields) IndexField(_ context.Context, _ client.Object, field string, _ client.IndexerFunc) error {
	f.added = append(f.added, field)
	return f.err
}

func TestIndexedCacheFindsObjects(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	fc := func(name, id, bundle string) client.Object {
		return &v1alpha1.ForeignCluster{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: at},
			Spec:       v1alpha1.ForeignClusterSpec{ClusterID: id, TrustBundle: bundle},
		}
	}
	contract := func(name, peer, request, node string) client.Object {
		return &v1alpha1.Contract{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ContractSpec{PeerID: peer, RequestID: request},
			Status: v1alpha1.ContractStatus{Node: node},
		}
	}
	request := func(name, of string) client.Object {
		return &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PeeringRequestSpec{ForeignCluster: of}}
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		fc("milan", "a", ""), fc("milan-2", "a", "roots"), fc("rome", "b", ""), fc("named", "", ""),
		contract("c-1", "a", "r-1", "n-1"), contract("c-2", "b", "r-2", ""), contract("c-3", "a", "r-2", "n-2"),
		request("s-1", "milan"), request("s-2", "rome"), request("s-3", ""),
	)
	for _, i := range store.Indexes() {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	c := b.Build()
	for id, want := range map[peering.ClusterID]string{"a": "milan-2", "b": "rome", "c": "", "": ""} {
		got, err := store.Cached(t.Context(), c, id)
		if err != nil || (got == nil) != (want == "") || got != nil && got.Name != want {
			t.Errorf("cluster %q is %v, %v, want %q", id, got, err, want)
		}
	}
	for what, tc := range map[string]struct {
		find func(value string) ([]v1alpha1.Contract, error)
		want map[string][]string
	}{
		"peer": {func(peer string) ([]v1alpha1.Contract, error) {
			return store.ContractsWith(t.Context(), c, peering.ClusterID(peer))
		}, map[string][]string{"a": {"c-1", "c-3"}, "b": {"c-2"}, "c": nil, "": nil}},
		"request": {func(request string) ([]v1alpha1.Contract, error) {
			return store.ContractsFor(t.Context(), c, request)
		}, map[string][]string{"r-1": {"c-1"}, "r-2": {"c-2", "c-3"}, "r-3": nil, "": nil}},
		"node": {func(node string) ([]v1alpha1.Contract, error) {
			return store.ContractsOn(t.Context(), c, node, client.UnsafeDisableDeepCopy)
		}, map[string][]string{"n-1": {"c-1"}, "n-2": {"c-3"}, "n-3": nil, "": nil}},
	} {
		for value, want := range tc.want {
			got, err := tc.find(value)
			var names []string
			for i := range got {
				names = append(names, got[i].Name)
			}
			if slices.Sort(names); err != nil || !slices.Equal(names, want) {
				t.Errorf("contracts of the %s %q are %q, %v, want %q", what, value, names, err, want)
			}
		}
	}
	got, err := store.RequestsOf(t.Context(), c, "milan")
	if err != nil || len(got) != 1 || got[0].Name != "s-1" {
		t.Errorf("milan is asked by %v, %v", got, err)
	}
}

func TestAddIndexesAddsAllOrFails(t *testing.T) {
	t.Parallel()
	all := &fields{}
	if err := store.AddIndexes(t.Context(), all); err != nil || len(all.added) != len(store.Indexes()) {
		t.Errorf("%q are added, %v", all.added, err)
	}
	broken := errors.New("no")
	if err := store.AddIndexes(t.Context(), &fields{err: broken}); !errors.Is(err, broken) {
		t.Errorf("it fails with %v", err)
	}
}

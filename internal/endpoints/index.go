package endpoints

import (
	"hash/maphash"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/peering"
)

// Index finds the Services that may lead to a pod, by the UID that it has at its home. A consumer chooses UIDs, so
// only their hashes are kept: two with the same hash are found together. The zero value is empty; it is safe for
// concurrent use.
type Index struct {
	mu   sync.Mutex
	seed maphash.Seed
	// services are those that name a pod, pods the inverse. all are the Services of a namespace that may lead to
	// any of its pods: Services of a cluster set, whose pods' addresses here this index does not know.
	services map[uint64][]types.NamespacedName
	pods     map[types.NamespacedName][]uint64
	all      map[string][]types.NamespacedName
}

// Set records the pods of a Service.
func (x *Index) Set(service types.NamespacedName, in peering.ServiceObject) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.services == nil {
		x.seed, x.services = maphash.MakeSeed(), make(map[uint64][]types.NamespacedName)
		x.pods, x.all = make(map[types.NamespacedName][]uint64), make(map[string][]types.NamespacedName)
	}
	x.drop(service)
	if in.SetName != "" {
		x.all[service.Namespace] = append(x.all[service.Namespace], service)
	}
	var pods []uint64
	for _, e := range in.Endpoints {
		if e.PodUID != "" {
			pods = append(pods, x.key(service.Namespace, e.PodUID))
		}
	}
	slices.Sort(pods)
	pods = slices.Clip(slices.Compact(pods))
	for _, pod := range pods {
		x.services[pod] = append(x.services[pod], service)
	}
	if len(pods) > 0 {
		x.pods[service] = pods
	}
}

// Drop forgets a Service.
func (x *Index) Drop(service types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(service)
}

// Of returns the Services of a namespace that may lead to a pod.
func (x *Index) Of(namespace, podUID string) []types.NamespacedName {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.services == nil {
		return nil
	}
	out := slices.Clone(x.all[namespace])
	for _, s := range x.services[x.key(namespace, podUID)] {
		if s.Namespace == namespace && !slices.Contains(x.all[namespace], s) {
			out = append(out, s)
		}
	}
	return out
}

func (x *Index) key(namespace, uid string) uint64 {
	return maphash.Comparable(x.seed, [2]string{namespace, uid})
}

func (x *Index) drop(service types.NamespacedName) {
	for _, pod := range x.pods[service] {
		remove(x.services, pod, service)
	}
	delete(x.pods, service)
	remove(x.all, service.Namespace, service)
}

func remove[K comparable](from map[K][]types.NamespacedName, key K, service types.NamespacedName) {
	left := slices.DeleteFunc(from[key], func(s types.NamespacedName) bool { return s == service })
	if len(left) == 0 {
		delete(from, key)
	} else {
		from[key] = left
	}
}

// Package stock counts what each peer has in this cluster, by kind and in bytes, and limits it. A part of each limit is for
// namespaces that have little, so that none leaves the peer's others without room. Callers report what
// exists and what is about to be written; it reads nothing.
package stock

import (
	"fmt"
	"sync"

	"github.com/entente-dev/entente/peering"
)

// Stock counts what each peer has here, by kind and in bytes. The bytes and the Services of all peers have a common
// limit: a peer may have more only while it has less than is free, so that later peers find room.
type Stock struct {
	mu        sync.Mutex
	items     map[Key]entry
	seq       uint64
	peers     map[peering.ClusterID]*Tally
	contracts map[string]int
	// spaces is what peers have in each namespace, shares the bytes of contracts in each.
	spaces   map[space]*Tally
	shares   map[share]int
	bytes    int
	services int
}

// space is a namespace here with objects of a peer, and share one with objects of a contract.
type (
	space struct {
		peer      peering.ClusterID
		namespace string
	}
	share struct{ contract, namespace string }
)

// entry is an object that is counted, and its sequence number.
type entry struct {
	Item
	seq uint64
}

// Key identifies an object by its names here.
type Key struct {
	Kind            peering.Kind
	Namespace, Name string
}

// Item is the counted size of an object.
type Item struct {
	// Peer is the peer that has it, and Contract the contract for which its bytes count, if any.
	Peer     peering.ClusterID
	Contract string
	// Bytes is the size of the object and of what is made from it.
	Bytes int
	// These are of a Service: its ports, its endpoints and the ports of each, and how many EndpointSlices are made
	// from them.
	Ports, Endpoints, EndpointPorts, Slices int
	// Blocks is of a NetworkPolicy: how many ranges of addresses it names.
	Blocks int
}

// Tally is what a peer has.
type Tally struct {
	Namespaces, Configs, Services, Pods int
	Ports, Endpoints, Bytes, PodBytes   int
	EndpointPorts, Slices               int
	Policies, Blocks                    int
}

// New returns a Stock in which nothing is counted.
func New() *Stock {
	return &Stock{
		items: make(map[Key]entry), peers: make(map[peering.ClusterID]*Tally), contracts: make(map[string]int),
		spaces: make(map[space]*Tally), shares: make(map[share]int),
	}
}

// Admit counts an object that is about to be written, in place of its former size, unless that exceeds a limit.
// undo is to be called if it was not written after all.
func (s *Stock) Admit(k Key, i Item) (undo func(), refusal *peering.Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, was := s.items[k]
	before, contract := s.of(i.Peer), s.contracts[i.Contract]
	free, freeServices := MaxBytes-s.bytes, maxAllServices-s.services
	seq := s.put(k, i)
	now := s.of(i.Peer)
	restore := func() {
		if was {
			s.put(k, old.Item)
		} else {
			s.remove(k)
		}
	}
	here := Tally{}
	if t := s.spaces[space{i.Peer, k.Namespace}]; t != nil {
		here = *t
	}
	all := append(limits(before, now, here),
		limit{contract, s.contracts[i.Contract], s.shares[share{i.Contract, k.Namespace}], maxContractBytes, "bytes by one contract"},
		limit{before.Bytes, now.Bytes, 0, free, "bytes besides those of other consumers"},
		limit{before.Services, now.Services, 0, freeServices, "Services besides those of other consumers"})
	for _, l := range all {
		if refusal := l.refusal(); refusal != nil {
			restore()
			return nil, refusal
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.items[k].seq == seq {
			restore()
		}
	}, nil
}

// limit is how much of something a peer had and has now, how much of that is in the namespace of an object, and how much it
// may have.
type limit struct {
	before, now, here, most int
	what                    string
}

// limits returns those of what a peer has, by kind. The number of namespaces has none by namespace.
func limits(before, now, here Tally) []limit {
	return []limit{
		{before.Namespaces, now.Namespaces, 0, maxNamespaces, "namespaces"},
		{before.Configs, now.Configs, here.Configs, maxConfigs, "ConfigMaps and Secrets"},
		{before.Services, now.Services, here.Services, maxServices, "Services"},
		{before.Ports, now.Ports, here.Ports, maxPorts, "ports of Services"},
		{before.Endpoints, now.Endpoints, here.Endpoints, maxPeerEndpoints, "endpoints of Services"},
		{before.EndpointPorts, now.EndpointPorts, here.EndpointPorts, maxEndpointPorts, "ports of endpoints of Services"},
		{before.Slices, now.Slices, here.Slices, maxSlices, "EndpointSlices, of which each holds endpoints with the same ports"},
		{before.Policies, now.Policies, here.Policies, maxPolicies, "NetworkPolicies"},
		{before.Blocks, now.Blocks, here.Blocks, maxBlocks, "ranges of addresses in NetworkPolicies"},
		{before.Pods, now.Pods, here.Pods, maxPods, "pods, those that ended included"},
		{before.PodBytes, now.PodBytes, here.PodBytes, maxPeerPodBytes, "bytes of pods"},
		{before.Bytes, now.Bytes, here.Bytes, maxPeerBytes, "bytes"},
	}
}

// refusal returns why the limit is exceeded, or what is left of it is for other namespaces; nil if neither. What exists
// already may stay, whatever the limit, and shrink.
func (l limit) refusal() *peering.Refusal {
	refuse := func(format string, args ...any) *peering.Refusal {
		return &peering.Refusal{Reason: peering.RefusedQuota, Retryable: true, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case l.now <= l.before:
		return nil
	case l.now > l.most:
		return refuse("a consumer has at most %d %s in the provider's cluster; delete some, or offload fewer namespaces", l.most, l.what)
	case !LeavesRoom(l.before, l.now, l.here, l.most):
		return refuse("a consumer has at most %d %s in the provider's cluster, and what is left of that is for other namespaces; have fewer in this one", l.most, l.what)
	}
	return nil
}

// LeavesRoom reports whether a namespace leaves the others of its cluster room within a limit, if there were so many of
// something, are so many now, and so many of these are in the namespace: of the last part only namespaces take that
// have less than is free.
func LeavesRoom(before, now, here, most int) bool {
	return most-now >= most/reserved || here <= most-before
}

// Set counts an object in its observed size.
func (s *Stock) Set(k Key, i Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(k, i)
}

// Drop stops counting an object that is gone.
func (s *Stock) Drop(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(k)
}

// Sequence returns a point in time for ReplaceConfigs.
func (s *Stock) Sequence() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// ReplaceConfigs counts the ConfigMaps and Secrets of a namespace as they were listed after since. What was counted
// since then is newer than the list.
func (s *Stock) ReplaceConfigs(namespace string, since uint64, listed map[Key]Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, e := range s.items {
		if _, ok := listed[k]; !ok && e.seq <= since && k.Namespace == namespace && (k.Kind == peering.KindConfigMap || k.Kind == peering.KindSecret) {
			s.remove(k)
		}
	}
	for k, i := range listed {
		if s.items[k].seq <= since {
			s.put(k, i)
		}
	}
}

// DropSpace stops counting a namespace that is gone and what was in it.
func (s *Stock) DropSpace(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(Key{Kind: peering.KindNamespace, Name: namespace})
	for k := range s.items {
		if k.Namespace == namespace {
			s.remove(k)
		}
	}
}

// Of returns what a peer has.
func (s *Stock) Of(peer peering.ClusterID) Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of(peer)
}

// of returns what a peer has. The caller holds the lock.
func (s *Stock) of(peer peering.ClusterID) Tally {
	if t := s.peers[peer]; t != nil {
		return *t
	}
	return Tally{}
}

// put counts an object in place of its former size. The caller holds the lock.
func (s *Stock) put(k Key, i Item) uint64 {
	s.remove(k)
	s.seq++
	s.items[k] = entry{Item: i, seq: s.seq}
	s.count(k, i, 1)
	return s.seq
}

// remove stops counting an object. The caller holds the lock.
func (s *Stock) remove(k Key) {
	if e, ok := s.items[k]; ok {
		delete(s.items, k)
		s.count(k, e.Item, -1)
	}
}

func (s *Stock) count(k Key, i Item, sign int) {
	tally(s.peers, i.Peer, k.Kind, i, sign)
	tally(s.spaces, space{i.Peer, k.Namespace}, k.Kind, i, sign)
	if k.Kind == peering.KindService {
		s.services += sign
	}
	s.bytes += sign * i.Bytes
	if s.contracts[i.Contract] += sign * i.Bytes; s.contracts[i.Contract] == 0 {
		delete(s.contracts, i.Contract)
	}
	of := share{i.Contract, k.Namespace}
	if s.shares[of] += sign * i.Bytes; s.shares[of] == 0 {
		delete(s.shares, of)
	}
}

// tally counts an object to one of several tallies.
func tally[K comparable](all map[K]*Tally, of K, kind peering.Kind, i Item, sign int) {
	t := all[of]
	if t == nil {
		t = &Tally{}
		all[of] = t
	}
	switch kind {
	case peering.KindNamespace:
		t.Namespaces += sign
	case peering.KindConfigMap, peering.KindSecret:
		t.Configs += sign
	case peering.KindService:
		t.Services += sign
	case peering.KindNetworkPolicy:
		t.Policies += sign
	case peering.KindClaim: // counted with all objects
	case peering.KindPod:
		t.Pods += sign
		t.PodBytes += sign * i.Bytes
	}
	t.Ports += sign * i.Ports
	t.Endpoints += sign * i.Endpoints
	t.EndpointPorts += sign * i.EndpointPorts
	t.Slices += sign * i.Slices
	t.Blocks += sign * i.Blocks
	t.Bytes += sign * i.Bytes
	if *t == (Tally{}) {
		delete(all, of)
	}
}

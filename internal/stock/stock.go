// Package stock counts what each peer has in this cluster, by kind and in bytes, and limits it. Callers report what
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
	bytes     int
	services  int
}

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
	return &Stock{items: make(map[Key]entry), peers: make(map[peering.ClusterID]*Tally), contracts: make(map[string]int)}
}

// Admit counts an object that is about to be written, in place of its former size, unless that exceeds a limit.
// undo is to be called if it was not written after all.
func (s *Stock) Admit(k Key, i Item) (undo func(), refusal *peering.Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, was := s.items[k]
	before := s.of(old.Peer)
	free, freeServices := MaxBytes-s.bytes, maxAllServices-s.services
	seq := s.put(k, i)
	now := s.of(i.Peer)
	if was && old.Peer != i.Peer {
		before = Tally{}
	}
	restore := func() {
		if was {
			s.put(k, old.Item)
		} else {
			s.remove(k)
		}
	}
	grown := i.Bytes - old.Bytes
	for _, limit := range []struct {
		before, now, most int
		what              string
	}{
		{before.Namespaces, now.Namespaces, maxNamespaces, "namespaces"},
		{before.Configs, now.Configs, maxConfigs, "ConfigMaps and Secrets"},
		{before.Services, now.Services, maxServices, "Services"},
		{before.Ports, now.Ports, maxPorts, "ports of Services"},
		{before.Endpoints, now.Endpoints, maxPeerEndpoints, "endpoints of Services"},
		{before.EndpointPorts, now.EndpointPorts, maxEndpointPorts, "ports of endpoints of Services"},
		{before.Slices, now.Slices, maxSlices, "EndpointSlices, of which each holds endpoints with the same ports"},
		{before.Policies, now.Policies, maxPolicies, "NetworkPolicies"},
		{before.Blocks, now.Blocks, maxBlocks, "ranges of addresses in NetworkPolicies"},
		{before.Pods, now.Pods, maxPods, "pods, those that ended included"},
		{before.PodBytes, now.PodBytes, maxPeerPodBytes, "bytes of pods"},
		{before.Bytes, now.Bytes, maxPeerBytes, "bytes"},
		{s.contracts[i.Contract] - grown, s.contracts[i.Contract], maxContractBytes, "bytes by one contract"},
		{before.Bytes, now.Bytes, max(free, before.Bytes), "bytes besides those of other consumers"},
		{before.Services, now.Services, max(freeServices, before.Services), "Services besides those of other consumers"},
	} {
		// What exists already may stay, whatever the limit, and shrink.
		if limit.now > limit.most && limit.now > limit.before {
			restore()
			return nil, &peering.Refusal{Reason: peering.RefusedQuota, Retryable: true, Message: fmt.Sprintf(
				"a consumer has at most %d %s in the provider's cluster; delete some, or offload fewer namespaces", limit.most, limit.what)}
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
	s.count(k.Kind, i, 1)
	return s.seq
}

// remove stops counting an object. The caller holds the lock.
func (s *Stock) remove(k Key) {
	if e, ok := s.items[k]; ok {
		delete(s.items, k)
		s.count(k.Kind, e.Item, -1)
	}
}

func (s *Stock) count(kind peering.Kind, i Item, sign int) {
	t := s.peers[i.Peer]
	if t == nil {
		t = &Tally{}
		s.peers[i.Peer] = t
	}
	switch kind {
	case peering.KindNamespace:
		t.Namespaces += sign
	case peering.KindConfigMap, peering.KindSecret:
		t.Configs += sign
	case peering.KindService:
		t.Services += sign
		s.services += sign
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
	s.bytes += sign * i.Bytes
	if s.contracts[i.Contract] += sign * i.Bytes; s.contracts[i.Contract] == 0 {
		delete(s.contracts, i.Contract)
	}
	if *t == (Tally{}) {
		delete(s.peers, i.Peer)
	}
}

package offload

import (
	"strconv"
	"sync"

	"github.com/entente-dev/entente/peering"
)

// stock counts what is here of each peer, by kind and in bytes. The bytes and the
// Services of all peers have a limit together: a peer may have more only while it
// has less than is free, so that those who come later find room.
type stock struct {
	mu        sync.Mutex
	items     map[stockKey]stockEntry
	seq       uint64
	peers     map[peering.ClusterID]*tally
	contracts map[string]int
	bytes     int
	services  int
}

// stockEntry is an object that is counted, and when it was, in the order of entries.
type stockEntry struct {
	stockItem
	seq uint64
}

// stockKey names an object by its names here.
type stockKey struct {
	kind            peering.Kind
	namespace, name string
}

// stockItem is what an object counts.
type stockItem struct {
	peer     peering.ClusterID
	contract string
	// bytes is what the object and what is made of it take.
	bytes int
	// These are of a Service: its ports, its endpoints and the ports of each, and how
	// many EndpointSlices are made of them.
	ports, endpoints, endpointPorts, slices int
}

// tally is what a peer has.
type tally struct {
	namespaces, configs, services, pods int
	ports, endpoints, bytes, podBytes   int
	endpointPorts, slices               int
}

func newStock() *stock {
	return &stock{items: make(map[stockKey]stockEntry), peers: make(map[peering.ClusterID]*tally), contracts: make(map[string]int)}
}

// admit counts an object that is about to be written, in place of what it was
// before, unless that is more than there may be. undo is for when it was not
// written after all.
func (s *stock) admit(k stockKey, i stockItem) (undo func(), refusal *peering.Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, was := s.items[k]
	before := s.of(old.peer)
	free, freeServices := maxAllBytes-s.bytes, maxAllServices-s.services
	seq := s.put(k, i)
	now := s.of(i.peer)
	if was && old.peer != i.peer {
		before = tally{}
	}
	restore := func() {
		if was {
			s.put(k, old.stockItem)
		} else {
			s.remove(k)
		}
	}
	grown := i.bytes - old.bytes
	for _, limit := range []struct {
		before, now, most int
		what              string
	}{
		{before.namespaces, now.namespaces, maxNamespaces, "namespaces"},
		{before.configs, now.configs, maxConfigs, "ConfigMaps and Secrets"},
		{before.services, now.services, maxServices, "Services"},
		{before.ports, now.ports, maxPorts, "ports of Services"},
		{before.endpoints, now.endpoints, maxPeerEndpoints, "endpoints of Services"},
		{before.endpointPorts, now.endpointPorts, maxEndpointPorts, "ports of endpoints of Services"},
		{before.slices, now.slices, maxSlices, "EndpointSlices, of which each holds endpoints with the same ports"},
		{before.pods, now.pods, maxPods, "pods, those that ended included"},
		{before.podBytes, now.podBytes, maxPeerPodBytes, "bytes of pods"},
		{before.bytes, now.bytes, maxPeerBytes, "bytes"},
		{s.contracts[i.contract] - grown, s.contracts[i.contract], maxContractBytes, "bytes by one contract"},
		{before.bytes, now.bytes, max(free, before.bytes), "bytes beside what other consumers have"},
		{before.services, now.services, max(freeServices, before.services), "Services beside those of other consumers"},
	} {
		// What is there already may stay, whatever the limit, and shrink.
		if limit.now > limit.most && limit.now > limit.before {
			restore()
			return nil, refuse(peering.RefusedQuota, true,
				"a consumer has at most %d %s in the provider's cluster; delete some, or offload fewer namespaces", limit.most, limit.what)
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

// set counts an object as it was seen.
func (s *stock) set(k stockKey, i stockItem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(k, i)
}

// drop no longer counts an object that is gone.
func (s *stock) drop(k stockKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(k)
}

// mark returns a point in time for replaceConfigs.
func (s *stock) mark() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// replaceConfigs counts the ConfigMaps and Secrets of a namespace as they were
// listed after since. What was counted since then is newer than the list.
func (s *stock) replaceConfigs(namespace string, since uint64, listed map[stockKey]stockItem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, e := range s.items {
		if _, ok := listed[k]; !ok && e.seq <= since && k.namespace == namespace && (k.kind == peering.KindConfigMap || k.kind == peering.KindSecret) {
			s.remove(k)
		}
	}
	for k, i := range listed {
		if s.items[k].seq <= since {
			s.put(k, i)
		}
	}
}

// dropSpace no longer counts a namespace that is gone and what was in it.
func (s *stock) dropSpace(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(stockKey{kind: peering.KindNamespace, name: namespace})
	for k := range s.items {
		if k.namespace == namespace {
			s.remove(k)
		}
	}
}

// of returns what a peer has. The lock is held.
func (s *stock) of(peer peering.ClusterID) tally {
	if t := s.peers[peer]; t != nil {
		return *t
	}
	return tally{}
}

// put counts an object in place of what it was. The lock is held.
func (s *stock) put(k stockKey, i stockItem) uint64 {
	s.remove(k)
	s.seq++
	s.items[k] = stockEntry{stockItem: i, seq: s.seq}
	s.count(k.kind, i, 1)
	return s.seq
}

// remove no longer counts an object. The lock is held.
func (s *stock) remove(k stockKey) {
	if e, ok := s.items[k]; ok {
		delete(s.items, k)
		s.count(k.kind, e.stockItem, -1)
	}
}

func (s *stock) count(kind peering.Kind, i stockItem, sign int) {
	t := s.peers[i.peer]
	if t == nil {
		t = &tally{}
		s.peers[i.peer] = t
	}
	switch kind {
	case peering.KindNamespace:
		t.namespaces += sign
	case peering.KindConfigMap, peering.KindSecret:
		t.configs += sign
	case peering.KindService:
		t.services += sign
		s.services += sign
	case peering.KindPod:
		t.pods += sign
		t.podBytes += sign * i.bytes
	}
	t.ports += sign * i.ports
	t.endpoints += sign * i.endpoints
	t.endpointPorts += sign * i.endpointPorts
	t.slices += sign * i.slices
	t.bytes += sign * i.bytes
	s.bytes += sign * i.bytes
	if s.contracts[i.contract] += sign * i.bytes; s.contracts[i.contract] == 0 {
		delete(s.contracts, i.contract)
	}
	if *t == (tally{}) {
		delete(s.peers, i.peer)
	}
}

// noteBytes is the annotation that says how many bytes an object counts, so that
// it can be counted without being read.
const noteBytes = "entente.dev/bytes"

// notedBytes reads noteBytes; what is not noted counts nothing.
func notedBytes(annotations map[string]string) int {
	n, err := strconv.Atoi(annotations[noteBytes])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

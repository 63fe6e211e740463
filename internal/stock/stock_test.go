package stock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/entente-dev/entente/peering"
)

const (
	peerA = peering.ClusterID("aaaaaaaabbbbbbbbccccccccdddddddd")
	peerB = peering.ClusterID("zzzzzzzzbbbbbbbbccccccccdddddddd")
)

func testPeer(i int) peering.ClusterID { return peering.ClusterID(fmt.Sprint("peer-", i)) }

func TestStockLimitsEachKind(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind peering.Kind
		item Item
		most int
		what string
	}{
		"namespaces":          {peering.KindNamespace, Item{}, maxNamespaces, "namespaces"},
		"config maps":         {peering.KindConfigMap, Item{}, maxConfigs, "ConfigMaps and Secrets"},
		"secrets":             {peering.KindSecret, Item{}, maxConfigs, "ConfigMaps and Secrets"},
		"services":            {peering.KindService, Item{}, maxServices, "Services"},
		"ports":               {peering.KindService, Item{Ports: 100}, maxPorts / 100, "ports"},
		"endpoints":           {peering.KindService, Item{Endpoints: 5000}, maxPeerEndpoints / 5000, "endpoints"},
		"ports of endpoints":  {peering.KindService, Item{EndpointPorts: 1000}, maxEndpointPorts / 1000, "ports of endpoints"},
		"slices":              {peering.KindService, Item{Slices: 50}, maxSlices / 50, "EndpointSlices"},
		"pods":                {peering.KindPod, Item{}, maxPods, "pods"},
		"policies":            {peering.KindNetworkPolicy, Item{}, maxPolicies, "NetworkPolicies"},
		"blocks of policies":  {peering.KindNetworkPolicy, Item{Blocks: 1000}, maxBlocks / 1000, "ranges of addresses"},
		"bytes of pods":       {peering.KindPod, Item{Bytes: 1 << 20}, maxPeerPodBytes >> 20, "bytes of pods"},
		"bytes of a contract": {peering.KindSecret, Item{Bytes: 1 << 20}, maxContractBytes >> 20, "by one contract"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := New()
			tc.item.Peer, tc.item.Contract = peerA, "c-1"
			key := func(n int) Key { return Key{tc.kind, fmt.Sprint("ns-", n), fmt.Sprint("o-", n)} }
			for n := range tc.most {
				if _, refusal := s.Admit(key(n), tc.item); refusal != nil {
					t.Fatalf("number %d of %d: %v", n+1, tc.most, refusal)
				}
			}
			_, refusal := s.Admit(key(tc.most), tc.item)
			if refusal == nil || refusal.Reason != peering.RefusedQuota || !refusal.Retryable || !strings.Contains(refusal.Message, tc.what) {
				t.Fatalf("one more: %v", refusal)
			}
			if _, refusal := s.Admit(key(0), tc.item); refusal != nil {
				t.Errorf("what is there already was refused: %v", refusal)
			}
			other := tc.item
			other.Peer, other.Contract = peerB, "c-2"
			if _, refusal := s.Admit(Key{tc.kind, "other", "o"}, other); refusal != nil {
				t.Errorf("another peer was refused: %v", refusal)
			}
			// It falls when something goes, however it goes.
			s.Drop(key(1))
			undo, refusal := s.Admit(key(tc.most), tc.item)
			if refusal != nil {
				t.Fatalf("after one went: %v", refusal)
			}
			undo()
			if _, refusal := s.Admit(key(tc.most+1), tc.item); refusal != nil {
				t.Errorf("after one was not written after all: %v", refusal)
			}
			for n := range tc.most + 2 {
				s.Drop(key(n))
			}
			s.Drop(Key{tc.kind, "other", "o"})
			if len(s.items) > 0 || len(s.peers) > 0 || len(s.contracts) > 0 || len(s.spaces) > 0 || len(s.shares) > 0 || s.bytes != 0 {
				t.Errorf("all went, and %d objects of %d peers with %d bytes are counted", len(s.items), len(s.peers), s.bytes)
			}
		})
	}
}

// A tenant of the consumer, with one namespace, leaves room for the other namespaces.
func TestANamespaceLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind peering.Kind
		item Item
		most int
	}{
		"config maps":         {peering.KindConfigMap, Item{}, maxConfigs},
		"services":            {peering.KindService, Item{}, maxServices},
		"ports":               {peering.KindService, Item{Ports: 10}, maxPorts / 10},
		"endpoints":           {peering.KindService, Item{Endpoints: 100}, maxPeerEndpoints / 100},
		"pods":                {peering.KindPod, Item{}, maxPods},
		"policies":            {peering.KindNetworkPolicy, Item{}, maxPolicies},
		"blocks of policies":  {peering.KindNetworkPolicy, Item{Blocks: 100}, maxBlocks / 100},
		"bytes of pods":       {peering.KindPod, Item{Bytes: 64 << 10}, maxPeerPodBytes / (64 << 10)},
		"bytes of a contract": {peering.KindSecret, Item{Bytes: 64 << 10}, maxContractBytes / (64 << 10)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := New()
			tc.item.Peer, tc.item.Contract = peerA, "c-1"
			fill := func(namespace string, most int) (n int) {
				for ; n < most; n++ {
					if _, refusal := s.Admit(Key{tc.kind, namespace, fmt.Sprint("o-", n)}, tc.item); refusal != nil {
						if !refusal.Retryable || !strings.Contains(refusal.Message, "for other namespaces") {
							t.Errorf("after %d of namespace %s: %v", n, namespace, refusal)
						}
						return n
					}
				}
				return n
			}
			first := fill("hostile", tc.most+1)
			if first > tc.most-tc.most/8 || first < tc.most/2 {
				t.Errorf("one namespace has %d of %d", first, tc.most)
			}
			if tc.most == maxServices && first < 1000 {
				t.Errorf("one namespace has %d Services, want 1,000", first)
			}
			for n := range 3 {
				if got, want := fill(fmt.Sprint("ns-", n), tc.most/32), tc.most/32; got != want {
					t.Errorf("namespace %d has room for %d of %d, want %d", n+2, got, tc.most, want)
				}
			}
			// What it has may stay, change and shrink.
			if _, refusal := s.Admit(Key{tc.kind, "hostile", "o-0"}, tc.item); refusal != nil {
				t.Errorf("what is there already was refused: %v", refusal)
			}
		})
	}
}

// What peers have in all is bounded, and those that take all they can leave room.
func TestStockLeavesRoomForANewcomer(t *testing.T) {
	t.Parallel()
	s := New()
	fill := func(peer peering.ClusterID) (bytes int) {
		for n := 0; ; n++ {
			item := Item{Peer: peer, Contract: fmt.Sprint(peer, n%8), Bytes: 1 << 20}
			if _, refusal := s.Admit(Key{peering.KindConfigMap, fmt.Sprint(peer, n), "o"}, item); refusal != nil {
				return bytes
			}
			bytes += item.Bytes
		}
	}
	all := 0
	for n := range 4 {
		got := fill(testPeer(n))
		all += got
		if got > maxPeerBytes || got < MaxBytes/8 && n < 3 || got < 16<<20 {
			t.Errorf("peer %d has %d bytes", n, got)
		}
	}
	if all > MaxBytes {
		t.Errorf("all have %d bytes; the limit is %d", all, MaxBytes)
	}
}

// Services take addresses, of which a cluster has a number.
func TestServicesLeaveRoomForANewcomer(t *testing.T) {
	t.Parallel()
	s := New()
	all := 0
	for n := range 5 {
		got := 0
		for {
			item := Item{Peer: testPeer(n), Contract: fmt.Sprint("c-", n)}
			if _, refusal := s.Admit(Key{peering.KindService, fmt.Sprint("ns-", n, "-", got), "s"}, item); refusal != nil {
				break
			}
			got++
		}
		if got > maxServices || got < maxServices/8 {
			t.Errorf("peer %d has %d Services", n, got)
		}
		all += got
	}
	if all > maxAllServices {
		t.Errorf("all have %d Services; the limit is %d", all, maxAllServices)
	}
}

// What was counted after a list was begun is newer than the list.
func TestStockKeepsWhatIsNewerThanAList(t *testing.T) {
	t.Parallel()
	s := New()
	key := func(name string) Key { return Key{peering.KindConfigMap, "ns", name} }
	item := Item{Peer: peerA, Bytes: 10}
	s.Set(key("gone"), item)
	s.Set(key("stays"), item)
	since := s.Sequence()
	s.Set(key("new"), item)
	s.Set(key("grew"), Item{Peer: peerA, Bytes: 30})
	s.ReplaceConfigs("ns", since, map[Key]Item{key("stays"): item, key("grew"): item})
	if got := s.Of(peerA); got.Configs != 3 || got.Bytes != 50 {
		t.Errorf("counted %+v, want 3 with 50 bytes", got)
	}
	s.DropSpace("ns")
	if len(s.items) > 0 {
		t.Errorf("%d objects of a namespace that is gone are counted", len(s.items))
	}
}

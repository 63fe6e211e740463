package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

func fullState() peering.PeerState {
	return peering.PeerState{
		Sequence: 7, SendTime: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Protocol: 1,
		Capabilities: []string{"exec", "usage.v2"},
		Endpoints:    []string{"peer.example:7443", "[2001:db8::1]:30743"},
		Network: &peering.Network{
			Gateways: []peering.Gateway{{
				Name: "node-1", PublicKey: [32]byte{1, 2, 3}, Endpoints: []string{"192.0.2.1:51820"},
				Overlay: netip.MustParseAddr("fd00:1::2"), Pods: []netip.Prefix{netip.MustParsePrefix("10.200.1.0/24")},
				Observed: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:41641")},
				Sources:  []netip.Addr{netip.MustParseAddr("10.200.1.1"), netip.MustParseAddr("fd12::1")},
			}},
			Nodes: []peering.Gateway{{
				Name: "node-2", PublicKey: [32]byte{4}, Overlay: netip.MustParseAddr("fd00:1::3"), Pods: []netip.Prefix{netip.MustParsePrefix("10.200.2.0/24"), netip.MustParsePrefix("fd12::/72")},
			}},
			Prefixes:  []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("fd12::/64")},
			Aliases:   []peering.Alias{{Prefix: netip.MustParsePrefix("10.200.0.0/16"), Alias: netip.MustParsePrefix("10.241.0.0/16")}},
			Addresses: []netip.Addr{netip.MustParseAddr("10.200.3.7"), netip.MustParseAddr("192.168.5.1"), netip.MustParseAddr("fd12::7")},
			Blocks: []peering.AliasBlock{
				{Alias: netip.MustParsePrefix("198.18.0.4/30"), Addresses: []netip.Addr{{}, netip.MustParseAddr("10.200.9.9"), {}, netip.MustParseAddr("10.200.0.1")}},
				{Alias: netip.MustParsePrefix("fdd7:585b:e300::/128"), Addresses: []netip.Addr{netip.MustParseAddr("fd12::9")}},
			},
			Transit: []peering.TransitAddresses{{Cluster: peering.ClusterID(strings.Repeat("c", 32)), Addresses: []netip.Addr{netip.MustParseAddr("198.18.7.1"), netip.MustParseAddr("fdd7::1")}, Namespaces: []peering.TransitNamespace{
				{Name: "shop", Pods: []peering.TransitPod{{Address: netip.MustParseAddr("198.18.7.1"), There: netip.MustParseAddr("10.200.0.9")}, {Address: netip.MustParseAddr("fdd7::1"), There: netip.MustParseAddr("fd12::9")}}},
			}}},
			Direct:  []peering.ClusterID{peering.ClusterID(strings.Repeat("d", 32))},
			Opened:  []peering.TransitAddresses{{Cluster: peering.ClusterID(strings.Repeat("e", 32)), Addresses: []netip.Addr{netip.MustParseAddr("10.200.0.8"), netip.MustParseAddr("fd12::8")}}},
			Running: []peering.TransitAddresses{{Cluster: peering.ClusterID(strings.Repeat("e", 32)), Addresses: []netip.Addr{netip.MustParseAddr("10.200.0.7"), netip.MustParseAddr("10.200.0.8")}}},
			Through: []peering.ClusterID{peering.ClusterID(strings.Repeat("d", 32))}, PresharedKeyShare: peering.PresharedKeyShare{9},
			Rotation:        &peering.KeyRotation{Number: 7, NextKeyShare: peering.PresharedKeyShare{8}, NewestInstalled: 8, OldestInUse: 6},
			Observations:    []peering.Observation{{PublicKey: [32]byte{4, 5}, Endpoint: netip.MustParseAddrPort("[2001:db8::5]:51820")}},
			ReceiverAddress: netip.MustParseAddr("198.51.100.3"),
		},
		Offering:         peering.OfferingSomething,
		Contracts:        []peering.ContractState{{ID: "abc-1", Revision: 3, Phase: peering.PhaseDraining, Message: "ended by its owner"}},
		EchoSequence:     6,
		HeartbeatTimeout: 3 * time.Minute,
	}
}

// ascending is so many IPv4 addresses.
func ascending(n int) (out []byte) {
	a := netip.MustParseAddr("10.0.0.1")
	for range n {
		out, a = append(out, a.AsSlice()...), a.Next()
	}
	return out
}

func TestAStateCrossesUnchanged(t *testing.T) {
	want := fullState()
	got, err := StateFrom(StateTo(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestStatesThatAreRefused(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for name, tc := range map[string]struct {
		change func(*ententev1.PeerState)
		field  string
	}{
		"an endpoint without a port": {func(s *ententev1.PeerState) { s.Endpoints = []string{"host"} }, "state.endpoints"},
		"more endpoints than a cluster may have": {func(s *ententev1.PeerState) {
			s.Endpoints = strings.Split(strings.TrimSuffix(strings.Repeat("a:1,", 9), ","), ",")
		}, "state.endpoints"},
		"a capability that would draw on a terminal": {func(s *ententev1.PeerState) { s.Capabilities = []string{"a\x1b[2J"} }, "state.capabilities[0]"},
		"a capability that is too long":              {func(s *ententev1.PeerState) { s.Capabilities = []string{long} }, "state.capabilities[0]"},
		"a prefix with bits beyond its length":       {func(s *ententev1.PeerState) { s.Network.Prefixes = []string{"10.0.0.1/8"} }, "state.network.prefixes[0]"},
		"a prefix that is IPv4 dressed as IPv6":      {func(s *ententev1.PeerState) { s.Network.Prefixes = []string{"::ffff:10.0.0.0/104"} }, "state.network.prefixes[0]"},
		"an alias of another length":                 {func(s *ententev1.PeerState) { s.Network.Aliases[0].Alias = "10.0.0.0/8" }, "state.network.aliases[0].alias"},
		"an alias of another family":                 {func(s *ententev1.PeerState) { s.Network.Aliases[0].Alias = "fd00::/16" }, "state.network.aliases[0].alias"},
		"a public key of 31 bytes":                   {func(s *ententev1.PeerState) { s.Network.Gateways[0].PublicKey = make([]byte, 31) }, "state.network.gateways[0].public_key"},
		"an overlay address that everybody can reach": {func(s *ententev1.PeerState) {
			s.Network.Gateways[0].OverlayAddress = netip.MustParseAddr("2001:db8::1").AsSlice()
		}, "state.network.gateways[0].overlay_address"},
		"a malformed address to probe": {func(s *ententev1.PeerState) { s.Network.Gateways[0].ProbeAddresses = [][]byte{{10, 0, 0, 1, 1}} }, "state.network.gateways[0].probe_addresses[0]"},
		"two addresses to probe of one family": {func(s *ententev1.PeerState) {
			s.Network.Gateways[0].ProbeAddresses = [][]byte{{10, 0, 0, 1}, {10, 0, 0, 2}}
		}, "state.network.gateways[0].probe_addresses"},
		"three addresses to probe": {func(s *ententev1.PeerState) {
			s.Network.Nodes[0].ProbeAddresses = [][]byte{{10, 0, 0, 1}, {10, 0, 0, 2}, {10, 0, 0, 3}}
		}, "state.network.nodes[0].probe_addresses"},
		"an overlay address that is IPv4": {func(s *ententev1.PeerState) { s.Network.Gateways[0].OverlayAddress = []byte{10, 0, 0, 1} }, "state.network.gateways[0].overlay_address"},
		"more nodes than a peer may have": {func(s *ententev1.PeerState) {
			for len(s.Network.Nodes) <= peering.MaxNodes {
				s.Network.Nodes = append(s.Network.Nodes, s.Network.Nodes[0])
			}
		}, "state.network.nodes"},
		"more prefixes of pods than a node may have": {func(s *ententev1.PeerState) {
			s.Network.Nodes[0].PodPrefixes = slices.Repeat([]string{"10.200.2.0/24"}, peering.MaxNodePods+1)
		}, "state.network.nodes[0].pod_prefixes"},
		"pods in a prefix with bits beyond its length": {func(s *ententev1.PeerState) { s.Network.Gateways[0].PodPrefixes[0] = "10.200.1.1/24" }, "state.network.gateways[0].pod_prefixes[0]"},
		"half of a preshared key share":                {func(s *ententev1.PeerState) { s.Network.PresharedKeyShare = make([]byte, 16) }, "state.network.preshared_key_share"},
		"a preshared key share of zeros":               {func(s *ententev1.PeerState) { s.Network.PresharedKeyShare = make([]byte, 32) }, "state.network.preshared_key_share"},
		"a contract ID with a slash":                   {func(s *ententev1.PeerState) { s.Contracts[0].ContractId = "../x" }, "state.contracts[0].contract_id"},
		"two words on one contract":                    {func(s *ententev1.PeerState) { s.Contracts = append(s.Contracts, s.Contracts[0]) }, "state.contracts[1].contract_id"},
		"a time that no calendar has":                  {func(s *ententev1.PeerState) { s.SendTime = &timestamppb.Timestamp{Seconds: 1 << 60} }, "state.send_time"},
		"half of a next key": {func(s *ententev1.PeerState) {
			s.Network.Gateways[0].NextPublicKey = make([]byte, 16)
		}, "state.network.gateways[0].next_public_key"},
		"a short next half": {func(s *ententev1.PeerState) {
			s.Network.Rotation = &ententev1.KeyRotation{NextKeyShare: make([]byte, 31)}
		}, "state.network.rotation.next_key_share"},
		"a key without a next one": {func(s *ententev1.PeerState) {
			s.Network.Rotation = &ententev1.KeyRotation{Number: 1 << 53}
		}, "state.network.rotation"},
		"half an address":               {func(s *ententev1.PeerState) { s.Network.Ipv4Addresses = make([]byte, 6) }, "state.network.ipv4_addresses"},
		"addresses that descend":        {func(s *ententev1.PeerState) { s.Network.Ipv4Addresses = []byte{10, 0, 0, 2, 10, 0, 0, 1} }, "state.network.ipv4_addresses"},
		"a third cluster without an ID": {func(s *ententev1.PeerState) { s.Network.Transit[0].ClusterId = "" }, "state.network.transit[0].cluster_id"},
		"a third cluster twice": {func(s *ententev1.PeerState) {
			s.Network.Transit = append(s.Network.Transit, &ententev1.TransitAddresses{ClusterId: strings.Repeat("c", 32)})
		}, "state.network.transit[1].cluster_id"},
		"an address of two clusters": {func(s *ententev1.PeerState) { s.Network.Transit[0].Ipv4Addresses = []byte{10, 200, 3, 7} }, "state.network.transit[0].addresses"},
		"half an address of a third": {func(s *ententev1.PeerState) { s.Network.Transit[0].Ipv6Addresses = make([]byte, 9) }, "state.network.transit[0].ipv6_addresses"},
		"too many of third clusters": {func(s *ententev1.PeerState) {
			s.Network.Transit[0].Ipv4Addresses, s.Network.Transit[0].Ipv6Addresses = ascending(4096), nil
		}, "state.network.transit"},
		"many third clusters":              {func(s *ententev1.PeerState) { s.Network.Transit = make([]*ententev1.TransitAddresses, 17) }, "state.network.transit"},
		"a namespace without a name":       {func(s *ententev1.PeerState) { s.Network.Transit[0].Namespaces[0].Name = "" }, "state.network.transit[0].namespaces[0].name"},
		"a namespace whose name is a path": {func(s *ententev1.PeerState) { s.Network.Transit[0].Namespaces[0].Name = "../x" }, "state.network.transit[0].namespaces[0].name"},
		"a namespace twice": {func(s *ententev1.PeerState) {
			n := s.Network.Transit[0].Namespaces
			s.Network.Transit[0].Namespaces = append(n, n[0])
		}, "state.network.transit[0].namespaces"},
		"an address of two namespaces": {func(s *ententev1.PeerState) {
			n := proto.CloneOf(s.Network.Transit[0].Namespaces[0])
			n.Name = "bank"
			s.Network.Transit[0].Namespaces = append(s.Network.Transit[0].Namespaces, n)
		}, "state.network.transit[0].namespaces"},
		"a pod that is not of the cluster": {func(s *ententev1.PeerState) { s.Network.Transit[0].Namespaces[0].Ipv4Addresses = []byte{198, 18, 7, 2} }, "state.network.transit[0].namespaces"},
		"a pod without its own address":    {func(s *ententev1.PeerState) { s.Network.Transit[0].Namespaces[0].Ipv4PodAddresses = nil }, "state.network.transit[0].namespaces[0].ipv4_pod_addresses"},
		"a pod at no address":              {func(s *ententev1.PeerState) { s.Network.Transit[0].Namespaces[0].Ipv6PodAddresses = make([]byte, 16) }, "state.network.transit[0].namespaces[0].ipv6_pod_addresses"},
		"many namespaces": {func(s *ententev1.PeerState) {
			s.Network.Transit[0].Namespaces = make([]*ententev1.TransitNamespace, peering.MaxDirectNamespaces+1)
		}, "state.network.transit[0].namespaces"},
		"many pods to reach directly": {func(s *ententev1.PeerState) {
			t := s.Network.Transit[0]
			t.Ipv4Addresses, t.Ipv6Addresses = ascending(peering.MaxDirect+1), nil
			t.Namespaces = []*ententev1.TransitNamespace{{Name: "shop", Ipv4Addresses: t.Ipv4Addresses, Ipv4PodAddresses: t.Ipv4Addresses}}
		}, "state.network.transit"},
		"direct to a malformed cluster ID": {func(s *ententev1.PeerState) { s.Network.Direct = []string{"x"} }, "state.network.direct[0]"},
		"direct to too many":               {func(s *ententev1.PeerState) { s.Network.Direct = make([]string, 17) }, "state.network.direct"},
		"opened for a cluster twice":       {func(s *ententev1.PeerState) { s.Network.Opened = append(s.Network.Opened, s.Network.Opened[0]) }, "state.network.opened[1].cluster_id"},
		"opened for too many":              {func(s *ententev1.PeerState) { s.Network.Opened = make([]*ententev1.TransitAddresses, 17) }, "state.network.opened"},
		"opened with namespaces":           {func(s *ententev1.PeerState) { s.Network.Opened[0].Namespaces = s.Network.Transit[0].Namespaces }, "state.network.opened[0].namespaces"},
		"opened too much": {func(s *ententev1.PeerState) {
			s.Network.Opened[0].Ipv4Addresses, s.Network.Opened[0].Ipv6Addresses = ascending(peering.MaxDirect+1), nil
		}, "state.network.opened"},
		"an address opened for two clusters": {func(s *ententev1.PeerState) {
			s.Network.Opened = append(s.Network.Opened, &ententev1.TransitAddresses{ClusterId: strings.Repeat("f", 32), Ipv4Addresses: []byte{10, 200, 0, 8}})
		}, "state.network.opened[1].addresses"},
		"running for a cluster twice":        {func(s *ententev1.PeerState) { s.Network.Running = append(s.Network.Running, s.Network.Running[0]) }, "state.network.running[1].cluster_id"},
		"running for a malformed cluster ID": {func(s *ententev1.PeerState) { s.Network.Running[0].ClusterId = "../x" }, "state.network.running[0].cluster_id"},
		"running for too many":               {func(s *ententev1.PeerState) { s.Network.Running = make([]*ententev1.TransitAddresses, 17) }, "state.network.running"},
		"running in namespaces":              {func(s *ententev1.PeerState) { s.Network.Running[0].Namespaces = s.Network.Transit[0].Namespaces }, "state.network.running[0].namespaces"},
		"half an address of a pod it runs":   {func(s *ententev1.PeerState) { s.Network.Running[0].Ipv4Addresses = make([]byte, 6) }, "state.network.running[0].ipv4_addresses"},
		"pods that it runs, in no order":     {func(s *ententev1.PeerState) { s.Network.Running[0].Ipv4Addresses = []byte{10, 0, 0, 2, 10, 0, 0, 1} }, "state.network.running[0].ipv4_addresses"},
		"a pod that runs at IPv4 in IPv6": {func(s *ententev1.PeerState) {
			s.Network.Running[0].Ipv6Addresses = append(make([]byte, 10), 0xff, 0xff, 10, 0, 0, 1)
		}, "state.network.running[0].ipv6_addresses"},
		"running too much": {func(s *ententev1.PeerState) {
			s.Network.Running[0].Ipv4Addresses = ascending(peering.MaxDirect + 1)
		}, "state.network.running"},
		"a pod that runs for two clusters": {func(s *ententev1.PeerState) {
			s.Network.Running = append(s.Network.Running, &ententev1.TransitAddresses{ClusterId: strings.Repeat("f", 32), Ipv4Addresses: []byte{10, 200, 0, 8}})
		}, "state.network.running[1].addresses"},
		"through a malformed cluster ID": {func(s *ententev1.PeerState) { s.Network.Through = []string{"x"} }, "state.network.through[0]"},
		"through too many":               {func(s *ententev1.PeerState) { s.Network.Through = make([]string, 17) }, "state.network.through"},
		"an address twice":               {func(s *ententev1.PeerState) { s.Network.Ipv4Addresses = []byte{10, 0, 0, 1, 10, 0, 0, 1} }, "state.network.ipv4_addresses"},
		"an IPv4 address dressed as IPv6": {func(s *ententev1.PeerState) {
			s.Network.Ipv6Addresses = append(make([]byte, 10), 0xff, 0xff, 10, 0, 0, 1)
		}, "state.network.ipv6_addresses"},
		"more addresses than a peer may name, of both families together": {func(s *ententev1.PeerState) {
			s.Network.Ipv4Addresses, s.Network.Ipv6Addresses = nil, nil
			for i := range peering.MaxAddresses/2 + 1 {
				s.Network.Ipv4Addresses = append(s.Network.Ipv4Addresses, 10, 0, byte(i>>8), byte(i))
				s.Network.Ipv6Addresses = append(s.Network.Ipv6Addresses, append([]byte{0xfd, 13: 0, 14: byte(i >> 8)}, byte(i))...)
			}
		}, "state.network.ipv6_addresses"},
		"a block of more aliases than it may have": {func(s *ententev1.PeerState) {
			s.Network.AliasBlocks[0].Alias, s.Network.AliasBlocks[0].Addresses = "198.18.0.0/25", make([]byte, 512)
		}, "state.network.alias_blocks[0].addresses"},
		"a block with fewer addresses than aliases": {func(s *ententev1.PeerState) { s.Network.AliasBlocks[0].Addresses = make([]byte, 12) }, "state.network.alias_blocks[0].addresses"},
		"a block with bits beyond its length":       {func(s *ententev1.PeerState) { s.Network.AliasBlocks[0].Alias = "198.18.0.5/30" }, "state.network.alias_blocks[0].alias"},
		"an address with two aliases": {func(s *ententev1.PeerState) {
			s.Network.AliasBlocks = append(s.Network.AliasBlocks, s.Network.AliasBlocks[0])
		}, "state.network.alias_blocks[2].addresses"},
		"a block of IPv6 with an IPv4 address dressed as it": {func(s *ententev1.PeerState) {
			s.Network.AliasBlocks[1].Addresses = append(make([]byte, 10), 0xff, 0xff, 10, 0, 0, 1)
		}, "state.network.alias_blocks[1].addresses"},
		"an observation at a name":            {func(s *ententev1.PeerState) { s.Network.Observations[0].Endpoint = "host:1" }, "state.network.observations[0].endpoint"},
		"an observation without a port":       {func(s *ententev1.PeerState) { s.Network.Observations[0].Endpoint = "192.0.2.1:0" }, "state.network.observations[0].endpoint"},
		"an observation of a key of 31 bytes": {func(s *ententev1.PeerState) { s.Network.Observations[0].PublicKey = make([]byte, 31) }, "state.network.observations[0].public_key"},
		"a gateway that is seen at a zone":    {func(s *ententev1.PeerState) { s.Network.Gateways[0].ObservedEndpoints = []string{"[fe80::1%eth0]:1"} }, "state.network.gateways[0].observed_endpoints[0]"},
		"a gateway that is seen at too many places": {func(s *ententev1.PeerState) {
			s.Network.Gateways[0].ObservedEndpoints = slices.Repeat([]string{"192.0.2.1:1"}, peering.MaxObserved+1)
		}, "state.network.gateways[0].observed_endpoints"},
		"more observations than this cluster has gateways": {func(s *ententev1.PeerState) {
			s.Network.Observations = slices.Repeat(s.Network.Observations, peering.MaxObservations+1)
		}, "state.network.observations"},
		"an address of 5 bytes": {func(s *ententev1.PeerState) { s.Network.ReceiverAddress = make([]byte, 5) }, "state.network.receiver_address"},
		"more contracts than a peer may have": {func(s *ententev1.PeerState) {
			s.Contracts = nil
			for i := range peering.MaxContracts + 1 {
				s.Contracts = append(s.Contracts, &ententev1.ContractState{ContractId: fmt.Sprintf("c%d", i)})
			}
		}, "state.contracts"},
	} {
		t.Run(name, func(t *testing.T) {
			m := StateTo(fullState())
			tc.change(m)
			_, err := StateFrom(m)
			var e *peering.Error
			if !errors.As(err, &e) || e.Reason != peering.ReasonRequestInvalid || len(e.Violations) != 1 || e.Violations[0].Field != tc.field {
				t.Errorf("got %v, want a violation of %s", err, tc.field)
			}
		})
	}
}

func TestUnusableAddressesAreLeftOut(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "::1", "0.0.0.0", "0.1.2.3", "169.254.169.254", "fe80::1", "224.0.0.1", "255.255.255.255", "::ffff:127.0.0.1", "ff02::1"} {
		m := StateTo(fullState())
		addr := netip.MustParseAddr(at)
		m.Network.ReceiverAddress = addr.AsSlice()
		m.Network.Observations[0].Endpoint = netip.AddrPortFrom(addr, 7).String()
		m.Network.Gateways[0].ObservedEndpoints = append(m.Network.Gateways[0].ObservedEndpoints, netip.AddrPortFrom(addr, 7).String())
		s, err := StateFrom(m)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		if n := s.Network; len(n.Observations) > 0 || n.ReceiverAddress.IsValid() || len(n.Gateways[0].Observed) != 1 {
			t.Errorf("%s was believed: %+v", at, n)
		}
	}
}

func TestAPhaseOfANewerPeerIsNotRefused(t *testing.T) {
	m := StateTo(fullState())
	m.Contracts[0].Phase = 99
	got, err := StateFrom(m)
	if err != nil || got.Contracts[0].Phase != peering.PhaseUnspecified {
		t.Errorf("got %v, %v", got.Contracts, err)
	}
}

func TestAPresharedHalfDoesNotShowItself(t *testing.T) {
	h := peering.PresharedKeyShare{0xde, 0xad}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, h); s != "(hidden)" {
			t.Errorf("%s prints %s", format, s)
		}
	}
}

func TestABundleHasToBeThatOfTheCaller(t *testing.T) {
	mine, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m := &ententev1.ClusterInfo{Name: "office", Endpoints: []string{"office.example:7443"}, Bundle: mine.TrustBundle().DER()}
	info, err := ClusterInfoFrom(m, mine.ID())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, ClusterInfoTo(info), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if info.PEM() != string(mine.RootPEM()) {
		t.Errorf("PEM is %q, want %q", info.PEM(), mine.RootPEM())
	}
	for name, change := range map[string]func(*ententev1.ClusterInfo){
		"another cluster's root": func(m *ententev1.ClusterInfo) { m.Bundle = other.TrustBundle().DER() },
		"another's root beside the own": func(m *ententev1.ClusterInfo) {
			m.Bundle = append(mine.TrustBundle().DER(), other.TrustBundle().DER()...)
		},
		"no root":                           func(m *ententev1.ClusterInfo) { m.Bundle = nil },
		"bytes that are not a certificate":  func(m *ententev1.ClusterInfo) { m.Bundle = []byte("hello") },
		"a name that is not a DNS label":    func(m *ententev1.ClusterInfo) { m.Name = "Büro" },
		"an endpoint that cannot be dialed": func(m *ententev1.ClusterInfo) { m.Endpoints = []string{":0"} },
	} {
		t.Run(name, func(t *testing.T) {
			m := proto.CloneOf(m)
			change(m)
			if _, err := ClusterInfoFrom(m, mine.ID()); ReasonOf(err) != peering.ReasonRequestInvalid {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAnErrorCrossesWithItsReason(t *testing.T) {
	sent := &peering.Error{
		Reason: peering.ReasonCapacityExhausted, Message: "no GPU is free", RetryAfter: time.Minute,
		Metadata: map[string]string{"resource": "nvidia.com/gpu"}, Err: errors.New("secret of the inside"),
	}
	if st := Status(sent); st.Code() != codes.ResourceExhausted {
		t.Fatalf("status is %v", st)
	}
	got := FromStatus(Status(sent).Err())
	if got.Reason != sent.Reason || got.Message != sent.Message || got.RetryAfter != sent.RetryAfter || got.Metadata["resource"] != "nvidia.com/gpu" {
		t.Errorf("got %+v", got)
	}
	if strings.Contains(Status(sent).String(), "secret of the inside") {
		t.Error("the cause crosses")
	}
}

func TestErrorsThatCarryNoReason(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want peering.Reason
	}{
		"none":                             {nil, ""},
		"a status without details":         {status.Error(codes.Unavailable, "x"), "UNAVAILABLE"},
		"a deadline":                       {context.DeadlineExceeded, "DEADLINE_EXCEEDED"},
		"an error of something else":       {io.ErrUnexpectedEOF, "UNKNOWN"},
		"a reason in a shape of its own":   {Status(&peering.Error{Reason: "not a reason"}).Err(), "INTERNAL"},
		"a reason of a newer agent":        {Status(&peering.Error{Reason: "MOON_PHASE"}).Err(), "MOON_PHASE"},
		"an error wrapped around a status": {fmt.Errorf("dial: %w", status.Error(codes.Aborted, "x")), "ABORTED"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ReasonOf(tc.err); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestTheMessageIsTheOneThatWasSent(t *testing.T) {
	err := fmt.Errorf("get peer: %w", status.Error(codes.NotFound, "no peer"))
	if got := FromStatus(err).Message; got != "no peer" {
		t.Errorf("got %q", got)
	}
}

func TestEveryReasonHasACodeAndAProperName(t *testing.T) {
	for _, r := range []peering.Reason{
		peering.ReasonRequestInvalid, peering.ReasonRateLimited, peering.ReasonTooManyCalls, peering.ReasonStopping, peering.ReasonPeerNotTrusted, peering.ReasonTokenInvalid, peering.ReasonPeerIsSelf,
		peering.ReasonPolicyRefused, peering.ReasonPolicyPending, peering.ReasonCapacityExhausted, peering.ReasonAdvertisementExpired, peering.ReasonContractMismatch, peering.ReasonSignatureInvalid,
		peering.ReasonRevisionStale, peering.ReasonHeartbeatLost, peering.ReasonSessionSuperseded, peering.ReasonContractUnknown, peering.ReasonContractClosed, peering.ReasonSyncSuperseded,
		peering.ReasonPodUnknown, peering.ReasonCallerUnknown, peering.ReasonCallerNotAllowed, peering.ReasonPeerUnknown, peering.ReasonTokensOutstanding, peering.ReasonNoEndpoint,
		peering.ReasonTokenMalformed, peering.ReasonTokenExpired, peering.ReasonPeerUnreachable, peering.ReasonPeerIdentity, peering.ReasonPeerNameTaken, peering.ReasonPeeringExists, peering.ReasonPodsRunning,
		peering.ReasonNamespaceUnknown, peering.ReasonNamespaceNotOffloaded, peering.ReasonMappingFixed, peering.ReasonConflict, peering.ReasonKubernetes,
	} {
		if Code(r) == codes.Internal || !validReason(string(r)) {
			t.Errorf("%s has code %s", r, Code(r))
		}
	}
}

func TestTextFromOutsideHasNoControlCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"fine, Büro №1":        "fine, Büro №1",
		"red\x1b[31m\r\nalert": "red [31m  alert",
		"right\u202eleft":      "right left",
		"bad\xffbyte":          "bad byte",
		"line\u2028sep":        "line sep",
	} {
		if got := peering.Text(in, 100); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
	if got := peering.Text(strings.Repeat("ü", 100), 7); got != "üüü" {
		t.Errorf("cut to %q", got)
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1bb", 10)
	f.Fuzz(func(t *testing.T, s string, n int) {
		if n < 0 || n > 1<<16 {
			return
		}
		got := peering.Text(s, n)
		if len(got) > n || !utf8.ValidString(got) || peering.Text(got, n) != got {
			t.Errorf("Text(%q, %d) = %q", s, n, got)
		}
	})
}

// fuzzMessage checks a pair of conversions on any message: what is read, written
// and read again is the same, and nothing panics.
func fuzzMessage[M proto.Message, V any](f *testing.F, seeds []M, empty func() M, from func(M) (V, error), to func(V) M) {
	f.Helper()
	for _, seed := range seeds {
		b, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := empty()
		if proto.Unmarshal(b, m) != nil {
			return
		}
		v, err := from(m)
		if err != nil {
			if ReasonOf(err) != peering.ReasonRequestInvalid {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		first := to(v)
		again, err := from(first)
		if err != nil {
			t.Fatalf("what was written is refused: %v", err)
		}
		if diff := cmp.Diff(first, to(again), protocmp.Transform()); diff != "" {
			t.Fatalf("(-first +second)\n%s", diff)
		}
	})
}

func FuzzState(f *testing.F) {
	fuzzMessage(f, []*ententev1.PeerState{StateTo(fullState()), {}}, func() *ententev1.PeerState { return &ententev1.PeerState{} }, StateFrom, StateTo)
}

func FuzzAsk(f *testing.F) {
	seed := &ententev1.PeeringRequest{RequestId: "r", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1500m", "memory": "1Gi"}}, Duration: durationpb.New(time.Minute)}
	fuzzMessage(f, []*ententev1.PeeringRequest{seed}, func() *ententev1.PeeringRequest { return &ententev1.PeeringRequest{} }, AskFrom, AskTo)
}

func FuzzAdvertisement(f *testing.F) {
	seed := &ententev1.Advertisement{
		ContractId: "c", RequestId: "r", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1"}},
		Duration: durationpb.New(time.Hour), ValidUntil: timestamppb.New(time.Unix(1e9, 0)), PodSecurity: "restricted", NodeLabels: map[string]string{"a": "b"},
	}
	fuzzMessage(f, []*ententev1.Advertisement{seed}, func() *ententev1.Advertisement { return &ententev1.Advertisement{} }, signable, AdvertisementTo)
}

func FuzzEnvelope(f *testing.F) {
	seed := &ententev1.Envelope{Payload: []byte("{}"), PayloadType: peering.PayloadType, Signatures: []*ententev1.Signature{{KeyId: strings.Repeat("a", 32), Sig: []byte{1}}}}
	fuzzMessage(f, []*ententev1.Envelope{seed}, func() *ententev1.Envelope { return &ententev1.Envelope{} }, EnvelopeFrom, EnvelopeTo)
}

func FuzzClusterInfo(f *testing.F) {
	id, err := identity.Generate(time.Unix(1_700_000_000, 0))
	if err != nil {
		f.Fatal(err)
	}
	seed := &ententev1.ClusterInfo{Name: "a", Endpoints: []string{"a:1"}, Bundle: id.TrustBundle().DER()}
	fuzzMessage(f, []*ententev1.ClusterInfo{seed}, func() *ententev1.ClusterInfo { return &ententev1.ClusterInfo{} },
		func(m *ententev1.ClusterInfo) (identity.ClusterInfo, error) { return ClusterInfoFrom(m, id.ID()) }, ClusterInfoTo)
}

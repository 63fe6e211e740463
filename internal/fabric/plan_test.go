package fabric

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/preflight"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

func fabricNode(name, cluster, key string, gateway bool) v1alpha1.FabricNode {
	n := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec = v1alpha1.FabricNodeSpec{ClusterID: cluster, Gateway: gateway}
	n.Status.PublicKey, n.Status.Endpoints, n.Status.PodCIDRs = key, []string{"10.0.0.1:51820"}, []string{"10.200.1.0/24"}
	return n
}

func tunnelTo(peer string, age time.Duration, allow ...v1alpha1.Exposure) v1alpha1.Tunnel {
	t := v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: "t-" + peer, UID: types.UID("u-" + peer), CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
	t.Spec = v1alpha1.TunnelSpec{
		PeerID:   peer,
		Gateways: []v1alpha1.Gateway{{Name: "g", PublicKey: keyB, Endpoints: []string{"172.30.2.11:51820"}, OverlayAddress: "fd00::2"}},
		Local:    []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "10.250.0.0/16"}},
		Remote:   []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "10.240.0.0/16"}},
		Allow:    allow,
	}
	return t
}

func TestDesiredFollowsTheCustomResources(t *testing.T) {
	t.Parallel()
	psk := bytes.Repeat([]byte{7}, 32)
	own := []netip.Prefix{netip.MustParsePrefix("10.200.0.0/24")}
	nodes := []v1alpha1.FabricNode{fabricNode("a", "me", keyA, true), fabricNode("b", "me", "", false)}

	t.Run("nothing before the agent said which cluster this is", func(t *testing.T) {
		t.Parallel()
		if got := Desired(Config{Node: "a"}, own, []v1alpha1.FabricNode{fabricNode("a", "", keyA, false)}, nil, Known{}, time.Now()); got != nil {
			t.Errorf("desired %+v", got)
		}
	})
	desired := func(tunnels []v1alpha1.Tunnel, secret map[string][]byte) *plan.Desired {
		return Desired(Config{Node: "a"}, own, nodes, tunnels, Known{}.Update(nodes, tunnels, secret), time.Now())
	}
	t.Run("a peer without a preshared key waits for it", func(t *testing.T) {
		t.Parallel()
		got := desired([]v1alpha1.Tunnel{tunnelTo("p", 0), tunnelTo("q", 0)}, map[string][]byte{"q": psk, "p": psk[:16]})
		if len(got.Peers) != 2 || !got.Peers[0].KeyMissing || got.Peers[1].KeyMissing {
			t.Errorf("peers are %+v", got.Peers)
		}
	})
	t.Run("who was trusted first comes first", func(t *testing.T) {
		t.Parallel()
		got := desired([]v1alpha1.Tunnel{tunnelTo("p", 0), tunnelTo("q", time.Hour)}, map[string][]byte{"p": psk, "q": psk})
		if got.Peers[0].ClusterID != "q" {
			t.Errorf("first is %s", got.Peers[0].ClusterID)
		}
	})
	t.Run("a node's own prefixes are those of its Node", func(t *testing.T) {
		t.Parallel()
		got := desired(nil, nil)
		if diff := cmp.Diff(own, got.Nodes[0].PodCIDRs, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Errorf("prefixes (-want +got):\n%s", diff)
		}
	})
	t.Run("ports are open that are listed, and none by default", func(t *testing.T) {
		t.Parallel()
		got := desired([]v1alpha1.Tunnel{tunnelTo("p", 0,
			v1alpha1.Exposure{Contract: "c", Namespace: "shop", From: []string{"10.240.0.1"}, To: []v1alpha1.Destination{
				{Addresses: []string{"10.200.0.1", "10.200.0.2"}, Ports: []v1alpha1.DestinationPort{{Protocol: "TCP", Port: 80}}},
				{Addresses: []string{"10.200.0.3"}},
				{Addresses: []string{"10.200.0.4"}, Ports: []v1alpha1.DestinationPort{{Protocol: "GRE", Port: 80}, {Protocol: "TCP", Port: 1 << 16}}},
			}},
			v1alpha1.Exposure{Contract: "d", AnySource: true, To: []v1alpha1.Destination{{Addresses: []string{"10.200.0.9"}, AnyPort: true}}},
		)}, map[string][]byte{"p": psk})
		want := []plan.Exposure{
			{Name: "c/shop", Sources: []netip.Addr{netip.MustParseAddr("10.240.0.1")}, Destinations: []plan.Destination{
				{Addr: netip.MustParseAddr("10.200.0.1"), Protocol: plan.TCP, Port: 80},
				{Addr: netip.MustParseAddr("10.200.0.2"), Protocol: plan.TCP, Port: 80},
			}},
			{Name: "d/", AnySource: true, Destinations: []plan.Destination{{Addr: netip.MustParseAddr("10.200.0.9")}}},
		}
		if diff := cmp.Diff(want, got.Peers[0].Inbound, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("open is (-want +got):\n%s", diff)
		}
	})
}

// Only the deletion of a Tunnel ends a tunnel, not what is missing.
func TestTunnelOutlivesTheSecretOfItsKey(t *testing.T) {
	t.Parallel()
	own := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.200.0.0/24"}}}
	gateway, toP, toQ := fabricNode("a", "me", keyA, true), tunnelTo("p", time.Hour), tunnelTo("q", 0)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: v1alpha1.FabricSecret},
		Data:       map[string][]byte{"p": bytes.Repeat([]byte{1}, 32), "q": bytes.Repeat([]byte{2}, 32)},
	}
	c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(&own, &gateway, &toP, &toQ, secret).Build()
	n := &node{cfg: Config{Node: "a", Namespace: "entente-system"}, inBand: idleRelays(t), client: c}
	check := func(when string, keys ...byte) {
		t.Helper()
		desired, err := n.desired(t.Context(), false)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if len(desired.Peers) != len(keys) {
			t.Fatalf("%s: %d peers, want %d", when, len(desired.Peers), len(keys))
		}
		for i, key := range keys {
			if p := desired.Peers[i]; p.PresharedKey != plan.PresharedKey(bytes.Repeat([]byte{key}, 32)) || p.KeyMissing != (key == 0) || !desired.Nodes[0].Gateway {
				t.Errorf("%s: peer %s has another key, or node a is not a gateway", when, p.ClusterID)
			}
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check("at first", 1, 2)
	next := plan.SpareKeys{Number: 4, Next: plan.PresharedKey(bytes.Repeat([]byte{9}, 32))}
	secret.Data["p.number"], secret.Data["p.next"], secret.Data["p.previous"] = []byte("4"), next.Next[:], []byte("short")
	do(c.Update(t.Context(), secret))
	check("with the next key", 1, 2)
	if desired, _ := n.desired(t.Context(), false); desired.Peers[0].Spare != next || desired.Peers[1].Spare != (plan.SpareKeys{}) {
		t.Error("the next key is another, or that of another peer")
	}
	secret.Data = map[string][]byte{"p": {1, 2}, "q": bytes.Repeat([]byte{3}, 32)}
	do(c.Update(t.Context(), secret))
	check("one key is damaged and one is new", 1, 3)
	do(c.Delete(t.Context(), secret))
	check("the Secret is deleted", 1, 3)
	gateway.Spec.Gateway = false
	do(c.Update(t.Context(), &gateway))
	check("no node is named as gateway", 1, 3)
	do(c.Delete(t.Context(), &toP))
	check("a Tunnel is deleted", 3)
	again := tunnelTo("p", 0)
	again.UID = "another"
	do(c.Create(t.Context(), &again))
	check("another Tunnel does not get the key of the one before", 0, 3)

	n = &node{cfg: n.cfg, inBand: idleRelays(t), client: c}
	if desired, err := n.desired(t.Context(), false); err != nil || desired != nil {
		t.Errorf("after a restart, and without a gateway: %+v, %v, want nothing to change", desired, err)
	}
	gateway.Spec.Gateway = true
	do(c.Update(t.Context(), &gateway))
	check("after a restart the device has the keys", 0, 0)
}

func TestPathsWithoutAnEndpointReportIt(t *testing.T) {
	t.Parallel()
	for _, state := range []probe.PathState{probe.PathUnknown, probe.PathDown} {
		got := pathOf(tunnel.PeerStatus{Cluster: "c", Node: "g", State: state}, "")
		if strings.Contains(got.Message, "UDP  ") || !strings.Contains(got.Message, "no endpoint to dial") {
			t.Errorf("%v: %q", state, got.Message)
		}
	}
}

// A node without firewall rules says so on the path to each peer: probes are lost for no other reason.
func TestPathsOfANodeWithoutFirewallRulesSayWhy(t *testing.T) {
	t.Parallel()
	got := NodeStatus(tunnel.Status{
		Unfiltered: "no table", Problems: []plan.Problem{{Text: "no table: write it"}, {Peer: "away", Text: "no handshake"}},
		Peers: []tunnel.PeerStatus{{Cluster: "away", Node: "g", Remote: true, Active: true, State: probe.PathDown}, {Cluster: "home", Node: "w", Active: true, State: probe.PathUp}},
	}, &corev1.Node{})
	if len(got.Paths) != 2 || !strings.Contains(got.Paths[0].Message, "no firewall rules") || got.Paths[1].Message != "" {
		t.Errorf("paths are %+v", got.Paths)
	}
}

func TestRoundTripsAreShownAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ took, want time.Duration }{
		{43 * time.Microsecond, 43 * time.Microsecond},
		{412 * time.Microsecond, 410 * time.Microsecond},
		{131 * time.Millisecond, 130 * time.Millisecond},
		{996 * time.Microsecond, time.Millisecond},
	} {
		got := pathOf(tunnel.PeerStatus{State: probe.PathUp, RTT: tc.took}, "").RoundTripMicroseconds
		if got != tc.want.Microseconds() {
			t.Errorf("%s is shown as %dµs, want %s", tc.took, got, tc.want)
		}
	}
}

func TestNodeStatusHasOnlyObservedState(t *testing.T) {
	t.Parallel()
	own := corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "172.30.1.11"}, {Type: corev1.NodeInternalIP, Address: "fd00::11"},
	}}}
	status := NodeStatus(tunnel.Status{
		ListenPort: 51820, Backend: tunnel.BackendUserspace,
		Peers: []tunnel.PeerStatus{
			{Cluster: "up", State: probe.PathUp, RTT: 1100 * time.Microsecond, MTU: 1412, Active: true},
			{Cluster: "down", Node: "g", State: probe.PathDown, Active: true, Endpoint: netip.MustParseAddrPort("172.30.2.11:51820")},
			{Cluster: "spare", State: probe.PathUp},
		},
		Problems: []plan.Problem{{Text: "ip_forward is off"}},
	}, &own)
	if diff := cmp.Diff([]string{"172.30.1.11:51820", "[fd00::11]:51820", "192.0.2.1:51820"}, status.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	if len(status.Paths) != 2 || status.Paths[0].PeerID != "down" || status.Paths[0].State != "Down" || status.Paths[0].Message == "" {
		t.Errorf("paths are %+v", status.Paths)
	}
	if status.Paths[1].State != "Up" || status.Paths[1].RoundTripMicroseconds != 1100 || status.Paths[1].MTU != 1412 {
		t.Errorf("the path that is up is %+v", status.Paths[1])
	}
	if len(status.Problems) != 1 || status.PublicKey != "" {
		t.Errorf("status is %+v", status)
	}
}

const (
	keyA = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE="
	keyB = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAI="
)

// A tunnel to a node for the pods on it is reported, and is not a path on which the network depends.
func TestNodeStatusReportsDirectTunnelsApart(t *testing.T) {
	status := NodeStatus(tunnel.Status{Peers: []tunnel.PeerStatus{
		{Cluster: "away", Node: "gw", Remote: true, Active: true, Direct: true, State: probe.PathUp, MTU: 1420},
		{Cluster: "away", Node: "w1", Remote: true, OnDemand: true, Direct: true, State: probe.PathUp, Way: tunnel.WayObserved, MTU: 1400, RTT: 1234 * time.Microsecond},
		{Cluster: "away", Node: "w2", Remote: true, OnDemand: true, State: probe.PathDown},
		{Cluster: "other", Node: "w3", Remote: true, OnDemand: true, State: probe.PathUp},
	}}, &corev1.Node{})
	if len(status.Paths) != 1 || status.Paths[0].Node != "gw" || status.Paths[0].Standby {
		t.Errorf("paths %+v, want that to the gateway alone", status.Paths)
	}
	var got []string
	for _, d := range status.DirectPaths {
		got = append(got, fmt.Sprintf("%s/%s %v %s %d %v %s", d.PeerID, d.Node, d.InUse, d.State, d.MTU, d.Message == "", d.ConnectionType))
	}
	want := []string{"away/gw true Up 1420 true ", "away/w1 true Up 1400 true Observed", "away/w2 false Down 0 false ", "other/w3 false Up 0 false "}
	if !slices.Equal(got, want) {
		t.Errorf("direct %q, want %q", got, want)
	}
}

func TestTheKeyOfANodeIsReplacedWhenItIsOldOrAsked(t *testing.T) {
	t.Parallel()
	since := time.Unix(1e9, 0).UTC()
	const every = 100 * time.Hour
	node := func(asked string) v1alpha1.FabricNode {
		n := fabricNode("a", "me", keyA, true)
		n.Status.PublicKeySince, n.Annotations = new(metav1.NewTime(since)), map[string]string{v1alpha1.AnnotationRotateKey: asked}
		return n
	}
	key, err := plan.ParsePublicKey(keyA)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		asked               string
		every, age          time.Duration
		replace, regardless bool
	}{
		"a young key":               {"", every, every * 8 / 10, false, false},
		"an old one":                {"", every, every, true, false},
		"an old one that waits":     {"", every, every + keyPatience, true, true},
		"keys that last for ever":   {"", 0, 1e5 * time.Hour, false, false},
		"one that is asked for":     {since.Add(time.Minute).Format(time.RFC3339), 0, time.Minute, true, false},
		"asked for later":           {since.Add(time.Hour).Format(time.RFC3339), every, time.Minute, false, false},
		"asked for before this key": {since.Format(time.RFC3339), every, time.Minute, false, false},
		"asked for at no time":      {"now", every, time.Minute, false, false},
	} {
		got := Desired(Config{Node: "a", KeyEvery: tc.every}, nil, []v1alpha1.FabricNode{node(tc.asked)}, nil, Known{}, since.Add(tc.age))
		if (got.ReplaceKey == key) != tc.replace || !tc.replace && !got.ReplaceKey.IsZero() || got.Regardless != tc.regardless {
			t.Errorf("%s: replace %v regardless %v", name, got.ReplaceKey, got.Regardless)
		}
	}
	n := node("")
	n.Status.PublicKeySince = nil
	if got := Desired(Config{Node: "a", KeyEvery: every}, nil, []v1alpha1.FabricNode{n}, nil, Known{}, since.Add(1e5*time.Hour)); !got.ReplaceKey.IsZero() {
		t.Error("a key of unknown age is replaced")
	}
}

func TestNextKeysAreReportedAndTaken(t *testing.T) {
	t.Parallel()
	own, other, tun := fabricNode("a", "me", keyA, true), fabricNode("b", "me", keyA, false), tunnelTo("p", 0)
	other.Status.NextPublicKey, tun.Spec.Gateways[0].NextPublicKey = keyB, keyA
	nodes := []v1alpha1.FabricNode{own, other}
	got := Desired(Config{Node: "a"}, nil, nodes, []v1alpha1.Tunnel{tun}, Known{}.Update(nodes, nil, nil), time.Now())
	if got.Nodes[1].NextKey.String() != keyB || got.Peers[0].Gateways[0].NextKey.String() != keyA || !got.Nodes[0].NextKey.IsZero() {
		t.Errorf("nodes %+v, gateways %+v", got.Nodes, got.Peers[0].Gateways)
	}
	status := NodeStatus(tunnel.Status{NextKey: got.Nodes[1].NextKey, KeyWaits: "for \x1b[31m" + strings.Repeat("x", 2000)}, &corev1.Node{})
	if status.NextPublicKey != keyB || len(status.KeyRotationMessage) > 1024 || strings.Contains(status.KeyRotationMessage, "\x1b") {
		t.Errorf("the status says %q, %q", status.NextPublicKey, status.KeyRotationMessage)
	}
}

func TestExpiredContractsCloseWithoutTheAgent(t *testing.T) {
	t.Parallel()
	now := time.Unix(2e9, 0)
	at := func(contract string, in time.Duration) v1alpha1.ContractEnd {
		return v1alpha1.ContractEnd{Contract: contract, Time: metav1.NewTime(now.Add(in))}
	}
	open := func(contract string) v1alpha1.Exposure {
		return v1alpha1.Exposure{Contract: contract, AnySource: true, To: []v1alpha1.Destination{{Addresses: []string{"10.200.0.9"}, AnyPort: true}}}
	}
	const past, skewed = -2 * time.Minute, -30 * time.Second
	for name, tt := range map[string]struct {
		ends   []v1alpha1.ContractEnd
		inBand bool
		want   []string // nil: no tunnel
	}{
		"no contract has an end":                          {nil, false, []string{"c/", "d/"}},
		"none is over":                                    {[]v1alpha1.ContractEnd{at("c", time.Hour), at("d", time.Second)}, false, []string{"c/", "d/"}},
		"one ended a moment ago: clocks differ":           {[]v1alpha1.ContractEnd{at("c", time.Hour), at("d", skewed)}, false, []string{"c/", "d/"}},
		"one of two is over":                              {[]v1alpha1.ContractEnd{at("c", time.Hour), at("d", past)}, false, []string{"c/"}},
		"both are over":                                   {[]v1alpha1.ContractEnd{at("c", past), at("d", past)}, false, nil},
		"both are over, and the peer API runs through it": {[]v1alpha1.ContractEnd{at("c", past), at("d", past)}, true, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tun := tunnelTo("p", 0, open("c"), open("d"))
			tun.Spec.ContractEnds = tt.ends
			if tt.inBand {
				tun.Spec.InBand = &v1alpha1.TunnelInBand{Agent: "10.0.0.1:7448"}
			}
			nodes := []v1alpha1.FabricNode{fabricNode("a", "me", keyA, true)}
			got := Desired(Config{Node: "a"}, nil, nodes, []v1alpha1.Tunnel{tun}, Known{}.Update(nodes, []v1alpha1.Tunnel{tun}, nil), now)
			if (len(got.Peers) == 0) != (tt.want == nil) {
				t.Fatalf("peers are %+v", got.Peers)
			}
			names := []string{}
			for _, p := range got.Peers {
				for _, e := range p.Inbound {
					names = append(names, e.Name)
				}
			}
			if !slices.Equal(names, tt.want) {
				t.Errorf("open are %v, want %v", names, tt.want)
			}
		})
	}
}

// What follows from a contract with another peer ends with that contract, and keeps no tunnel.
func TestWhatAnotherPeersContractOpensEndsWithIt(t *testing.T) {
	t.Parallel()
	now := time.Unix(2e9, 0)
	for in, want := range map[time.Duration]int{time.Hour: 2, -30 * time.Second: 2, -2 * time.Minute: 1} {
		own := v1alpha1.Exposure{Contract: "c", AnySource: true, To: []v1alpha1.Destination{{Addresses: []string{"10.200.0.9"}, AnyPort: true}}}
		others := own
		others.Contract, others.HomePeerID, others.Until = "d", "b", new(metav1.NewTime(now.Add(in)))
		tun := tunnelTo("p", 0, own, others)
		nodes := []v1alpha1.FabricNode{fabricNode("a", "me", keyA, true)}
		got := Desired(Config{Node: "a"}, nil, nodes, []v1alpha1.Tunnel{tun}, Known{}.Update(nodes, []v1alpha1.Tunnel{tun}, nil), now)
		if len(got.Peers) != 1 || len(got.Peers[0].Inbound) != want {
			t.Errorf("%v before its end: %+v", in, got.Peers)
		}
	}
}

func TestNodeStatusReportsEndToEndProbes(t *testing.T) {
	since := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)
	at := netip.MustParseAddr("10.240.2.1")
	for _, tt := range []struct {
		sight probe.EndStatus
		state string
		says  []string
	}{
		{probe.EndStatus{}, "Unknown", nil},
		{probe.EndStatus{State: probe.EndUp, Node: "n1", Known: 2}, "Up", nil},
		{probe.EndStatus{State: probe.EndDown, Node: "n1", Addr: at, Since: since, Bad: 3}, "Down", []string{"node n1", "10.240.2.1", "2 more nodes", "2026-11-27T09:00:00Z", "firewall"}},
		{probe.EndStatus{State: probe.EndBlocked, Node: "n1", Addr: at, Since: since, Bad: 2}, "Blocked", []string{"reach node n1 of the peer (10.240.2.1 here), which does", "net.ipv4.ip_forward", "way to 1 more node"}},
		{probe.EndStatus{State: probe.EndLargeLost, Node: "n1", Addr: at, Since: since, Bad: 1}, "LargePacketsLost", []string{"MTU"}},
	} {
		got := NodeStatus(tunnel.Status{Ends: []tunnel.EndStatus{{Cluster: "peer", EndStatus: tt.sight}}}, &corev1.Node{}).EndToEnd
		if len(got) != 1 || got[0].PeerID != "peer" || got[0].State != tt.state || (got[0].Node != "") != (len(tt.says) > 0) {
			t.Errorf("%+v: %+v", tt.sight, got)
			continue
		}
		for _, word := range tt.says {
			if !strings.Contains(got[0].Message, word) {
				t.Errorf("%s: %q does not say %q", tt.state, got[0].Message, word)
			}
		}
	}
}

func TestANodeThatIsNotAnnouncedProbesNoPeer(t *testing.T) {
	var nodes []v1alpha1.FabricNode
	for i := range 70 {
		n := v1alpha1.FabricNode{}
		n.Name, n.Spec.ClusterID, n.Spec.Gateway = fmt.Sprintf("n%02d", i), "home", i < 2
		n.Status.PublicKey, n.Status.OverlayAddress = plan.PublicKey{byte(i + 1)}.String(), "fd00::1"
		if i < 69 {
			n.Spec.AnnouncedPodCIDRs = []string{fmt.Sprintf("10.200.%d.0/24", i)}
		}
		nodes = append(nodes, n)
	}
	tunnels := []v1alpha1.Tunnel{{Spec: v1alpha1.TunnelSpec{PeerID: "peer", ProbedNodes: []v1alpha1.ProbedNode{{Node: "far", Addresses: []string{"10.240.1.1", "nonsense"}}}}}}
	for name, want := range map[string]int{"n00": 1, "n02": 1, "n65": 1, "n66": 0, "n69": 0} {
		d := Desired(Config{Node: name}, nil, nodes, tunnels, Known{Gateways: []string{"n00"}}, time.Now())
		if got := len(d.Peers[0].Probed); got != want {
			t.Errorf("%s probes %d nodes, want %d", name, got, want)
		}
	}
}

// Where pods may be is what the agent wrote, besides what is configured, without any peer and after a restart.
func TestNodesLookForPodsInThePrefixesOfTheCluster(t *testing.T) {
	n := v1alpha1.FabricNode{}
	n.Name, n.Spec.ClusterID, n.Spec.ClusterPodCIDRs, n.Spec.ClusterPodCIDRSources = "n1", "home", []string{"10.1.0.0/16", "nonsense"}, []string{"IPPools of Calico"}
	cfg := Config{Node: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}}
	want := []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16"), netip.MustParsePrefix("10.1.0.0/16")}
	saved := newSavedPlan(time.Now(), &corev1.Node{}, []v1alpha1.FabricNode{n}, nil, Known{})
	for what, nodes := range map[string][]v1alpha1.FabricNode{"as read": {n}, "as saved": saved.FabricNodes} {
		if d := Desired(cfg, nil, nodes, nil, Known{}, time.Now()); d == nil || !slices.Equal(d.Pods, want) {
			t.Errorf("%s: %+v", what, d)
		}
	}
	n.Spec.ClusterPodCIDRAdvice, n.Spec.CiliumHostRouting, n.Spec.CiliumSettings = "set it", v1alpha1.HostRoutingBPF, "enable-bpf-masquerade=true"
	f := preflightOf(cfg, tunnel.Status{}, &corev1.Node{}, []v1alpha1.FabricNode{n}, nil)
	if !slices.Contains(f.Pods, want[1]) || len(f.PodSources) != 1 || f.PodAdvice != "set it" || f.CiliumRouting != preflight.RoutingBPF || f.CiliumSettings == "" {
		t.Errorf("the node checks itself with %+v", f)
	}
	changed := n.DeepCopy()
	changed.Spec.ClusterPodCIDRs = nil
	if !matters(&n, changed) {
		t.Error("a change of the prefixes does not matter")
	}
}

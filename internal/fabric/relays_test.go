package fabric

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

func TestLinksAreThereWhereAGatewayIsNotReachedByItself(t *testing.T) {
	t.Parallel()
	peer := func(state probe.PathState, way tunnel.Way) []tunnel.PeerStatus {
		return []tunnel.PeerStatus{
			{Cluster: "home", State: probe.PathDown}, // a node of this cluster
			{Cluster: "peer", Remote: true, State: probe.PathUp, Way: tunnel.WayDirect},
			{Cluster: "peer", Remote: true, State: state, Way: way},
		}
	}
	up, down, relayed := peer(probe.PathUp, tunnel.WayObserved), peer(probe.PathDown, tunnel.WayDirect), peer(probe.PathUp, tunnel.WayRelayed)
	w, now := relayLinks{}, time.Unix(1000, 0)
	for i, step := range []struct {
		after time.Duration
		peers []tunnel.PeerStatus
		want  bool
	}{
		{0, up, false},
		{time.Hour, down, false},
		{relayLinkAfter - 1, down, false},
		{1, down, true},
		{time.Hour, relayed, true},
		{time.Hour, up, true},
		{relayUnlinkAfter - 1, up, true},
		{0, relayed, true},
		{time.Second, up, true},
		{relayUnlinkAfter - 1, up, true},
		{1, up, false},
		{time.Second, down, false},
		{time.Second, up, false},
		{relayLinkAfter, down, false},
	} {
		now = now.Add(step.after)
		next := w.next(now, step.peers)
		if next["peer"].linked != step.want || next["home"].linked {
			t.Errorf("step %d: %+v, want %v", i, next, step.want)
		}
		w = next
	}
	if len(w.next(now, nil)) > 0 {
		t.Error("a peer that is gone has a link")
	}
}

func TestGatewaysAreReachedThroughTheAgentsByTheirTunnelsKey(t *testing.T) {
	t.Parallel()
	r, err := newRelays(Config{RelayAgent: "127.0.0.1:1", Port: 51820, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.gateway.Set([32]byte{}, nil)
	desired := func(gateway bool) *plan.Desired {
		return &plan.Desired{
			Node: "n1", Nodes: []plan.Node{{Name: "n1", Gateway: gateway}, {Name: "n2", Gateway: true}},
			Peers: []plan.Peer{
				{ClusterID: "a", PresharedKey: plan.PresharedKey{1}, Gateways: []plan.Gateway{{PublicKey: plan.PublicKey{1}}, {PublicKey: plan.PublicKey{2}}}},
				{ClusterID: "b", KeyMissing: true, Gateways: []plan.Gateway{{PublicKey: plan.PublicKey{3}}}},
			},
		}
	}
	d := desired(true)
	r.fill(d)
	one, two, none := d.Peers[0].Gateways[0].Relay, d.Peers[0].Gateways[1].Relay, d.Peers[1].Gateways[0].Relay
	if !one.Addr().IsLoopback() || !two.Addr().IsLoopback() || one == two || none != (netip.AddrPort{}) {
		t.Errorf("relayed at %v and %v, without a key at %v", one, two, none)
	}
	again := desired(true)
	if r.fill(again); again.Peers[0].Gateways[0].Relay != one {
		t.Errorf("moved from %v to %v", one, again.Peers[0].Gateways[0].Relay)
	}
	worker := desired(false)
	if r.fill(worker); worker.Peers[0].Gateways[0].Relay.IsValid() {
		t.Error("a node that is not a gateway relays")
	}
	var off *relays
	if off.fill(d); off.delay() != nil || off.run(t.Context(), nil) != nil {
		t.Error("what is off does something")
	}
}

func TestObservedAddressesOfGatewaysAreReported(t *testing.T) {
	t.Parallel()
	at := netip.MustParseAddrPort("203.0.113.7:4711")
	got := observedGateways([]tunnel.PeerStatus{
		{Cluster: "home", State: probe.PathUp, Way: tunnel.WayObserved, Endpoint: at},
		{Cluster: "a", Remote: true, State: probe.PathUp, Way: tunnel.WayObserved, Endpoint: at},
		{Cluster: "b", Remote: true, State: probe.PathUp, Way: tunnel.WayDirect, Endpoint: at},
		{Cluster: "c", Remote: true, State: probe.PathUp, Way: tunnel.WayRelayed, Endpoint: netip.MustParseAddrPort("127.64.0.1:7449")},
		{Cluster: "d", Remote: true, State: probe.PathDown, Way: tunnel.WayObserved, Endpoint: at},
	})
	if len(got) != 1 || got[0].PeerID != "a" || got[0].Endpoint != at.String() {
		t.Errorf("set %+v", got)
	}
}

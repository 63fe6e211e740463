package controller

import (
	"net/netip"
	"testing"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/fabric"
)

// An address of a host that a cluster opens gets an alias at the other, and the Tunnel has the rule: announced,
// assigned, announced back and written as agents do.
func TestAPeerNamesAHost(t *testing.T) {
	t.Parallel()
	a, b := newSite(0), newSite(1)
	a.meet(b.id)
	b.meet(a.id)
	host := netip.MustParseAddr("192.168.7.9")
	h := allow.Host{Namespace: "shop", Addrs: []netip.Addr{host}, Ports: []v1alpha1.DestinationPort{{Protocol: "TCP", Port: 5432}}, Clusters: []string{b.id}}
	link := a.peers[b.id]
	for range 4 { // each round announces the result of the one before
		b.hear(t, a)
		a.hear(t, b)
		b.plan(a.id)
		b.peers[a.id].fc.Status.Aliases, b.peers[a.id].fc.Status.AliasBlocks = stored.Status(b.peers[a.id].planned)
		a.plan(b.id)
		link.fc.Status.Aliases, link.fc.Status.AliasBlocks = stored.Status(link.planned)
		in := tunnelInput{wanted: true, peer: link.fc, local: a.local, nodes: a.nodes, exposed: allow.ExposedHosts([]allow.Host{h}, b.id)}
		if link.tunnel != nil {
			in.current, in.exists = link.tunnel.Spec, true
		}
		if spec, _ := planTunnelWrite(in); spec != nil {
			link.tunnel = &v1alpha1.Tunnel{Spec: *spec}
		}
	}
	if link.tunnel == nil {
		t.Fatal("there is no Tunnel")
	}
	alias, ok := allow.CalledBy(&link.tunnel.Spec, host)
	if !ok {
		t.Fatalf("the host has no alias: %+v", link.tunnel.Spec.LocalAliasBlocks)
	}
	found := false
	for _, m := range fabric.Mappings(nil, b.peers[a.id].fc.Status.AliasBlocks) {
		found = found || m.Real.Addr() == host && m.Alias.Addr() == alias
	}
	if !found {
		t.Errorf("%v is not what the peer calls the host", alias)
	}
	if opens := link.tunnel.Spec.Allow; len(opens) != 1 || !allow.OpensAny(opens, host) || !opens[0].AnySource || opens[0].To[0].AnyPort {
		t.Errorf("the Tunnel opens %+v, want the port alone", opens)
	}
	planned := planNetwork(networkInput{peer: link.fc, local: a.local, nodes: a.nodes, hosts: []v1alpha1.Exposure{{AnySource: true, To: []v1alpha1.Destination{{Addresses: []string{host.String()}}}}}})
	last := planned.Local[len(planned.Local)-1]
	if last.Prefix != "192.168.7.9/32" || last.Alias != alias.String()+"/32" {
		t.Errorf("the plan of the network shows %+v, want the host as %v", last, alias)
	}
}

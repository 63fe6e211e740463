package plan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// check validates a peer before anything of it is used.
func (p *planner) check(q Peer) error {
	switch {
	case q.ClusterID == "":
		return errors.New("no cluster ID")
	case q.ClusterID == p.d.ClusterID:
		return errors.New("the peer has our own cluster ID")
	case slices.Contains(p.clusters, q.ClusterID):
		return errors.New("the cluster ID is listed twice")
	case len(q.Gateways) > maxGateways:
		return fmt.Errorf("%d gateways, the limit is %d (maxGateways)", len(q.Gateways), maxGateways)
	case len(q.Local) > maxPrefixes || len(q.Remote) > maxPrefixes:
		return fmt.Errorf("the limit of %d prefixes each way is exceeded (maxPrefixes)", maxPrefixes)
	}
	var aliases []netip.Prefix
	for _, m := range q.Remote {
		if err := checkMapping(m); err != nil {
			return fmt.Errorf("remote prefix: %w", err)
		}
		for _, busy := range [][]netip.Prefix{p.homeNet, p.out.Remote, aliases} {
			if i := slices.IndexFunc(busy, m.Alias.Overlaps); i >= 0 {
				return fmt.Errorf("alias %v of its prefix %v overlaps %v, which is in use: allocate another alias", m.Alias, m.Real, busy[i])
			}
		}
		aliases = append(aliases, m.Alias)
	}
	if err := checkLocal(q.Local, aliases); err != nil {
		return err
	}
	return p.checkGateways(q, aliases)
}

// checkLocal makes sure that our prefixes and their aliases at the peer are a bijection, and
// that none overlaps an alias of the peer.
func checkLocal(local []Mapping, remote []netip.Prefix) error {
	for i, m := range local {
		if err := checkMapping(m); err != nil {
			return fmt.Errorf("local prefix: %w", err)
		}
		for _, r := range remote {
			if r.Overlaps(m.Real) {
				return fmt.Errorf("our prefix %v overlaps %v, an alias of the peer: allocate another alias", m.Real, r)
			}
		}
		for _, n := range local[:i] {
			if n.Real.Overlaps(m.Real) || n.Alias.Overlaps(m.Alias) {
				return fmt.Errorf("our prefixes %v and %v, whose aliases there are %v and %v, overlap", n.Real, m.Real, n.Alias, m.Alias)
			}
		}
	}
	return nil
}

func (p *planner) checkGateways(q Peer, aliases []netip.Prefix) error {
	own := overlayPrefix(q.ClusterID)
	seen := map[PublicKey]bool{}
	names := map[string]bool{}
	for _, g := range q.Gateways {
		overlay := GatewayOverlay(q, g)
		switch {
		case g.PublicKey.IsZero():
			return fmt.Errorf("gateway %s has no WireGuard key", g.Node)
		case seen[g.PublicKey] || names[g.Node]:
			return fmt.Errorf("gateway %s is listed twice", g.Node)
		case !own.Contains(overlay):
			return fmt.Errorf("gateway %s announces the overlay address %v, which is not in its cluster's %v", g.Node, overlay, own)
		}
		if who, dup := p.overlays[overlay]; dup {
			return fmt.Errorf("gateway %s announces the overlay address of %s", g.Node, who)
		}
		if err := checkEndpoints(g.Endpoints, aliases); err != nil {
			return fmt.Errorf("gateway %s: %w", g.Node, err)
		}
		seen[g.PublicKey], names[g.Node] = true, true
	}
	return nil
}

func checkMapping(m Mapping) error {
	for _, p := range []netip.Prefix{m.Real, m.Alias} {
		if err := checkPrefix(p); err != nil {
			return err
		}
	}
	if m.Real.Bits() != m.Alias.Bits() || m.Real.Addr().BitLen() != m.Alias.Addr().BitLen() {
		return fmt.Errorf("%v and its alias %v differ in family or length", m.Real, m.Alias)
	}
	return nil
}

// checkPrefix refuses prefixes that must never be routed into a tunnel.
func checkPrefix(p netip.Prefix) error {
	if !p.IsValid() || p.Addr().Is4In6() {
		return fmt.Errorf("invalid prefix %q", p)
	}
	least := minBits4
	if p.Addr().Is6() {
		least = minBits6
	}
	if p.Bits() < least {
		return fmt.Errorf("%v is shorter than /%d", p, least)
	}
	for _, special := range []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("::/32"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
	} {
		if p.Overlaps(special) {
			return fmt.Errorf("%v overlaps %v, a special-purpose prefix", p, special)
		}
	}
	return nil
}

// checkEndpoints refuses endpoints that cannot be dialled, or only through the tunnel itself.
func checkEndpoints(endpoints []string, aliases []netip.Prefix) error {
	if len(endpoints) > MaxEndpoints {
		return fmt.Errorf("%d endpoints, the limit is %d (MaxEndpoints)", len(endpoints), MaxEndpoints)
	}
	for _, e := range endpoints {
		if len(e) > maxEndpointLen {
			return fmt.Errorf("an endpoint of %d bytes, the limit is %d (maxEndpointLen)", len(e), maxEndpointLen)
		}
		name, port, err := net.SplitHostPort(e)
		if err != nil || name == "" {
			return fmt.Errorf("endpoint %q is not host:port", e)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("endpoint %q has no port number", e)
		}
		addr, err := netip.ParseAddr(name)
		if err != nil {
			continue // a name; what it resolves to is checked when it is used
		}
		if err := CheckDial(addr, aliases); err != nil {
			return fmt.Errorf("endpoint %q: %w", e, err)
		}
	}
	return nil
}

// CheckDial refuses addresses that no peer can be at.
func CheckDial(addr netip.Addr, aliases []netip.Prefix) error {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return fmt.Errorf("%v is not the address of a host", addr)
	}
	for _, a := range aliases {
		if a.Contains(addr) {
			return fmt.Errorf("%v lies in %v, which is reached through the tunnel", addr, a)
		}
	}
	return nil
}

package plan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/entente-dev/entente/internal/cidr"
)

// check returns why a peer cannot be used at all.
func (p *planner) check(q Peer) error {
	switch {
	case q.ClusterID == "":
		return errors.New("no cluster ID")
	case q.ClusterID == p.d.ClusterID:
		return errors.New("the peer has our own cluster ID")
	case p.clusters[q.ClusterID]:
		return errors.New("the cluster ID is listed twice")
	}
	return nil
}

// leftOut collects the parts of a peer that are left out, so that one problem reports all of a kind.
type leftOut struct {
	count int
	first error
}

func (l *leftOut) add(n int, format string, args ...any) {
	if l.count == 0 {
		l.first = fmt.Errorf(format, args...)
	}
	l.count += n
}

// reportLeftOut adds a problem for the parts that are left out.
func (p *planner) reportLeftOut(peer, kind string, l leftOut) {
	switch {
	case l.count == 1:
		p.problem(peer, "%s is left out: %v", kind, l.first)
	case l.count > 1:
		p.problem(peer, "%s is left out, and %d more: %v", kind, l.count-1, l.first)
	}
}

// fit returns the parts of a peer that can be used. An invalid part does not affect the others.
func (p *planner) fit(q Peer) Peer {
	q.Remote, q.RemoteBlocks = p.fitRemote(q)
	q.Local = p.fitLocal(q)
	q.Gateways = p.fitGateways(q)
	return q
}

// fitRemote returns the aliases that overlap nothing else.
func (p *planner) fitRemote(q Peer) (prefixes []Mapping, blocks []netip.Prefix) {
	var own cidr.Set
	var left leftOut
	free := func(a netip.Prefix, err error) bool {
		used := own.Overlapping(a)
		for _, s := range []cidr.Set{p.homeNet, p.aliases} {
			if !used.IsValid() {
				used = s.Overlapping(a)
			}
		}
		switch {
		case len(prefixes)+len(blocks) >= maxAliases:
			left.add(1, "the limit is %d (maxAliases)", maxAliases)
		case err != nil:
			left.add(1, "%w", err)
		case used.IsValid():
			left.add(1, "%v overlaps %v, which is in use: another alias has to be allocated", a, used)
		default:
			own = own.With(a.Masked())
			return true
		}
		return false
	}
	for _, m := range q.Remote {
		if free(m.Alias, checkMapping(m)) {
			prefixes = append(prefixes, m)
		}
	}
	for _, a := range q.RemoteBlocks {
		if free(a, checkPrefix(a)) {
			blocks = append(blocks, a.Masked())
		}
	}
	p.reportLeftOut(q.ClusterID, "an alias of the peer", left)
	return prefixes, blocks
}

// fitLocal returns our prefixes and addresses with the peer's aliases, as far as these are a
// bijection, and none overlaps an alias of a peer here.
func (p *planner) fitLocal(q Peer) []Mapping {
	remote := p.aliases.With(q.Aliases()...)
	var out []Mapping
	var left leftOut
	var wide []Mapping
	single, alias := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, m := range q.Local {
		host := m.Real.IsSingleIP() && m.Alias.IsSingleIP()
		err := checkMapping(m)
		switch {
		case err != nil:
		case host && len(single) >= maxAddresses || !host && len(wide) >= maxPrefixes:
			err = fmt.Errorf("the limit is %d prefixes and %d addresses (maxPrefixes, maxAddresses)", maxPrefixes, maxAddresses)
		case remote.Overlaps(m.Real):
			err = fmt.Errorf("%v overlaps %v, an alias of a peer: another alias has to be allocated", m.Real, remote.Overlapping(m.Real))
		case host && (single[m.Real.Addr()] || alias[m.Alias.Addr()]):
			err = fmt.Errorf("%v or its alias %v is listed twice", m.Real, m.Alias)
		}
		for i := 0; err == nil && i < len(wide); i++ {
			if n := wide[i]; n.Real.Overlaps(m.Real) || n.Alias.Overlaps(m.Alias) {
				err = fmt.Errorf("%v and %v, whose aliases there are %v and %v, overlap", n.Real, m.Real, n.Alias, m.Alias)
			}
		}
		switch {
		case err != nil:
			left.add(1, "%w", err)
			continue
		case host:
			single[m.Real.Addr()], alias[m.Alias.Addr()] = true, true
		default:
			wide = append(wide, m)
		}
		out = append(out, Mapping{Real: m.Real.Masked(), Alias: m.Alias.Masked()})
	}
	p.reportLeftOut(q.ClusterID, "a prefix or address of ours", left)
	return out
}

// fitGateways returns the gateways that can be peers of the device. Keys of other clusters are
// found later.
func (p *planner) fitGateways(q Peer) []Gateway {
	own := overlayPrefix(q.ClusterID)
	keys, names, overlays := map[PublicKey]bool{}, map[string]bool{}, map[netip.Addr]bool{}
	var out []Gateway
	var left, undialled leftOut
	if n := len(q.Gateways) - maxGateways; n > 0 {
		left.add(n, "the limit is %d gateways (maxGateways)", maxGateways)
		q.Gateways = q.Gateways[:maxGateways]
	}
	for _, g := range q.Gateways {
		overlay := GatewayOverlay(q, g)
		who, dup := p.overlays[overlay]
		switch {
		case g.PublicKey.IsZero():
			left.add(1, "%s has no WireGuard key", g.Node)
			continue
		case keys[g.PublicKey] || names[g.Node]:
			left.add(1, "%s is listed twice", g.Node)
			continue
		case !own.Contains(overlay):
			left.add(1, "%s announces the overlay address %v, which is not in its cluster's %v", g.Node, overlay, own)
			continue
		case overlays[overlay]:
			left.add(1, "%s announces the overlay address of another one", g.Node)
			continue
		case dup:
			left.add(1, "%s announces the overlay address of %s", g.Node, who)
			continue
		}
		keys[g.PublicKey], names[g.Node], overlays[overlay] = true, true, true
		g.Endpoints = fitEndpoints(q, g, &undialled)
		if !g.Relay.Addr().IsLoopback() {
			g.Relay = netip.AddrPort{}
		}
		out = append(out, g)
	}
	p.reportLeftOut(q.ClusterID, "a gateway", left)
	p.reportLeftOut(q.ClusterID, "an endpoint of a gateway", undialled)
	return out
}

// fitEndpoints returns the endpoints of a gateway that can be dialled. One without any can
// dial us. It adds the others to those that are left out.
func fitEndpoints(q Peer, g Gateway, left *leftOut) []string {
	var out []string
	for _, e := range g.Endpoints {
		err := checkEndpoint(e, q.Aliases())
		if err == nil && len(out) >= MaxEndpoints {
			err = fmt.Errorf("the limit is %d endpoints (MaxEndpoints)", MaxEndpoints)
		}
		if err != nil {
			left.add(1, "gateway %s: %w", g.Node, err)
			continue
		}
		out = append(out, e)
	}
	return out
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
	four := func(a, bits byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{a}), int(bits)) }
	linkLocal4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254}), 16)
	six := func(a, b byte, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{a, b}), bits)
	}
	// Constructed, not parsed: there are thousands of addresses to check.
	for _, special := range [...]netip.Prefix{
		four(0, 8), four(127, 8), linkLocal4, four(224, 3), six(0, 0, 32), six(0xfe, 0x80, 10), six(0xff, 0, 8),
	} {
		if p.Overlaps(special) {
			return fmt.Errorf("%v overlaps %v, a special-purpose prefix", p, special)
		}
	}
	return nil
}

// checkEndpoints refuses endpoints that cannot be dialled, or only through the tunnel itself.
func checkEndpoints(endpoints []string, aliases cidr.Set) error {
	if len(endpoints) > MaxEndpoints {
		return fmt.Errorf("%d endpoints, the limit is %d (MaxEndpoints)", len(endpoints), MaxEndpoints)
	}
	for _, e := range endpoints {
		if err := checkEndpoint(e, aliases); err != nil {
			return err
		}
	}
	return nil
}

func checkEndpoint(e string, aliases cidr.Set) error {
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
	if addr, err := netip.ParseAddr(name); err == nil { // what a name resolves to is checked when it is used
		if err := CheckDial(addr, aliases); err != nil {
			return fmt.Errorf("endpoint %q: %w", e, err)
		}
	}
	return nil
}

// observed returns the addresses at which a gateway is seen and can be dialled. Others report them, so
// unusable ones are left out.
func observed(g Gateway, aliases []netip.Prefix) []netip.AddrPort {
	var out []netip.AddrPort
	for _, e := range g.Observed[:min(len(g.Observed), maxObserved)] {
		e = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
		if e.Port() != 0 && !e.Addr().IsLinkLocalUnicast() && CheckDial(e.Addr(), aliases) == nil && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

// CheckDial refuses addresses that cannot be a peer's endpoint, among them aliases, which are inside of
// a tunnel.
func CheckDial(addr netip.Addr, aliases cidr.Set) error {
	addr = addr.Unmap()
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return fmt.Errorf("%v is not the address of a host", addr)
	}
	if a := aliases.Overlapping(host(addr)); a.IsValid() {
		return fmt.Errorf("%v lies in %v, which is reached through the tunnel", addr, a)
	}
	return nil
}

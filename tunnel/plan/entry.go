package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/internal/cidr"
)

// Nodes of two clusters that do not reach each other may reach each other's gateways. Then a packet
// needs only one gateway: it goes from the node of the pod that sends it to the gateway that carries the
// traffic of the other cluster, which is its entry, and from there like all that is carried.
//
// Such a packet has its source in direct form, so the cipher accepts it from the node of that pod
// only. Its destination is in the entry form. So a node can have a tunnel to the node of a pod and
// at the same time send the pod's packets to the entry: as with direct paths, both are bound all the time,
// and what changes is only the form that the sender writes. Nothing is received by the binding of an entry
// form, so the sender alone decides, each direction by itself.
//
// The entry translates both addresses back, and then the packet is one of those that it carries: the same
// rules decide on it, on the entry and on the node of the pod. So no node of a peer can send more by it than
// through its own gateway, and not as pods of other nodes, as it can there.
//
// A node sends to a gateway of a peer once that one has announced that it accepts the packets, by a digest
// of the pods of this node and of the aliases that it translates back. Only the gateway that carries
// the traffic announces it: nodes accept the packets of a peer's pods from no other.

// EntryBits4 and EntryByte6 make the entry form of an address: in IPv4 a multicast address (224.0.0.0/4), which no
// pod has, and in IPv6 one of f800::/6, which is reserved. It is only seen inside of the tunnel.
const (
	EntryBits4 = 0xe0
	EntryByte6 = 0xfb
)

// EntryForm returns the entry form of an alias.
func EntryForm(alias netip.Prefix) netip.Prefix {
	b := alias.Masked().Addr().AsSlice()
	if len(b) == 4 {
		b[0] = EntryBits4 | b[0]&^DirectBits4
	} else {
		b[0] = EntryByte6
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(addr, alias.Bits())
}

// IsEntryForm reports whether a prefix is one that [EntryForm] makes.
func IsEntryForm(p netip.Prefix) bool {
	b := p.Addr().AsSlice()
	return len(b) == 4 && b[0]&DirectBits4 == EntryBits4 || len(b) == 16 && b[0] == EntryByte6
}

// entryMappings returns the prefixes of a cluster whose packets may enter it at a gateway: not single
// addresses, which may be many, and change often.
func entryMappings(all []Mapping) []Mapping {
	var out []Mapping
	for _, m := range all {
		if !m.Real.IsSingleIP() && m.Alias.Bits() >= 8 {
			out = append(out, Mapping{Real: m.Real.Masked(), Alias: m.Alias.Masked()})
		}
	}
	return out
}

// entry returns the prefixes of this cluster for which this node takes packets from nodes of a peer:
// all, if it carries the peer's traffic and the entry forms of any two differ.
func (p *planner) entry(q Peer, c Carrier) []Mapping {
	if !p.self.Gateway || c.Home != p.d.Node {
		return nil
	}
	out := entryMappings(q.Local)
	var forms cidr.Set
	for _, m := range out {
		form := EntryForm(m.Alias)
		if forms.Overlaps(form) {
			return nil
		}
		forms = forms.With(form)
	}
	return out
}

// entryAgreement is what a gateway announces to a node of another cluster, and what that node expects: a digest
// of the aliases that the gateway translates back, in the other cluster's terms, and of the pods of the node, in
// those of the gateway's cluster. It is never zero, which means that nothing is accepted.
func entryAgreement(cluster string, entry []Mapping, other string, pods []netip.Prefix) uint64 {
	var aliases []netip.Prefix
	for _, m := range entry {
		aliases = append(aliases, m.Alias)
	}
	h := sha256.New()
	h.Write([]byte("entente entry\x00" + cluster + "\x00" + other + "\x00"))
	for _, list := range [][]netip.Prefix{aliases, pods} {
		h.Write(prefixBytes(list))
	}
	return max(binary.BigEndian.Uint64(h.Sum(nil)), 1)
}

// entrance is a gateway of a peer with a tunnel.
type entrance struct {
	Direct
	peer *WireGuardPeer
}

// enter binds the entry form of a peer's aliases to one of its gateways, and returns those aliases
// once packets may be sent there: the gateway has announced that, and the device already sends the form to
// it. A gateway that is in use is kept as long as it is fit for it.
func (p *planner) enter(q Peer, pods []netip.Prefix, gateways []entrance) []netip.Prefix {
	var aliases, forms []netip.Prefix
	mappings := entryMappings(q.Remote)
	for _, m := range mappings {
		aliases, forms = append(aliases, m.Alias), append(forms, EntryForm(m.Alias))
	}
	if len(gateways) == 0 || len(aliases) == 0 {
		return nil
	}
	want := entryAgreement(q.ClusterID, mappings, p.d.ClusterID, pods)
	fit := func(e entrance) (agreed, bound bool) {
		return e.Use && e.EntryReceived == want, !slices.ContainsFunc(forms, func(f netip.Prefix) bool { return !slices.Contains(e.Bound, f) })
	}
	best := slices.MaxFunc(gateways, func(a, b entrance) int {
		value := func(e entrance) (v int) {
			agreed, bound := fit(e)
			if agreed {
				v += 2
			}
			if bound {
				v++
			}
			return v
		}
		return cmp.Compare(value(a), value(b))
	})
	best.peer.AllowedIPs = append(best.peer.AllowedIPs, forms...)
	if agreed, bound := fit(best); !agreed || !bound {
		return nil
	}
	best.peer.Entry = true
	for i, r := range p.out.Routes {
		if !r.Return && !r.Direct && slices.ContainsFunc(aliases, r.Prefix.Overlaps) {
			p.out.Routes[i].Entry = best.peer.Overlay
		}
	}
	slices.SortFunc(aliases, netip.Prefix.Compare)
	return aliases
}

package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// TableName is the name of the nftables table, of family inet, that is ours.
const TableName = "entente"

// ruleset is the content of the table, as a value.
type ruleset struct {
	sets   []ruleSet
	chains []ruleChain
	digest string
}

// ruleSet is a named set, or a map to chains.
type ruleSet struct {
	name     string
	key      nftables.SetDatatype
	interval bool
	verdicts bool
	counter  bool
	// data says that it is a map from addresses to addresses.
	data     bool
	elements []nftables.SetElement
	digest   string // of name and elements, if it is known
}

// ruleChain is a chain; kind is empty for one that is only jumped to.
type ruleChain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    []chainRule
}

type chainRule struct {
	text  string
	exprs []expr.Any
}

// Names of sets; each exists once per family, with its digit behind.
const (
	setClosed  = "closed"  // the pool of aliases
	setRemote  = "remote"  // aliases of all peers
	setHome    = "home"    // pods of the home cluster
	setOwn     = "own"     // pods of this node
	setOthers  = "others"  // pods of home nodes behind the device
	setRefused = "refused" // aliases of all peers, with counters of packets that were refused
	setHosts   = "hosts"   // addresses of the home cluster that peers know and that are not those of pods
	setTransit = "transit" // addresses of peers that other peers reach through this cluster
	setErrors  = "errors"  // ICMP types that quote a packet
	setEnter   = "enter"   // alias of a peer → its chain of translations, entering
	setLeave   = "leave"   // the same, leaving
	setOverlay = "overlay" // overlay addresses of WireGuard peers
	setInBand  = "inband"  // those of them that reach the relay of the peer API
	setRelays  = "relays"  // where the relay listens for this cluster
	setCallers = "callers" // addresses of this cluster that reach it

	setReal  = "real"  // by peer: alias of a single address of ours → the address
	setAlias = "alias" // by peer: the reverse
	setKnown = "known" // by peer: pods of this node that it knows
	setHide  = "hide"  // alias of a peer that does not know all → the chain of those that it knows

	setProbers = "probers" // address of a peer's node that probes end to end → the chain of its peer

	// What peers may open; only those exist that are not empty.
	setPrefixes = "prefixes" // alias of a peer → the chain of the class of all its addresses
	setSources  = "sources"  // address of a peer → the chain of its class
	setOpenAll  = "openall"  // by class: destinations of which all ports are open
	setOpen     = "open"     // by class: destination, protocol and port
)

// Ports are the ports of a node that are open to its peers inside tunnels: Probe (UDP) and, for
// in-band peers, Relay (TCP).
type Ports struct{ Probe, Relay int }

// rules builds the table for a layout: a pure function. counted are the sets of the prefixes that it
// counts.
func rules(l plan.Layout, counted []ruleSet, device string, ports Ports) ruleset {
	b := rulesBuilder{l: l, device: device, ports: ports}
	b.out.sets = append(b.out.sets, counted...)
	b.prefixSets()
	b.relaySets()
	b.inboundChains()
	b.endChains()
	b.translationChains()
	b.directChains()
	b.entryChains()
	b.masqueradeChains()
	slices.SortFunc(b.out.sets, func(a, c ruleSet) int { return strings.Compare(a.name, c.name) })
	if len(b.l.Transit) > 0 {
		b.out.chains = append(b.out.chains, b.transit())
	}
	b.out.chains = append(b.out.chains,
		b.entering(), b.leaving(), b.source(), b.forward(), b.fromTunnel(), b.toTunnel(), b.input(), b.output())
	b.out.digest = b.out.sum()
	return b.out
}

type rulesBuilder struct {
	l      plan.Layout
	device string
	ports  Ports
	out    ruleset
}

func (b *rulesBuilder) has(set string, f family) bool {
	return slices.ContainsFunc(b.out.sets, func(s ruleSet) bool { return s.name == set+f.suffix })
}

// prefixSets makes the sets of prefixes and addresses.
func (b *rulesBuilder) prefixSets() {
	for _, f := range families() {
		for name, prefixes := range map[string][]netip.Prefix{
			setClosed: b.l.Closed, setRemote: b.l.Remote, setRefused: b.l.Remote, setHome: b.l.Home, setOwn: b.l.Own, setOthers: b.l.Others, setHosts: b.l.Hosts,
		} {
			s := ruleSet{name: name + f.suffix, key: f.addr, interval: true, counter: name == setRefused}
			for _, p := range f.only(prefixes) {
				s.elements = append(s.elements, interval(p, nil)...)
			}
			if len(s.elements) > 0 {
				b.out.sets = append(b.out.sets, s)
			}
		}
	}
	for _, f := range families() {
		s := ruleSet{name: setTransit + f.suffix, key: f.addr}
		for _, a := range b.l.Transit {
			if f.of(a) {
				s.elements = append(s.elements, nftables.SetElement{Key: a.AsSlice()})
			}
		}
		if len(s.elements) > 0 {
			b.out.sets = append(b.out.sets, s)
		}
	}
	overlays := ruleSet{name: setOverlay + "6", key: nftables.TypeIP6Addr}
	for _, p := range b.l.Peers {
		overlays.elements = append(overlays.elements, nftables.SetElement{Key: p.Overlay.AsSlice()})
	}
	errors4 := ruleSet{name: setErrors + "4", key: nftables.TypeICMPType}
	for _, t := range []byte{3, 11, 12} { // unreachable, time exceeded, parameter problem
		errors4.elements = append(errors4.elements, nftables.SetElement{Key: []byte{t}})
	}
	errors6 := ruleSet{name: setErrors + "6", key: nftables.TypeICMP6Type}
	for _, t := range []byte{1, 2, 3, 4} { // unreachable, too big, time exceeded, parameter problem
		errors6.elements = append(errors6.elements, nftables.SetElement{Key: []byte{t}})
	}
	b.out.sets = append(b.out.sets, overlays, errors4, errors6)
}

// relaySets makes the sets of those that reach the relay of the peer API, if the node has one.
func (b *rulesBuilder) relaySets() {
	var inBand []netip.Addr
	for _, p := range b.l.Peers {
		if p.InBand {
			inBand = append(inBand, p.Overlay)
		}
	}
	for name, addrs := range map[string][]netip.Addr{setInBand: inBand, setRelays: b.l.Relay.Listen, setCallers: b.l.Relay.From} {
		for _, f := range families() {
			s := ruleSet{name: name + f.suffix, key: f.addr}
			for _, a := range addrs {
				if f.of(a) {
					s.elements = append(s.elements, nftables.SetElement{Key: a.AsSlice()})
				}
			}
			if len(s.elements) > 0 {
				b.out.sets = append(b.out.sets, s)
			}
		}
	}
}

// inboundChains makes a chain for each class of sources, with the destinations that are open to it, and
// the maps that lead to the chains by source. Adding or removing a source or a
// destination changes one element; adding or removing a class changes the structure.
//
// A class is a chain instead of data for a lookup of class and
// destination together, because programs that list rules cannot show such a lookup.
func (b *rulesBuilder) inboundChains() {
	in := b.l.Inbound
	for _, f := range families() {
		byClass := map[plan.Class][]plan.Opening{}
		for _, o := range in.Open {
			if f.of(o.Addr) {
				byClass[o.Class] = append(byClass[o.Class], o)
			}
		}
		for _, class := range slices.SortedFunc(maps.Keys(byClass), func(a, b plan.Class) int { return slices.Compare(a[:], b[:]) }) {
			b.classChain(f, class, byClass[class])
		}
		prefixes := ruleSet{name: setPrefixes + f.suffix, key: f.addr, interval: true, verdicts: true}
		for _, p := range in.Prefixes {
			if f.of(p.Prefix.Addr()) && len(byClass[p.Class]) > 0 {
				prefixes.elements = append(prefixes.elements, interval(p.Prefix, f.jump(p.Class))...)
			}
		}
		sources := ruleSet{name: setSources + f.suffix, key: f.addr, verdicts: true}
		for _, s := range in.Sources {
			if f.of(s.Source) && len(byClass[s.Class]) > 0 {
				sources.elements = append(sources.elements, nftables.SetElement{Key: s.Source.AsSlice(), VerdictData: f.jump(s.Class)})
			}
		}
		for _, s := range []ruleSet{prefixes, sources} {
			if len(s.elements) > 0 {
				b.out.sets = append(b.out.sets, s)
			}
		}
	}
}

// classChain accepts packets to the destinations that are open to a class.
func (b *rulesBuilder) classChain(f family, class plan.Class, open []plan.Opening) {
	all := ruleSet{name: setOpenAll + f.classed(class), key: f.addr}
	ports := ruleSet{name: setOpen + f.classed(class), key: nftables.MustConcatSetType(f.addr, nftables.TypeInetProto, nftables.TypeInetService)}
	for _, o := range open {
		if o.Protocol == 0 {
			all.elements = append(all.elements, nftables.SetElement{Key: o.Addr.AsSlice()})
			continue
		}
		// Each part of a key is padded to four bytes.
		key := append(o.Addr.AsSlice(), byte(o.Protocol), 0, 0, 0, byte(o.Port>>8), byte(o.Port), 0, 0)
		ports.elements = append(ports.elements, nftables.SetElement{Key: key})
	}
	c := ruleChain{name: f.jump(class).Chain}
	if len(ports.elements) > 0 {
		b.out.sets = append(b.out.sets, ports)
		c.add("exposed on a port", f.nfproto(), f.loadDest(), []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: f.protocolRegister}},
			load(expr.PayloadBaseTransportHeader, 2, 2, f.portRegister), lookup(ports.name), accept())
	}
	if len(all.elements) > 0 {
		b.out.sets = append(b.out.sets, all)
		c.add("exposed on all ports", f.nfproto(), f.loadDest(), lookup(all.name), accept())
	}
	b.out.chains = append(b.out.chains, c)
}

// endChains makes a chain for each peer whose nodes probe this one end to end, and the maps that
// lead to them. It accepts only such probes to the node's own addresses, and limits their rate so
// that those of other peers find room in the socket's buffer.
func (b *rulesBuilder) endChains() {
	for _, f := range families() {
		probers := ruleSet{name: setProbers + f.suffix, key: f.addr, verdicts: true}
		for _, e := range b.l.Ends {
			c := ruleChain{name: "probed" + f.peerSuffix(e.Cluster)}
			for _, s := range e.Sources {
				if f.of(s) {
					c.add("probed by nodes of peer "+e.Cluster, f.nfproto(), f.loadDest(), []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: s.AsSlice()}},
						toPort(unix.IPPROTO_UDP, b.ports.Probe),
						[]expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: plan.MaxEndProbes, Unit: expr.LimitTimeSecond, Burst: plan.MaxEndProbes}}, accept())
				}
			}
			some := len(probers.elements)
			for _, a := range e.Probers {
				if f.of(a) && len(c.rules) > 0 {
					probers.elements = append(probers.elements, nftables.SetElement{Key: a.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: c.name}})
				}
			}
			if len(probers.elements) > some {
				b.out.chains = append(b.out.chains, c)
			}
		}
		if len(probers.elements) > 0 {
			b.out.sets = append(b.out.sets, probers)
		}
	}
}

// classed returns the end of a name that belongs to a class. Peers influence the
// classes, so the digest is not shortened, against collisions.
func (f family) classed(c plan.Class) string { return f.suffix + "-" + hex.EncodeToString(c[:]) }

func (f family) jump(c plan.Class) *expr.Verdict {
	return &expr.Verdict{Kind: expr.VerdictJump, Chain: "exposed" + f.classed(c)}
}

// translationChains makes two chains for each peer carried here, and the maps
// that lead to them by the peer's aliases.
func (b *rulesBuilder) translationChains() {
	for _, f := range families() {
		enter := ruleSet{name: setEnter + f.suffix, key: f.addr, interval: true, verdicts: true}
		leave := ruleSet{name: setLeave + f.suffix, key: f.addr, interval: true, verdicts: true}
		for _, t := range b.l.Translations {
			aliases := f.only(t.Remote)
			if len(aliases) == 0 {
				continue
			}
			name := f.peerSuffix(t.Cluster)
			for _, a := range aliases {
				enter.elements = append(enter.elements, interval(a, &expr.Verdict{Kind: expr.VerdictJump, Chain: "enter" + name})...)
				leave.elements = append(leave.elements, interval(a, &expr.Verdict{Kind: expr.VerdictGoto, Chain: "leave" + name})...)
			}
			b.out.chains = append(b.out.chains, b.translation(f, t, name)...)
		}
		if len(enter.elements) > 0 {
			b.out.sets = append(b.out.sets, enter, leave)
		}
	}
}

// translation makes the chains of a peer, and the maps of the single addresses that it knows.
func (b *rulesBuilder) translation(f family, t plan.Translation, name string) []ruleChain {
	in, out := ruleChain{name: "enter" + name}, ruleChain{name: "leave" + name}
	in.add(received.of(t.Cluster), counter())
	out.add(sent.of(t.Cluster), counter())
	reals, names := ruleSet{name: setReal + name, key: f.addr, data: true}, ruleSet{name: setAlias + name, key: f.addr, data: true}
	var entering, leaving []chainRule
	var toReal, toAlias [][2]netip.Prefix
	for _, m := range t.Local {
		switch {
		case !f.of(m.Real.Addr()):
		case m.Real.IsSingleIP():
			own, alias := m.Real.Addr().AsSlice(), m.Alias.Addr().AsSlice()
			reals.elements = append(reals.elements, nftables.SetElement{Key: alias, Val: own})
			names.elements = append(names.elements, nftables.SetElement{Key: own, Val: alias})
		default:
			entering = append(entering, f.translate(f.dest, m.Alias, m.Real, expr.VerdictReturn))
			leaving = append(leaving, f.translate(f.source, m.Real, m.Alias, expr.VerdictAccept))
			toReal, toAlias = append(toReal, [2]netip.Prefix{m.Alias, m.Real}), append(toAlias, [2]netip.Prefix{m.Real, m.Alias})
		}
	}
	real, alias := "", ""
	if len(reals.elements) > 0 {
		b.out.sets = append(b.out.sets, reals, names)
		real, alias = reals.name, names.name
		entering = append(entering, f.translateSingle(f.dest, real, expr.VerdictReturn))
		leaving = append(leaving, f.translateSingle(f.source, alias, expr.VerdictAccept))
	}
	for _, c := range []*ruleChain{&in, &out} {
		c.add("errors", f.nfproto(), f.isError(), []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "errors-" + c.name}})
	}
	in.rules = append(append(in.rules, entering...), drop(NotOurs, t.Cluster))
	out.rules = append(append(out.rules, leaving...), drop(NoAlias, t.Cluster))
	return []ruleChain{f.errors("errors-"+in.name, f.source, toReal, real), f.errors("errors-"+out.name, f.dest, toAlias, alias), in, out}
}

// peerSuffix is the end of a name that belongs to a peer. Peers influence their IDs by their keys, so the
// digest has as many bits as an ID, against collisions. With all of its bits elementsPerMessage elements
// would hardly fit.
func (f family) peerSuffix(cluster string) string {
	const bits = 160
	sum := sha256.Sum256([]byte(cluster))
	return f.suffix + "-" + hex.EncodeToString(sum[:bits/8])
}

// masqueradeChains makes a chain for each peer that does not know all pods of this node, in
// which those that it knows keep their address, and the map that leads to the chains by the
// peer's aliases.
func (b *rulesBuilder) masqueradeChains() {
	for _, f := range families() {
		i := slices.IndexFunc(b.l.Sources, f.of)
		if i < 0 {
			continue // packets of pods that a peer does not know are dropped where they would leave
		}
		hide := ruleSet{name: setHide + f.suffix, key: f.addr, interval: true, verdicts: true}
		for _, m := range b.l.Masquerades {
			if !f.of(m.Remote[0].Addr()) {
				continue
			}
			name := f.peerSuffix(m.Cluster)
			for _, a := range m.Remote {
				hide.elements = append(hide.elements, interval(a, &expr.Verdict{Kind: expr.VerdictJump, Chain: "hide" + name})...)
			}
			c, known := ruleChain{name: "hide" + name}, ruleSet{name: setKnown + name, key: f.addr, interval: true}
			for _, p := range m.Known {
				known.elements = append(known.elements, interval(p, nil)...)
			}
			if len(known.elements) > 0 {
				b.out.sets = append(b.out.sets, known)
				c.add("known to peer "+m.Cluster, f.nfproto(), f.loadSource(), lookup(known.name), []expr.Any{verdict(expr.VerdictReturn)})
			}
			c.add("not known to peer "+m.Cluster, f.sourceNAT(b.l.Sources[i]))
			b.out.chains = append(b.out.chains, c)
		}
		if len(hide.elements) > 0 {
			b.out.sets = append(b.out.sets, hide)
		}
	}
}

// sourceNAT gives a connection a source.
func (f family) sourceNAT(a netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: unix.NFT_REG_1, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.number), RegAddrMin: unix.NFT_REG_1},
	}
}

// entering is the first chain that packets pass: before connection
// tracking.
func (b *rulesBuilder) entering() ruleChain {
	c := ruleChain{name: "entering", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityRaw}
	c.add("not from the tunnel", b.iif(expr.CmpOpNeq), accept())
	for _, f := range families() {
		if b.has(setEntered, f) {
			c.add("enters here from a node of a peer", f.isEntryForm(), f.loadSource(), b.vmap(setEntered+f.suffix))
		}
		if b.has(setForms, f) {
			c.add("directly from a node of a peer", f.nfproto(), f.loadSource(), b.vmap(setForms+f.suffix))
		}
		if b.has(setEnter, f) {
			c.add("to our real addresses", f.nfproto(), f.loadSource(), b.vmap(setEnter+f.suffix))
		}
	}
	for _, f := range families() {
		if b.has(setRemote, f) && b.has(setOthers, f) {
			c.add("carried to a node", f.from(setRemote), f.to(setOthers), []expr.Any{&expr.Notrack{}})
			c.add("carried for a node", f.from(setOthers), f.to(setRemote), []expr.Any{&expr.Notrack{}})
		}
		if b.has(setCounted, f) && b.has(setOthers, f) { // so that both ends know how much would enter here
			c.add("is carried to a node", f.to(setOthers), f.from(setCounted))
			c.add("is carried for a node", f.from(setOthers), f.to(setCounted))
		}
		if b.has(setCounted, f) && b.has(setOwn, f) {
			c.add("came through carriers", f.to(setOwn), f.from(setCounted))
		}
	}
	return c
}

// leaving is the last chain that packets pass: after all source NAT.
func (b *rulesBuilder) leaving() ruleChain {
	c := ruleChain{name: "leaving", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting, priority: 300}
	for _, f := range families() {
		for _, set := range []string{setRemote, setClosed} {
			if b.has(set, f) {
				c.add(string(InClear), b.oif(expr.CmpOpNeq), f.to(set), countedDrop())
			}
		}
	}
	c.add("not into the tunnel", b.oif(expr.CmpOpNeq), accept())
	for _, f := range families() {
		if b.has(setNodes, f) {
			c.add("directly to a node of a peer", f.nfproto(), f.loadDest(), b.vmap(setNodes+f.suffix))
		}
		if b.has(setCounted, f) && b.has(setOwn, f) {
			c.add("goes through carriers", f.from(setOwn), f.to(setCounted))
		}
		if b.has(setEntries, f) { // such packets count as carried
			c.add("to a gateway of a peer", f.nfproto(), f.loadDest(), b.vmap(setEntries+f.suffix))
		}
		if b.has(setLeave, f) {
			c.add("to our aliases", f.nfproto(), f.loadDest(), b.vmap(setLeave+f.suffix))
		}
	}
	return c
}

// clamp limits the segment size of TCP, in both directions, to the MTU of the routes of both ends, in
// SYN and SYN-ACK.
func (b *rulesBuilder) clamp(c *ruleChain) {
	for _, device := range [][]expr.Any{b.iif(expr.CmpOpEq), b.oif(expr.CmpOpEq)} {
		c.add("segments fit the way", device, l4proto(unix.IPPROTO_TCP),
			load(expr.PayloadBaseTransportHeader, 13, 1, unix.NFT_REG_1), []expr.Any{
				&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 1, Mask: []byte{0x06}, Xor: []byte{0}}, // SYN, RST
				&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{0x02}},
				&expr.Rt{Register: unix.NFT_REG_1, Key: expr.RtTCPMSS},
				&expr.Byteorder{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Op: expr.ByteorderHton, Len: 2, Size: 2},
				&expr.Exthdr{SourceRegister: unix.NFT_REG_1, Type: 2, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
			})
	}
}

// source comes before the chains of CNI and kube-proxy, at priority 100.
// Only the first source NAT of a connection takes effect, so translating a source
// to itself keeps theirs from changing it.
func (b *rulesBuilder) source() ruleChain {
	c := ruleChain{name: "source", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPostrouting, priority: 90}
	for _, f := range families() {
		if !b.has(setRemote, f) {
			continue
		}
		keep := []expr.Any{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.number), RegAddrMin: unix.NFT_REG_1}}
		if b.has(setHide, f) {
			c.add("pods that a peer does not know", b.oif(expr.CmpOpEq), f.from(setOwn), f.loadDest(), b.vmap(setHide+f.suffix))
		}
		if b.has(setOwn, f) {
			c.add("pods keep their address", b.oif(expr.CmpOpEq), f.to(setRemote), f.from(setOwn), f.loadSource(), keep)
		}
		if b.has(setHosts, f) {
			c.add("hosts answer to this node", f.from(setRemote), f.to(setHosts), []expr.Any{&expr.Masq{}})
		}
		c.add("peers keep their alias", f.from(setRemote), f.loadSource(), keep)
		for _, s := range b.l.Sources {
			if !f.of(s) {
				continue
			}
			match := []expr.Any{}
			if b.has(setHome, f) {
				match = slices.Concat(f.loadSource(), []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: setHome + f.suffix, Invert: true}})
			}
			c.add("the node and those it answers for", b.oif(expr.CmpOpEq), f.to(setRemote), match, f.sourceNAT(s))
		}
	}
	return c
}

func (b *rulesBuilder) forward() ruleChain {
	c := ruleChain{name: "forward", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: -5}
	b.clamp(&c)
	c.add("from the tunnel", b.iif(expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: "from-tunnel"}})
	c.add("into the tunnel", b.oif(expr.CmpOpEq), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: "to-tunnel"}})
	return c
}

// fromTunnel accepts only answers and listed flows.
func (b *rulesBuilder) fromTunnel() ruleChain {
	c := ruleChain{name: "from-tunnel"}
	for _, f := range families() {
		if b.has(setRemote, f) && b.has(setOthers, f) {
			c.add("carried to a node, which decides", b.oif(expr.CmpOpEq), f.from(setRemote), f.to(setOthers), accept())
			c.add("carried for a node", b.oif(expr.CmpOpEq), f.from(setOthers), f.to(setRemote), accept())
		}
	}
	for _, f := range families() {
		if b.has(setTransit, f) {
			c.add("between two peers", b.oif(expr.CmpOpEq), f.from(setTransit), f.to(setTransit), []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: "transit"}})
		}
	}
	c.add(string(Transit), b.oif(expr.CmpOpEq), countedDrop())
	b.exposure(&c)
	b.refuse(&c)
	return c
}

// transit accepts what may pass from one peer to another: flows that are listed for the source and the
// destination together, and answers to them. Classes of whole prefixes open no flows to a third.
func (b *rulesBuilder) transit() ruleChain {
	c := ruleChain{name: "transit"}
	c.add("answers", ctState(expr.CtStateBitESTABLISHED), reply(), accept())
	for _, f := range families() {
		c.add("errors about known flows", f.nfproto(), l4proto(f.icmp), ctState(expr.CtStateBitRELATED), accept())
		if b.has(setTransit, f) && b.has(setSources, f) {
			c.add("exposed to some", f.nfproto(), f.loadSource(), b.vmap(setSources+f.suffix))
		}
	}
	c.add(string(Transit), countedDrop())
	return c
}

// exposure accepts answers to flows that the local side opened and flows that
// are listed. Answers are recognised by their direction: a flow that the peer
// opened is looked up again for each packet, so that closing it cuts it. For any
// number of peers that takes a lookup of the source, which leads to the chain of
// its class, and one or two there.
func (b *rulesBuilder) exposure(c *ruleChain) {
	c.add("answers", ctState(expr.CtStateBitESTABLISHED), reply(), accept())
	for _, f := range families() {
		c.add("errors about known flows", f.nfproto(), l4proto(f.icmp), ctState(expr.CtStateBitRELATED), accept())
	}
	for _, f := range families() {
		for _, sources := range []string{setPrefixes, setSources} {
			if b.has(sources, f) {
				c.add("exposed to some", f.nfproto(), f.loadSource(), b.vmap(sources+f.suffix))
			}
		}
	}
}

// refuse drops packets that are not exposed. Those of peers are counted by their aliases.
func (b *rulesBuilder) refuse(c *ruleChain) {
	for _, f := range families() {
		if b.has(setRefused, f) {
			c.add("of peers, "+string(NotExposed), f.from(setRefused), []expr.Any{verdict(expr.VerdictDrop)})
		}
	}
	c.rules = append(c.rules, drop(NotExposed, ""))
}

// reply matches answers to the side that opened the flow.
func reply() []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: unix.NFT_REG_1, Key: expr.CtKeyDIRECTION},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{1}},
	}
}

// toTunnel lets only packets of pods, and answers of Services and hosts, pass.
func (b *rulesBuilder) toTunnel() ruleChain {
	c := ruleChain{name: "to-tunnel"}
	six := ipv6()
	c.add(string(ToOverlay), six.to(setOverlay), countedDrop())
	for _, f := range families() {
		if b.has(setHome, f) {
			c.add("from pods", f.from(setHome), accept())
		}
		if b.has(setHosts, f) {
			c.add("answers of hosts", f.from(setHosts), ctState(expr.CtStateBitESTABLISHED), reply(), accept())
			c.add("errors of hosts about known flows", f.from(setHosts), l4proto(f.icmp), ctState(expr.CtStateBitRELATED), accept())
		}
	}
	c.add("through a Service of this node", []expr.Any{
		&expr.Ct{Register: unix.NFT_REG_1, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(1 << 5), Xor: make([]byte, 4)}, // IPS_DST_NAT
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: make([]byte, 4)},
	}, accept())
	c.rules = append(c.rules, drop(NotFromPod, ""))
	return c
}

// input guards the node itself.
func (b *rulesBuilder) input() ruleChain {
	c := ruleChain{name: "input", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookInput, priority: -5}
	f := ipv6()
	overlay := slices.Concat(f.nfproto(), f.loadDest(), []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: b.l.Overlay.AsSlice()}})
	c.add(string(FromNetwork), overlay, b.iif(expr.CmpOpNeq), match(expr.MetaKeyIIFNAME, expr.CmpOpNeq, ifname("lo")), countedDrop())
	b.callers(&c)
	c.add("not from the tunnel", b.iif(expr.CmpOpNeq), accept())
	c.add("probes", overlay, f.from(setOverlay), toPort(unix.IPPROTO_UDP, b.ports.Probe), accept())
	c.add("ping", overlay, f.from(setOverlay), l4proto(f.icmp), accept())
	if b.has(setInBand, f) {
		c.add("the peer API", overlay, f.from(setInBand), toPort(unix.IPPROTO_TCP, b.ports.Relay), accept())
	}
	for _, f := range families() {
		if b.has(setProbers, f) {
			c.add("end-to-end probes", f.nfproto(), l4proto(unix.IPPROTO_UDP), f.loadSource(), b.vmap(setProbers+f.suffix))
		}
	}
	b.exposure(&c)
	b.refuse(&c)
	return c
}

// callers accepts only this cluster's own agent and nodes at the relay.
func (b *rulesBuilder) callers(c *ruleChain) {
	for _, f := range families() {
		if !b.has(setRelays, f) {
			continue
		}
		others := []expr.Any{}
		if b.has(setCallers, f) {
			others = slices.Concat(f.loadSource(), []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: setCallers + f.suffix, Invert: true}})
		}
		c.add(string(ToRelay), f.to(setRelays), toPort(unix.IPPROTO_TCP, b.ports.Relay), others, countedDrop())
	}
}

// output keeps the node from sending ICMP redirects to pods elsewhere. The packets that it carries
// enter and leave by the same device, so the kernel assumes that the sender could reach the next hop
// itself; but only this node knows the way. The device's own setting cannot stop that: the
// one for all devices overrides it.
func (b *rulesBuilder) output() ruleChain {
	c := ruleChain{name: "output", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookOutput, priority: -5}
	for _, f := range families() {
		for _, set := range []string{setRemote, setOthers} {
			if b.has(set, f) {
				c.add("no redirects for what is carried", f.nfproto(), l4proto(f.icmp), load(expr.PayloadBaseTransportHeader, 0, 1, unix.NFT_REG_1),
					[]expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{f.redirect}}}, f.to(set), countedDrop())
			}
		}
	}
	return c
}

func (c *ruleChain) add(text string, parts ...[]expr.Any) {
	c.rules = append(c.rules, chainRule{text: text, exprs: slices.Concat(parts...)})
}

// sum is a digest of a chain and its rules.
func (c ruleChain) sum() string {
	h := sha256.New()
	fmt.Fprintf(h, "chain %s %s %d\n", c.name, c.kind, c.priority)
	for _, r := range c.rules {
		fmt.Fprintf(h, "rule %s\n", r.text)
		for _, e := range r.exprs {
			// Marshalling never fails for the expressions used here; if it did,
			// the batch would fail in the same way with an error.
			data, _ := expr.Marshal(unix.NFPROTO_INET, e)
			fmt.Fprintf(h, "%x\n", data)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// sum is a digest of all of it.
func (r ruleset) sum() string {
	h := sha256.New()
	for _, s := range r.sets {
		if s.digest == "" {
			s.digest = s.sum()
		}
		fmt.Fprintln(h, s.digest)
	}
	for _, c := range r.chains {
		fmt.Fprintln(h, c.sum())
	}
	return string(h.Sum(nil))
}

// sum is a digest of a set and its elements.
func (s ruleSet) sum() string {
	h := sha256.New()
	fmt.Fprintf(h, "set %s\n", s.name)
	for _, e := range s.elements {
		fmt.Fprintf(h, "%q\n", s.identity(e))
	}
	return string(h.Sum(nil))
}

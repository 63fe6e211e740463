package firewall

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// Sets and maps for packets that go directly between the nodes of two pods.
const (
	setForms   = "forms"   // direct form of a peer's aliases → the chain that receives directly
	setNodes   = "nodes"   // alias of a pod on a node → the chain that sends directly
	setEntered = "entered" // direct form of a peer's aliases → the chain of what enters here
	setEntries = "entries" // alias of a peer → the chain that sends to a gateway of it
	setCounted = "counted" // aliases of pods on nodes that can be reached directly, with counters
)

// directChains makes two chains for each peer with nodes that are reached directly, and the maps
// that lead to them. The nodes to which packets are sent directly are elements of a map instead of
// rules: that is quick to change, and does not touch the traffic with other nodes.
func (b *rulesBuilder) directChains() {
	for _, f := range families() {
		forms := ruleSet{name: setForms + f.suffix, key: f.addr, interval: true, verdicts: true}
		nodes := ruleSet{name: setNodes + f.suffix, key: f.addr, interval: true, verdicts: true}
		for _, d := range b.l.Direct {
			if len(f.only(d.Remote)) == 0 {
				continue
			}
			name := f.peerSuffix(d.Cluster)
			for _, alias := range f.only(d.Remote) {
				in := ruleChain{name: "direct-in" + name + "-" + hex.EncodeToString(alias.Addr().AsSlice()[:1])}
				forms.elements = append(forms.elements, interval(plan.DirectForm(alias), &expr.Verdict{Kind: expr.VerdictGoto, Chain: in.name})...)
				if b.hasChain(in.name) {
					continue // of another alias with the same first bits
				}
				for _, m := range d.Local {
					if f.of(m.Real.Addr()) {
						in.rules = append(in.rules, f.directIn(d.Cluster, m, alias)...)
					}
				}
				in.rules = append(in.rules, drop(NotHere, d.Cluster))
				b.out.chains = append(b.out.chains, in)
			}
			out := ruleChain{name: "direct-out" + name}
			for _, m := range d.Local {
				if f.of(m.Real.Addr()) {
					out.rules = append(out.rules, f.directOut(d.Cluster, m)...)
				}
			}
			b.out.chains = append(b.out.chains, out)
			for _, a := range f.only(d.Open) {
				nodes.elements = append(nodes.elements, interval(a, &expr.Verdict{Kind: expr.VerdictJump, Chain: out.name})...)
			}
		}
		if len(forms.elements) > 0 {
			b.out.sets = append(b.out.sets, forms, nodes)
		}
	}
}

func (b *rulesBuilder) hasChain(name string) bool {
	return slices.ContainsFunc(b.out.chains, func(c ruleChain) bool { return c.name == name })
}

// directOut gives a packet of a pod here both addresses in their direct form: its own as the peer
// knows it, and that of the other pod.
func (f family) directOut(cluster string, m plan.Mapping) []chainRule {
	return f.out(cluster, m, plan.DirectBits4, plan.DirectByte6)
}

// out does that with the first bits, or the first byte, of the destination.
func (f family) out(cluster string, m plan.Mapping, bits4, byte6 byte) []chainRule {
	form := plan.DirectForm(m.Alias)
	done := f.inPrefix(expr.PayloadBaseNetworkHeader, f.source, m.Real)
	if f.size == 4 {
		done = slices.Concat(done, f.rewriteBoth(
			slices.Concat(hostMask(form), []byte{^byte(plan.DirectBits4), 255, 255, 255}),
			slices.Concat(form.Addr().AsSlice(), []byte{bits4, 0, 0, 0})))
	} else {
		done = slices.Concat(done, f.rewrite(f.source, hostMask(form), form.Addr().AsSlice()), f.rewrite(f.dest, []byte{0, 255}, []byte{byte6, 0}))
	}
	return f.directly(sentDirectly.of(cluster), fmt.Sprintf("%v is %v, directly", m.Real, form), f.source, f.dest, m.Real, m.Alias, done)
}

// directIn undoes that for a packet to a pod here, from an alias of a peer.
func (f family) directIn(cluster string, m plan.Mapping, remote netip.Prefix) []chainRule {
	form, first := plan.DirectForm(m.Alias), remote.Addr().AsSlice()[0]
	done := f.inPrefix(expr.PayloadBaseNetworkHeader, f.dest, form)
	if f.size == 4 {
		done = slices.Concat(done, f.rewriteBoth(
			slices.Concat([]byte{^byte(plan.DirectBits4), 255, 255, 255}, hostMask(m.Real)),
			slices.Concat([]byte{first & plan.DirectBits4, 0, 0, 0}, m.Real.Addr().AsSlice())))
	} else {
		done = slices.Concat(done, f.rewrite(f.dest, hostMask(m.Real), m.Real.Addr().AsSlice()), f.rewrite(f.source, []byte{0, 255}, []byte{first, 0}))
	}
	return f.directly(receivedDirectly.of(cluster), fmt.Sprintf("%v is %v, directly", form, m.Real), f.dest, f.source, m.Alias, m.Real, done)
}

// directly rewrites ICMP errors, in which the quoted packet has no direct form, and then
// packets, which are counted.
func (f family) directly(count, text string, offset, quoted uint32, from, to netip.Prefix, done []expr.Any) []chainRule {
	out := []chainRule{{text: count, exprs: slices.Concat(f.nfproto(), done, counter(), accept())}}
	if from == to {
		return out
	}
	at := from
	if offset == f.dest {
		at = plan.DirectForm(from)
	}
	return append([]chainRule{f.quote(text, offset, quoted, at, from, to)}, out...)
}

// rewriteBoth rewrites the source and the destination of an IPv4 packet, which lie side by side.
func (f family) rewriteBoth(mask, xor []byte) []expr.Any { return f.rewrite(f.source, mask, xor) }

// rewrite changes bytes of the network header.
func (f family) rewrite(offset uint32, mask, xor []byte) []expr.Any {
	size := uint32(len(mask))
	return slices.Concat(load(expr.PayloadBaseNetworkHeader, offset, size, unix.NFT_REG_1), []expr.Any{
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: size, Mask: mask, Xor: xor},
		&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
			Offset: offset, Len: size, CsumType: expr.CsumTypeInet, CsumOffset: f.sumAt(offset), CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
		},
	})
}

// hostMask returns the mask of the host part of a prefix.
func hostMask(p netip.Prefix) []byte {
	keep := net.CIDRMask(p.Bits(), p.Addr().BitLen())
	for i := range keep {
		keep[i] = ^keep[i]
	}
	return keep
}

// countedSets returns the sets of the prefixes that are counted. They depend on the prefixes alone, which
// may be many, and seldom change.
func countedSets(prefixes []netip.Prefix) []ruleSet {
	var out []ruleSet
	for _, f := range families() {
		s := ruleSet{name: setCounted + f.suffix, key: f.addr, interval: true, counter: true}
		for _, p := range f.only(prefixes) {
			s.elements = append(s.elements, interval(p, nil)...)
		}
		if len(s.elements) > 0 {
			s.digest = s.sum()
			out = append(out, s)
		}
	}
	return out
}

// Counts returns the bytes of traffic with each counted prefix through carriers, by the prefix's first
// address.
func Counts() (map[netip.Addr]uint64, error) {
	out := map[netip.Addr]uint64{}
	err := eachElement(setCounted, func(a netip.Addr, e nftables.SetElement) {
		if e.Counter != nil {
			out[a] = e.Counter.Bytes
		}
	})
	return out, err
}

// Open returns the prefixes to which packets are sent directly, by the first address of each.
func Open() (map[netip.Addr]bool, error) {
	out := map[netip.Addr]bool{}
	err := eachElement(setNodes, func(a netip.Addr, _ nftables.SetElement) { out[a] = true })
	return out, err
}

// eachElement calls a function with each interval of a set of both families.
func eachElement(name string, do func(netip.Addr, nftables.SetElement)) error {
	c, err := nftables.New(nftables.WithSockOptions(buffers))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	for _, f := range families() {
		set, err := c.GetSetByName(table(), name+f.suffix)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		var elements []nftables.SetElement
		if err == nil {
			elements, err = c.GetSetElements(set)
		}
		if err != nil {
			return fmt.Errorf("read set %s of nftables: %w", name+f.suffix, err)
		}
		for _, e := range elements {
			if a, ok := netip.AddrFromSlice(e.Key); ok && !e.IntervalEnd {
				do(a, e)
			}
		}
	}
	return nil
}

package firewall

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// entryChains makes, for each peer, a chain that sends packets to a gateway of it in entry form, and on
// a gateway one that makes such packets of the peer's nodes the same as if the peer's gateway had sent them:
// all rules for carried packets decide on them then.
func (b *rulesBuilder) entryChains() {
	for _, f := range families() {
		entered := ruleSet{name: setEntered + f.suffix, key: f.addr, interval: true, verdicts: true}
		entries := ruleSet{name: setEntries + f.suffix, key: f.addr, interval: true, verdicts: true}
		for _, d := range b.l.Direct {
			name := f.peerSuffix(d.Cluster)
			if enter := f.only(d.Enter); len(enter) > 0 {
				out := ruleChain{name: "entry-out" + name}
				for _, m := range d.Local {
					if f.of(m.Real.Addr()) {
						out.rules = append(out.rules, f.out(d.Cluster, m, plan.EntryBits4, plan.EntryByte6)...)
					}
				}
				b.out.chains = append(b.out.chains, out)
				for _, a := range enter {
					entries.elements = append(entries.elements, interval(a, &expr.Verdict{Kind: expr.VerdictJump, Chain: out.name})...)
				}
			}
			if len(d.Entry) == 0 {
				continue
			}
			for _, alias := range f.only(d.Remote) {
				in := f.entryIn(d, alias, name)
				entered.elements = append(entered.elements, interval(plan.DirectForm(alias), &expr.Verdict{Kind: expr.VerdictJump, Chain: in.name})...)
				if !b.hasChain(in.name) {
					b.out.chains = append(b.out.chains, in)
				}
			}
		}
		for _, s := range []ruleSet{entered, entries} {
			if len(s.elements) > 0 {
				b.out.sets = append(b.out.sets, s)
			}
		}
	}
}

// entryIn makes the chain that undoes both forms for packets from an alias of a peer. What is not for an alias
// of the peer for this cluster ends here.
func (f family) entryIn(d plan.DirectPeer, alias netip.Prefix, name string) ruleChain {
	first := alias.Addr().AsSlice()[0]
	in := ruleChain{name: "entry-in" + name + "-" + hex.EncodeToString([]byte{first})}
	for _, m := range d.Entry {
		if !f.of(m.Real.Addr()) {
			continue
		}
		form, own := plan.EntryForm(m.Alias), m.Alias.Addr().AsSlice()[0]
		done := f.inPrefix(expr.PayloadBaseNetworkHeader, f.dest, form)
		if f.size == 4 {
			keep := []byte{^byte(plan.DirectBits4), 255, 255, 255}
			done = slices.Concat(done, f.rewriteBoth(slices.Concat(keep, keep), []byte{first & plan.DirectBits4, 0, 0, 0, own & plan.DirectBits4, 0, 0, 0}))
		} else {
			done = slices.Concat(done, f.rewrite(f.source, []byte{0, 255}, []byte{first, 0}), f.rewrite(f.dest, []byte{0, 255}, []byte{own, 0}))
		}
		in.add(fmt.Sprintf("%v is %v, which enters here", form, m.Alias), f.nfproto(), done, []expr.Any{verdict(expr.VerdictReturn)})
	}
	in.rules = append(in.rules, drop(NotOurs, d.Cluster))
	return in
}

// isEntryForm matches packets with a destination in entry form.
func (f family) isEntryForm() []expr.Any {
	first := load(expr.PayloadBaseNetworkHeader, f.dest, 1, unix.NFT_REG_1)
	if f.size != 4 {
		return slices.Concat(f.nfproto(), first, []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{plan.EntryByte6}}})
	}
	return slices.Concat(f.nfproto(), first, []expr.Any{
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 1, Mask: []byte{plan.DirectBits4}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{plan.EntryBits4}},
	})
}

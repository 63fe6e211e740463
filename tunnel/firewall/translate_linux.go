package firewall

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// translate rewrites one address of a packet from one prefix to another.
func (f family) translate(offset uint32, from, to netip.Prefix, end expr.VerdictKind) chainRule {
	done := chainRule{text: fmt.Sprintf("%v is %v", from, to), exprs: slices.Concat(f.nfproto(), f.inPrefix(expr.PayloadBaseNetworkHeader, offset, from))}
	if from.Masked() != to.Masked() {
		done.exprs = slices.Concat(done.exprs, f.rewrite(offset, hostMask(to), to.Masked().Addr().AsSlice()))
	}
	done.exprs = append(done.exprs, verdict(end))
	return done
}

// translateSingle does the same by a map of single addresses.
func (f family) translateSingle(offset uint32, set string, end expr.VerdictKind) chainRule {
	return chainRule{text: "single addresses", exprs: slices.Concat(
		f.nfproto(), load(expr.PayloadBaseNetworkHeader, offset, f.size, unix.NFT_REG_1), []expr.Any{
			&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set, DestRegister: unix.NFT_REG_1, IsDestRegSet: true},
			&expr.Payload{
				OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
				Offset: offset, Len: f.size, CsumType: expr.CsumTypeInet, CsumOffset: f.sumAt(offset), CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
			}, verdict(end),
		},
	)}
}

// quote rewrites an address in a packet that is quoted in an ICMP error, if an address of the error
// itself is in a prefix.
func (f family) quote(text string, offset, quoted uint32, at, from, to netip.Prefix) chainRule {
	return chainRule{text: text + " in errors", exprs: slices.Concat(
		f.nfproto(), f.inPrefix(expr.PayloadBaseNetworkHeader, offset, at), f.isError(), f.quoted(quoted, from, to),
	)}
}

// isError matches ICMP errors.
func (f family) isError() []expr.Any {
	return slices.Concat(l4proto(f.icmp), load(expr.PayloadBaseTransportHeader, 0, 1, unix.NFT_REG_1), lookup(setErrors+f.suffix))
}

// errors makes a chain that rewrites the packets quoted in ICMP errors of any node: the address of
// a router is in another prefix than those of the quoted packet. No packet is rewritten twice.
func (f family) errors(name string, quoted uint32, mappings [][2]netip.Prefix, singles string) ruleChain {
	c := ruleChain{name: name}
	for _, m := range mappings {
		var change []expr.Any
		if m[0].Masked() == m[1].Masked() {
			change = f.inPrefix(expr.PayloadBaseTransportHeader, icmpHeader+quoted, m[0])
		} else {
			change = f.quoted(quoted, m[0], m[1])
		}
		c.add(fmt.Sprintf("%v is %v in errors", m[0], m[1]), f.nfproto(), change, []expr.Any{verdict(expr.VerdictReturn)})
	}
	if singles != "" {
		c.add("single addresses in errors", f.nfproto(), f.quotedSingle(quoted, singles))
	}
	return c
}

// quotedSingle rewrites a quoted address by a map of single ones.
func (f family) quotedSingle(quoted uint32, set string) []expr.Any {
	return slices.Concat(load(expr.PayloadBaseTransportHeader, icmpHeader+quoted, f.size, unix.NFT_REG_1), []expr.Any{
		&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set, DestRegister: unix.NFT_REG_1, IsDestRegSet: true},
		&expr.Payload{ // the checksums are as in quoted
			OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
			Offset: icmpHeader + quoted, Len: f.size, CsumType: expr.CsumTypeInet, CsumOffset: f.quotedSum,
		},
	})
}

// quoted rewrites an address of a quoted packet that is in a prefix.
func (f family) quoted(quoted uint32, from, to netip.Prefix) []expr.Any {
	quotedAt := icmpHeader + quoted
	return slices.Concat(
		f.inPrefix(expr.PayloadBaseTransportHeader, quotedAt, from),
		load(expr.PayloadBaseTransportHeader, quotedAt, f.size, unix.NFT_REG_1), f.move(to),
		// The quoted IPv4 header has a checksum of its own, which evens the
		// change out for the one of ICMP. The quoted transport checksum is not
		// verified.
		[]expr.Any{&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
			Offset: quotedAt, Len: f.size, CsumType: expr.CsumTypeInet, CsumOffset: f.quotedSum,
		}},
	)
}

// sumAt returns the offset of the checksum that covers an address. IPv6 has no header checksum, but the
// netlink library sends the flag for the transport checksum only together with such an offset. The kernel
// fixes checksums before it writes the address, so an offset inside the
// address is overwritten at once.
func (f family) sumAt(offset uint32) uint32 {
	if f.checksum != 0 {
		return f.checksum
	}
	return offset
}

// move puts the address in register 1 into a prefix.
func (f family) move(to netip.Prefix) []expr.Any {
	return []expr.Any{&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: f.size, Mask: hostMask(to), Xor: to.Masked().Addr().AsSlice()}}
}

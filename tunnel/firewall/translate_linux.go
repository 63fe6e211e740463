package firewall

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// translate rewrites one address of a packet, and the other one in a packet
// that is quoted in an ICMP error, from one prefix to another.
func (f family) translate(offset, quoted uint32, from, to netip.Prefix, end expr.VerdictKind) []chainRule {
	text := fmt.Sprintf("%v is %v", from, to)
	done := chainRule{text: text, exprs: slices.Concat(f.nfproto(), f.inPrefix(expr.PayloadBaseNetworkHeader, offset, from))}
	if from.Masked() == to.Masked() {
		done.exprs = append(done.exprs, verdict(end))
		return []chainRule{done}
	}
	done.exprs = slices.Concat(done.exprs, f.rewrite(offset, hostMask(to), to.Masked().Addr().AsSlice()), []expr.Any{verdict(end)})
	return []chainRule{f.quote(text, offset, quoted, from, from, to), done}
}

// translateSingle does the same by a map of single addresses.
func (f family) translateSingle(offset, quoted uint32, set string, end expr.VerdictKind) []chainRule {
	const text = "single addresses"
	mapped := []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set, DestRegister: unix.NFT_REG_1, IsDestRegSet: true}}
	quotedAt := icmpHeader + quoted
	return []chainRule{{text: text + " in errors", exprs: slices.Concat(
		f.nfproto(), l4proto(f.icmp), load(expr.PayloadBaseTransportHeader, 0, 1, unix.NFT_REG_1), lookup(setErrors+f.suffix),
		// Of the outer address it only matters that it is one that changes.
		load(expr.PayloadBaseNetworkHeader, offset, f.size, unix.NFT_REG_1), mapped,
		load(expr.PayloadBaseTransportHeader, quotedAt, f.size, unix.NFT_REG_1), mapped,
		[]expr.Any{&expr.Payload{ // the checksums are as in quote
			OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
			Offset: quotedAt, Len: f.size, CsumType: expr.CsumTypeInet, CsumOffset: f.quotedSum,
		}},
	)}, {text: text, exprs: slices.Concat(
		f.nfproto(), load(expr.PayloadBaseNetworkHeader, offset, f.size, unix.NFT_REG_1), mapped,
		[]expr.Any{&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
			Offset: offset, Len: f.size, CsumType: expr.CsumTypeInet, CsumOffset: f.sumAt(offset), CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
		}, verdict(end)},
	)}}
}

// quote rewrites an address in a packet that is quoted in an ICMP error, if the error itself has
// an address in a prefix.
func (f family) quote(text string, offset, quoted uint32, at, from, to netip.Prefix) chainRule {
	quotedAt := icmpHeader + quoted
	return chainRule{text: text + " in errors", exprs: slices.Concat(
		f.nfproto(), f.inPrefix(expr.PayloadBaseNetworkHeader, offset, at), l4proto(f.icmp),
		load(expr.PayloadBaseTransportHeader, 0, 1, unix.NFT_REG_1), lookup(setErrors+f.suffix),
		f.inPrefix(expr.PayloadBaseTransportHeader, quotedAt, from),
		load(expr.PayloadBaseTransportHeader, quotedAt, f.size, unix.NFT_REG_1), f.move(to),
		// The quoted IPv4 header has a checksum of its own, which evens the
		// change out for the one of ICMP. The quoted transport checksum is of
		// no interest to anyone.
		[]expr.Any{&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseTransportHeader,
			Offset: quotedAt, Len: f.size, CsumType: expr.CsumTypeInet, CsumOffset: f.quotedSum,
		}},
	)}
}

// sumAt is where the checksum is that covers an address. IPv6 has no header checksum, but the netlink library sends the flag for
// the transport checksum only together with the offset of one. The kernel
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

package firewall

import (
	"fmt"
	"net"
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
	quotedAt := icmpHeader + quoted
	quote := chainRule{text: text + " in errors", exprs: slices.Concat(
		f.nfproto(), f.inPrefix(expr.PayloadBaseNetworkHeader, offset, from), l4proto(f.icmp),
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
	// IPv6 has no header checksum, but the netlink library sends the flag for
	// the transport checksum only together with the offset of one. The kernel
	// fixes checksums before it writes the address, so an offset inside the
	// address is overwritten at once.
	sumAt := offset
	if f.checksum != 0 {
		sumAt = f.checksum
	}
	done.exprs = slices.Concat(done.exprs,
		load(expr.PayloadBaseNetworkHeader, offset, f.size, unix.NFT_REG_1), f.move(to),
		[]expr.Any{&expr.Payload{
			OperationType: expr.PayloadWrite, SourceRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader,
			Offset: offset, Len: f.size, CsumType: expr.CsumTypeInet, CsumOffset: sumAt, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
		}, verdict(end)},
	)
	return []chainRule{quote, done}
}

// move puts the address in register 1 into a prefix.
func (f family) move(to netip.Prefix) []expr.Any {
	keep := net.CIDRMask(to.Bits(), to.Addr().BitLen())
	for i := range keep {
		keep[i] = ^keep[i]
	}
	return []expr.Any{&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: f.size, Mask: keep, Xor: to.Masked().Addr().AsSlice()}}
}

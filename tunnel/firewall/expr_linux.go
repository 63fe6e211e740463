package firewall

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// family is what differs between IPv4 and IPv6 rules.
type family struct {
	number       byte
	source, dest uint32 // offsets in the header
	size         uint32
	checksum     uint32 // offset of the header's checksum; IPv4 only
	icmp         byte
	redirect     byte // ICMP type
	addr         nftables.SetDatatype
	quotedSum    uint32 // checksum to fix for a change in a quoted packet, from the ICMP header
	suffix       string
	// Where protocol and port are loaded to, behind an address.
	protocolRegister, portRegister uint32
}

func ipv4() family {
	return family{
		number: unix.NFPROTO_IPV4, source: 12, dest: 16, size: 4, checksum: 10, icmp: unix.IPPROTO_ICMP, redirect: 5, addr: nftables.TypeIPAddr,
		quotedSum: icmpHeader + 10, suffix: "4", protocolRegister: unix.NFT_REG32_01, portRegister: unix.NFT_REG32_02,
	}
}

func ipv6() family {
	return family{
		number: unix.NFPROTO_IPV6, source: 8, dest: 24, size: 16, icmp: unix.IPPROTO_ICMPV6, redirect: 137, addr: nftables.TypeIP6Addr,
		quotedSum: 2, suffix: "6", protocolRegister: unix.NFT_REG32_04, portRegister: unix.NFT_REG32_05,
	}
}

// icmpHeader is the length of the header before the packet that is quoted.
const icmpHeader = 8

func families() []family { return []family{ipv4(), ipv6()} }

func (f family) of(a netip.Addr) bool { return a.BitLen() == int(f.size)*8 }

func (f family) only(ps []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ps), func(p netip.Prefix) bool { return !f.of(p.Addr()) })
}

// inPrefix matches an address of the packet.
func (f family) inPrefix(base expr.PayloadBase, offset uint32, p netip.Prefix) []expr.Any {
	return slices.Concat(load(base, offset, f.size, unix.NFT_REG_1), []expr.Any{
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: f.size, Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, f.size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: p.Masked().Addr().AsSlice()},
	})
}

func drop(reason Reason, peer string) chainRule {
	return chainRule{text: Drop{Reason: reason, Peer: peer}.String(), exprs: countedDrop()}
}

func countedDrop() []expr.Any {
	return append(counter(), verdict(expr.VerdictDrop))
}

func counter() []expr.Any { return []expr.Any{&expr.Counter{}} }

func accept() []expr.Any                  { return []expr.Any{verdict(expr.VerdictAccept)} }
func verdict(k expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: k} }

func (b *rulesBuilder) iif(op expr.CmpOp) []expr.Any {
	return match(expr.MetaKeyIIFNAME, op, ifname(b.device))
}

func (b *rulesBuilder) oif(op expr.CmpOp) []expr.Any {
	return match(expr.MetaKeyOIFNAME, op, ifname(b.device))
}

func (b *rulesBuilder) vmap(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true}}
}

func (f family) nfproto() []expr.Any {
	return match(expr.MetaKeyNFPROTO, expr.CmpOpEq, []byte{f.number})
}

func (f family) loadSource() []expr.Any {
	return load(expr.PayloadBaseNetworkHeader, f.source, f.size, unix.NFT_REG_1)
}

func (f family) loadDest() []expr.Any {
	return load(expr.PayloadBaseNetworkHeader, f.dest, f.size, unix.NFT_REG_1)
}

func (f family) from(set string) []expr.Any {
	return slices.Concat(f.nfproto(), f.loadSource(), lookup(set+f.suffix))
}

func (f family) to(set string) []expr.Any {
	return slices.Concat(f.nfproto(), f.loadDest(), lookup(set+f.suffix))
}

func load(base expr.PayloadBase, offset, size, register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: base, Offset: offset, Len: size}}
}

func lookup(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set}}
}

func match(key expr.MetaKey, op expr.CmpOp, data []byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: unix.NFT_REG_1}, &expr.Cmp{Op: op, Register: unix.NFT_REG_1, Data: data}}
}

// toPort matches packets to a port of a protocol.
func toPort(protocol byte, port int) []expr.Any {
	return slices.Concat(l4proto(protocol), load(expr.PayloadBaseTransportHeader, 2, 2, unix.NFT_REG_1),
		[]expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: binary.BigEndian.AppendUint16(nil, uint16(port))}})
}

func l4proto(p byte) []expr.Any { return match(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{p}) }

func ctState(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: unix.NFT_REG_1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bit), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: make([]byte, 4)},
	}
}

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// interval is a prefix as the two elements of an interval set.
func interval(p netip.Prefix, v *expr.Verdict) []nftables.SetElement {
	es := []nftables.SetElement{{Key: p.Masked().Addr().AsSlice(), VerdictData: v}}
	if end := plan.After(p); end.IsValid() {
		es = append(es, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
	}
	return es
}

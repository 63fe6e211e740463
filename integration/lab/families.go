package lab

import (
	"net/netip"
	"slices"
	"strings"
)

// Families says of which IP families the addresses of nodes, pods and Services are. Several, with commas between them, are
// those of the clusters in turn: with "ipv4,dual" the second cluster is dual-stack.
type Families string

const (
	// IPv4Only gives them IPv4 addresses.
	IPv4Only Families = "ipv4"
	// IPv6Only gives them IPv6 addresses, and none of IPv4.
	IPv6Only Families = "ipv6"
	// DualStack gives them one of each. IPv4 is the first family: that of the Service
	// kubernetes and of Services that do not say.
	DualStack Families = "dual"
)

// of is the families of cluster number i.
func (f Families) of(i int) Families {
	each := strings.Split(string(f), ",")
	return Families(each[(i-1)%len(each)])
}

// valid reports whether all of them are known.
func (f Families) valid() bool {
	for each := range strings.SplitSeq(string(f), ",") {
		if !slices.Contains([]Families{IPv4Only, IPv6Only, DualStack}, Families(each)) {
			return false
		}
	}
	return true
}

// has4 and has6 report whether any cluster has addresses of IPv4, and of IPv6.
func (f Families) has4() bool { return f.any(IPv4Only) }
func (f Families) has6() bool { return f.any(IPv6Only) }

func (f Families) any(one Families) bool {
	return slices.ContainsFunc(strings.Split(string(f), ","), func(each string) bool { return Families(each) == one || Families(each) == DualStack })
}

// The lab's IPv6 prefixes are of one unique local one (RFC 4193), fd6c:6162::/32, which
// says lab. Its third group says what a prefix is for, the fourth whose it is.
const (
	sharedLANs6 = 0
	lans6       = 1
	services6   = 0x96
	pods6       = 0x200
)

func prefix6(group uint16, number byte, bits int) netip.Prefix {
	a := [16]byte{0xfd, 0x6c, 0x61, 0x62, byte(group >> 8), byte(group), 7: number}
	return netip.PrefixFrom(netip.AddrFrom16(a), bits)
}

// numbered is address number i of a prefix.
func numbered(p netip.Prefix, i byte) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] |= i
	a, _ := netip.AddrFromSlice(b)
	return a
}

// given returns those values that are set.
func given[T interface{ IsValid() bool }](values ...T) []T {
	var out []T
	for _, v := range values {
		if v.IsValid() {
			out = append(out, v)
		}
	}
	return out
}

func list[T interface{ String() string }](values []T) string {
	var out []string
	for _, v := range values {
		out = append(out, v.String())
	}
	return strings.Join(out, ",")
}

// PodCIDRs are the prefixes of the cluster's pods, one for each family.
func (c ClusterPlan) PodCIDRs() []netip.Prefix { return given(c.PodCIDR, c.PodCIDR6) }

// ServiceCIDRs are the prefixes of the cluster's Services, one for each family.
func (c ClusterPlan) ServiceCIDRs() []netip.Prefix { return given(c.ServiceCIDR, c.ServiceCIDR6) }

// PodCIDRs are those of the node's spec, unless nodes have none there.
func (n NodePlan) PodCIDRs() []netip.Prefix { return given(n.PodCIDR, n.PodCIDR6) }

// Addresses are the node's own, the first family's first.
func (n NodePlan) Addresses() []netip.Addr {
	if n.Address == n.Address6 {
		return []netip.Addr{n.Address}
	}
	return given(n.Address, n.Address6)
}

// addressLike is the node's address in the family of a.
func (n NodePlan) addressLike(a netip.Addr) netip.Addr {
	if a.Is6() {
		return n.Address6
	}
	return n.Address
}

// gateways are the router's addresses in the LAN to which packets for elsewhere go.
func (s Segment) gateways() []netip.Addr { return given(s.Gateway, s.Gateway6) }

func (s Segment) gatewayLike(a netip.Addr) netip.Addr {
	if a.Is6() {
		return s.Gateway6
	}
	return s.Gateway
}

// prefixes are those of the LAN.
func (s Segment) prefixes() []netip.Prefix { return given(s.Prefix, s.Prefix6) }

func (s Segment) prefixLike(a netip.Addr) netip.Prefix {
	if a.Is6() {
		return s.Prefix6
	}
	return s.Prefix
}

package agent

import (
	"net/netip"
	"strings"
	"testing"
)

func TestHostsOutsideAllowedPrefixesAreNotExported(t *testing.T) {
	t.Parallel()
	closed := prefixesOf("10.200.0.0/16", "10.96.0.0/12", "192.168.1.1/32", "198.18.0.0/15", "fd77::/16")
	nodes := prefixesOf("192.168.1.1/32", "192.168.1.2/32", "192.168.1.3/32")
	everything := prefixesOf("0.0.0.0/0", "::/0", "192.168.1.1/32", "192.168.1.3/32")
	for _, tc := range []struct {
		addr    string
		allowed []netip.Prefix
		want    string // "" is that it may
	}{
		{"192.168.7.9", prefixesOf("192.168.7.0/24"), ""},
		{"2001:db8::9", prefixesOf("192.168.7.0/24", "2001:db8::/64"), ""},
		{"192.168.7.9", nil, "is empty"},
		{"192.168.8.9", prefixesOf("192.168.7.0/24"), "in none of the prefixes"},
		{"192.168.7.9", everything, ""},
		{"127.0.0.1", everything, "loopback"},
		{"::1", everything, "loopback"},
		{"0.0.0.0", everything, "of this host"},
		{"::", everything, "unspecified"},
		{"169.254.169.254", everything, "metadata"},
		{"fe80::1", everything, "link-local"},
		{"fd00:ec2::254", everything, "metadata"},
		{"224.0.0.1", everything, "multicast"},
		{"ff02::1", everything, "multicast"},
		{"255.255.255.255", everything, "reserved or broadcast"},
		{"64:ff9b::a9fe:a9fe", everything, "metadata"},
		{"64:ff9b::ac8:7", everything, "forbidden"}, // 10.200.0.7, a pod
		{"::ffff:192.168.7.9", prefixesOf("192.168.7.0/24"), "in none of the prefixes"},
		{"10.200.3.7", everything, "of pods, Services or aliases"},
		{"fd77::7", everything, "of pods, Services or aliases"},
		{"10.96.0.1", everything, "of pods, Services or aliases"},
		{"198.18.7.9", everything, "of pods, Services or aliases"},
		{"192.168.1.1", everything, "the API server's"}, // also where it is named alone
		{"192.168.1.2", everything, "it is a node's"},
		{"192.168.1.3", everything, ""},
	} {
		got := hostRefusal(netip.MustParseAddr(tc.addr), tc.allowed, closed, nodes)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s with %v: refused with %q, want %q", tc.addr, tc.allowed, got, tc.want)
		}
	}
}

func prefixesOf(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

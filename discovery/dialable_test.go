package discovery

import (
	"net/netip"
	"testing"
)

func TestDialableRefusesSpecialAddresses(t *testing.T) {
	t.Parallel()
	forbidden := []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("203.0.113.9/32"),
		netip.MustParsePrefix("fd00:96::/108"), netip.MustParsePrefix("::ffff:172.20.0.0/112"),
	}
	for name, tt := range map[string]struct {
		addrs []string
		ok    bool
	}{
		"public addresses":                  {[]string{"8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"}, true},
		"private addresses":                 {[]string{"10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1", "::ffff:10.0.0.1"}, true},
		"documentation":                     {[]string{"192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1"}, true},
		"translations of what is allowed":   {[]string{"64:ff9b::8.8.8.8", "2002:808:808::1", "64:ff9b::10.0.0.1"}, true},
		"neighbours of what is refused":     {[]string{"1.0.0.0", "126.255.255.255", "128.0.0.1", "169.253.0.1", "198.17.0.1", "198.20.0.1", "223.255.255.255", "fec0::1"}, true},
		"loopback":                          {[]string{"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"}, false},
		"unspecified":                       {[]string{"0.0.0.0", "::", "::ffff:0.0.0.0", "0.1.2.3"}, false},
		"link-local and metadata":           {[]string{"169.254.169.254", "169.254.0.1", "::ffff:169.254.169.254", "fe80::1", "febf::1", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"}, false},
		"multicast and broadcast":           {[]string{"224.0.0.251", "239.1.1.1", "255.255.255.255", "240.0.0.1", "ff02::fb", "::ffff:224.0.0.1"}, false},
		"aliases":                           {[]string{"198.18.0.1", "198.19.255.255", "::ffff:198.18.0.1"}, false},
		"IPv4-compatible":                   {[]string{"::127.0.0.1", "::10.0.0.1"}, false},
		"NAT64 of loopback and metadata":    {[]string{"64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::169.254.169.254", "64:ff9b:1:a9fe:a9:fe00::"}, false},
		"6to4, SIIT, Teredo and ISATAP":     {[]string{"2002:7f00:1::1", "2002:a9fe:a9fe::", "::ffff:0:127.0.0.1", "2001:0:7f00:1::8080:8080", "2001:0:808:808::80ff:fffe", "2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:169.254.169.254"}, false},
		"a zone":                            {[]string{"fe80::1%eth0", "fd12::1%eth0"}, false},
		"what the caller forbids":           {[]string{"10.96.0.1", "203.0.113.9", "fd00:96::1", "172.20.3.4"}, false},
		"what the caller forbids, embedded": {[]string{"::ffff:10.96.0.1", "64:ff9b::10.96.0.1", "2002:cb00:7109::1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, a := range tt.addrs {
				if err := Dialable(netip.MustParseAddr(a), forbidden...); (err == nil) != tt.ok {
					t.Errorf("Dialable(%s) = %v", a, err)
				}
			}
		})
	}
	if Dialable(netip.Addr{}) == nil {
		t.Error("no address is dialable")
	}
}

package peering

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"
)

func TestExternalNamesAreWholeNamesOfDNS(t *testing.T) {
	label := strings.Repeat("a", 63)
	longest := strings.Repeat(label+".", 3) + strings.Repeat("a", 61)
	for _, name := range []string{
		"example.org", "a.b", "db.other.svc.cluster.local", "kubernetes.default.svc.cluster.local", "xn--bcher-kva.example",
		"mydb.c1.eu-west-1.rds.amazonaws.com", "1.2.3.4.example", "7.a", "0x.a", "a.0y", "metadata.google.internal", "svc.example", longest, label + ".a",
	} {
		if err := CheckExternalName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for what, names := range map[string][]string{
		"bytes":        {"", longest + "a", strings.Repeat("a.", 4096) + "a"},
		"not a label":  {".", "example.org.", ".example.org", "a..b", "Example.org", "a_b.org", "*.org", "-a.org", "a-.org", label + "a.org", "a b.org", "a\x00.org", "b\u00fccher.example", "::1", "fe80::1%eth0", "a.b:80", "http://a.b/", "[::1]"},
		"has one":      {"localhost", "metadata", "instance-data", "7", "2130706433", "0x7f000001"},
		"an address":   {"127.0.0.1", "169.254.169.254", "127.1", "0x7f.1", "10.0.0.0x1", "a.0x", "example.7", "0177.0.0.01"},
		"short":        {"kubernetes.default.svc", "db.shop.svc", "a.svc"},
		"each machine": {"a.localhost", "1.0.0.10.in-addr.arpa", "x.ip6.arpa", "home.arpa"},
	} {
		for _, name := range names {
			if err := CheckExternalName(name); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%.40q: got %v, want %q in it", name, err, what)
			}
		}
	}
}

func FuzzCheckExternalName(f *testing.F) {
	for _, name := range []string{"example.org", "a.b.", "127.1", "0x7f.1", "db.shop.svc", "a..b", "A.b", "x.localhost", "::1", strings.Repeat("a", 64) + ".b"} {
		f.Add(name)
	}
	// As the API server has them, and at least two labels.
	whole := regexp.MustCompile(`^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	f.Fuzz(func(t *testing.T, name string) {
		if CheckExternalName(name) != nil {
			return
		}
		if !whole.MatchString(name) || len(name) > 253 {
			t.Errorf("%q is accepted, and is not a DNS name", name)
		}
		if _, err := netip.ParseAddr(name); err == nil {
			t.Errorf("%q is taken, and is an address", name)
		}
		for _, end := range []string{".svc", ".localhost", ".arpa"} {
			if strings.HasSuffix(name, end) {
				t.Errorf("%q is taken", name)
			}
		}
	})
}

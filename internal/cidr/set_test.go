package cidr

import (
	"net/netip"
	"slices"
	"testing"
)

// read draws prefixes of 10.0.0.0/8 that often overlap.
func read(data []byte) (out []netip.Prefix) {
	for ; len(data) >= 3 && len(out) < 8; data = data[3:] {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, data[0] & 3, 0, data[1]}), 8+int(data[2])%25))
	}
	return out
}

// addresses are those in which the sets that read draws can differ.
func addresses(each func(netip.Addr)) {
	for i := range 1024 {
		each(netip.AddrFrom4([4]byte{10, byte(i >> 8), 0, byte(i)}))
	}
}

func holds(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

func checkSet(t *testing.T, s Set) {
	t.Helper()
	for i, p := range s {
		if p != p.Masked() || i > 0 && (s[i-1].Compare(p) >= 0 || s[i-1].Overlaps(p)) {
			t.Fatalf("%v is not a set", s)
		}
	}
}

func FuzzSet(f *testing.F) {
	f.Add([]byte{0, 8, 10, 0, 0, 16}, []byte{0, 0, 32, 1, 9, 20})
	f.Add([]byte{0, 0, 23, 0, 1, 24, 0, 0, 24, 0, 128, 17}, []byte{0, 0, 0})
	f.Fuzz(func(t *testing.T, these, those []byte) {
		a, b := read(these), read(those)
		set, other := Of(a...), Of(b...)
		joined, both := set.Joined(), set.With(b...)
		for _, s := range []Set{set, other, joined, both} {
			checkSet(t, s)
		}
		var free Set
		for _, p := range set {
			free = other.AppendFree(free, p)
		}
		checkSet(t, free)
		if len(joined) > len(set) {
			t.Fatalf("%v joined is %v", set, joined)
		}
		addresses(func(at netip.Addr) {
			inA, inB := holds(a, at), holds(b, at)
			for name, got := range map[string][2]bool{
				"Of": {set.Contains(at), inA}, "Joined": {joined.Contains(at), inA}, "With": {both.Contains(at), inA || inB},
				"AppendFree": {free.Contains(at), inA && !inB},
			} {
				if got[0] != got[1] {
					t.Fatalf("%s: %v of %v and %v: %t", name, at, a, b, got[0])
				}
			}
		})
		for _, p := range b {
			if got, want := set.Overlaps(p), slices.ContainsFunc(a, p.Overlaps); got != want {
				t.Fatalf("%v overlaps %v: %t", set, p, got)
			}
			if got, want := set.Covers(p), slices.ContainsFunc(set, func(q netip.Prefix) bool { return Cover(q, p) }); got != want {
				t.Fatalf("%v covers %v: %t", set, p, got)
			}
		}
	})
}

func FuzzExcept(f *testing.F) {
	f.Add([]byte{0, 8, 10, 0, 0, 16}, []byte{0, 0, 32, 1, 9, 20})
	f.Fuzz(func(t *testing.T, these, those []byte) {
		a, b := read(these), read(those)
		for i := range b {
			b[i] = b[i].Masked()
		}
		slices.SortFunc(b, netip.Prefix.Compare)
		got := Of(a...).Except(b)
		checkSet(t, got)
		addresses(func(at netip.Addr) {
			// The widest of these that hold it, for only those count, and the longest of others.
			wide, long := 99, -1
			for _, p := range a {
				if p.Contains(at) {
					wide = min(wide, p.Bits())
				}
			}
			for _, p := range b {
				if p.Contains(at) {
					long = max(long, p.Bits())
				}
			}
			if want := wide < 99 && long <= wide; holds(got, at) != want {
				t.Fatalf("%v except %v is %v: %v is in it: %t, want %t", a, b, got, at, !want, want)
			}
		})
	})
}

func TestSetsKeepFamiliesApart(t *testing.T) {
	t.Parallel()
	s := Of(netip.MustParsePrefix("::/0"), netip.MustParsePrefix("10.1.0.0/16"), netip.Prefix{})
	if len(s) != 2 || !s.Contains(netip.MustParseAddr("10.1.2.3")) || s.Contains(netip.MustParseAddr("10.2.0.0")) {
		t.Errorf("got %v", s)
	}
	if !s.Contains(netip.MustParseAddr("2001:db8::1")) || s.Contains(netip.Addr{}) || s.Overlaps(netip.Prefix{}) {
		t.Errorf("%v holds the wrong addresses", s)
	}
	if got := s.Except([]netip.Prefix{netip.MustParsePrefix("10.1.128.0/17")}); !slices.Equal(got, Of(netip.MustParsePrefix("10.1.0.0/17"), netip.MustParsePrefix("::/0"))) {
		t.Errorf("got %v", got)
	}
}

func TestPrefixesMayHaveAddressesOfTheirFamiliesAlone(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/48")
	for _, tc := range []struct {
		prefixes []netip.Prefix
		has4     bool
		has6     bool
	}{
		{nil, true, true}, {[]netip.Prefix{v4}, true, false}, {[]netip.Prefix{v6}, false, true}, {[]netip.Prefix{v4, v6}, true, true},
	} {
		has4, has6 := MayHaveFamily(tc.prefixes, netip.MustParseAddr("192.0.2.1")), MayHaveFamily(tc.prefixes, netip.MustParseAddr("2001:db8::1"))
		if has4 != tc.has4 || has6 != tc.has6 {
			t.Errorf("%v may have IPv4 %t and IPv6 %t, want %t and %t", tc.prefixes, has4, has6, tc.has4, tc.has6)
		}
	}
}

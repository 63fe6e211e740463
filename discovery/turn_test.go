package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func claim(of string, from ...string) Claim[string] {
	c := Claim[string]{Of: of}
	for _, f := range from {
		c.From = append(c.From, netip.MustParseAddr(f))
	}
	return c
}

func TestInTurnSharesTheRoom(t *testing.T) {
	t.Parallel()
	const a, b, c = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	for name, tt := range map[string]struct {
		list []Claim[string]
		room int
		want string
	}{
		"nothing":           {room: 2, want: "[]"},
		"no room":           {list: []Claim[string]{claim("x", a)}, want: "[]"},
		"in order of one":   {list: []Claim[string]{claim("x", a), claim("y", a), claim("z", a)}, room: 2, want: "[x y]"},
		"the first of each": {list: []Claim[string]{claim("w", a), claim("x", a), claim("y", b), claim("z", c)}, room: 3, want: "[w y z]"},
		"then the second":   {list: []Claim[string]{claim("v", a), claim("w", a), claim("x", a), claim("y", b), claim("z", b)}, room: 4, want: "[v y w z]"},
		"each once":         {list: []Claim[string]{claim("x", a), claim("x", a), claim("x", b), claim("y", b)}, room: 4, want: "[x y]"},
		"a value of two addresses, the first of one": {list: []Claim[string]{claim("w", a), claim("x", a), claim("y", a, b), claim("z", a)}, room: 2, want: "[w y]"},
		"sent by another before":                     {list: []Claim[string]{claim("w", a), claim("x", a), claim("y", a), claim("y", b)}, room: 2, want: "[w y]"},
		"of no address is one":                       {list: []Claim[string]{claim("x"), claim("y"), claim("z", a)}, room: 2, want: "[x z]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := fmt.Sprint(InTurn(tt.list, tt.room)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Whatever fewer addresses than there are places send, and in whatever order, the value of another
// address stays, even if they send it themselves.
func TestFewAddressesEvictNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(1, 8).Draw(t, "room")
		address := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }
		honest := Claim[int]{Of: 0, From: []netip.Addr{address(0)}}
		var list []Claim[int]
		for range rapid.IntRange(0, 60).Draw(t, "claims") {
			c := Claim[int]{Of: rapid.IntRange(0, 40).Draw(t, "of")}
			for range rapid.IntRange(1, 3).Draw(t, "times") {
				if room > 1 {
					c.From = append(c.From, address(rapid.IntRange(1, room-1).Draw(t, "from")))
				}
			}
			if room > 1 {
				list = append(list, c)
			}
		}
		list = slices.Insert(list, rapid.IntRange(0, len(list)).Draw(t, "at"), honest)
		got := InTurn(list, room)
		if !slices.Contains(got, 0) {
			t.Fatalf("of %d places none is left for the other: %v of %v", room, got, list)
		}
		if len(got) > room {
			t.Fatalf("%d in %d places", len(got), room)
		}
	})
}

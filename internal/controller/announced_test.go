package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/entente-dev/entente/internal/wire"
)

// What a peer announces takes as much of the alias pool here, so there is a bound
// on it: 2^maxPeerBits addresses in all, where of IPv6 only the first 64 bits
// count.
func TestPeersAnnounceAtMostSoManyAddresses(t *testing.T) {
	if maxPeerBits != 18 {
		t.Fatalf("the rows below are written for 18 bits, not %d", maxPeerBits)
	}
	many := func(n int, format string) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf(format, i))
		}
		return out
	}
	for name, row := range map[string]struct {
		prefixes []string
		// refused is the prefix that is one too many; empty if all are taken.
		refused string
	}{
		"none":                                     {},
		"one address":                              {prefixes: []string{"10.0.0.1/32"}},
		"a /14 is all that there is":               {prefixes: []string{"10.0.0.0/14"}},
		"a /13 is too much":                        {prefixes: []string{"10.0.0.0/13"}, refused: "10.0.0.0/13"},
		"everything is too much":                   {prefixes: []string{"0.0.0.0/0"}, refused: "0.0.0.0/0"},
		"half of everything is too much":           {prefixes: []string{"128.0.0.0/1"}, refused: "128.0.0.0/1"},
		"four /16 fill it":                         {prefixes: many(4, "10.%d.0.0/16")},
		"the fifth is too much":                    {prefixes: many(5, "10.%d.0.0/16"), refused: "10.4.0.0/16"},
		"one address beyond a /14 is too much":     {prefixes: []string{"10.0.0.0/14", "10.4.0.0/32"}, refused: "10.4.0.0/32"},
		"two /15 fill it to the last":              {prefixes: []string{"10.0.0.0/15", "10.2.0.0/15"}},
		"the order does not matter to the sum":     {prefixes: []string{"10.4.0.0/32", "10.0.0.0/14"}, refused: "10.0.0.0/14"},
		"sixteen /24 are many but small":           {prefixes: many(16, "10.0.%d.0/24")},
		"a /46 of IPv6 is all that there is":       {prefixes: []string{"fd00::/46"}},
		"a /45 of IPv6 is too much":                {prefixes: []string{"fd00::/45"}, refused: "fd00::/45"},
		"all of IPv6 is too much":                  {prefixes: []string{"::/0"}, refused: "::/0"},
		"a /64 of IPv6 counts as one":              {prefixes: []string{"10.0.0.0/15", "10.2.0.0/16", "fd00::/64"}},
		"a /65 and less of IPv6 count as one each": {prefixes: []string{"fd00::/46", "fd01::/128"}, refused: "fd01::/128"},
		"both families share the bound":            {prefixes: []string{"10.0.0.0/15", "fd00::/47"}},
		"and no more than it":                      {prefixes: []string{"10.0.0.0/15", "fd00::/47", "fd01::/64"}, refused: "fd01::/64"},
	} {
		t.Run(name, func(t *testing.T) {
			in := &wire.Network{}
			for _, p := range row.prefixes {
				in.Prefixes = append(in.Prefixes, netip.MustParsePrefix(p))
			}
			out, err := networkFromWire(in)
			if row.refused == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				if !slices.Equal(out.Prefixes, row.prefixes) {
					t.Errorf("kept %v, want %v", out.Prefixes, row.prefixes)
				}
				return
			}
			if err == nil {
				t.Fatalf("kept %v", out.Prefixes)
			}
			if out != nil {
				t.Errorf("refused, and yet %v", out)
			}
			if !strings.HasPrefix(err.Error(), row.refused+",") || !strings.Contains(err.Error(), "2^18") {
				t.Errorf("the error names neither %s nor the bound: %v", row.refused, err)
			}
		})
	}
}

func TestPeerThatAnnouncesNoNetworkHasNone(t *testing.T) {
	if out, err := networkFromWire(nil); out != nil || err != nil {
		t.Errorf("got %v, %v", out, err)
	}
}

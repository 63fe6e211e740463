package discovery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/entente-dev/entente/peering"
)

func TestAServiceIsAtTheEndpointsThatOthersMayDial(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 2 * MaxAddresses {
		many = append(many, fmt.Sprintf("192.0.2.%d:7443", i+1))
	}
	for name, tt := range map[string]struct {
		endpoints []string
		want      string
	}{
		"two addresses":                  {[]string{"192.0.2.1:7443", "[2001:db8::1]:7443"}, "[192.0.2.1 2001:db8::1]:7443"},
		"another port is left out":       {[]string{"192.0.2.1:7443", "192.0.2.2:443"}, "[192.0.2.1]:7443"},
		"the same address once":          {[]string{"192.0.2.1:7443", "[::ffff:192.0.2.1]:7443"}, "[192.0.2.1]:7443"},
		"names and loopback are not":     {[]string{"peer.example:443", "127.0.0.1:80", "192.0.2.1:7443"}, "[192.0.2.1]:7443"},
		"no address that may be dialled": {[]string{"peer.example:443", "127.0.0.1:80"}, "[]:443"},
		"nothing":                        {nil, "[]:0"},
		"nonsense":                       {[]string{"", ":", "x", "192.0.2.1", "192.0.2.1:0", "192.0.2.1:70000"}, "[]:0"},
	} {
		s := NewService(peering.ClusterID(strings.Repeat("a", 32)), "office", 2, tt.endpoints)
		if got := fmt.Sprintf("%v:%d", s.Addresses, s.Port); got != tt.want || s.Instance != "office" || s.Host != "entente-aaaaaaaa" || s.Text.API != "2" {
			t.Errorf("%s: %s and %+v, want %s", name, got, s, tt.want)
		}
	}
	if s := NewService(peering.ClusterID(strings.Repeat("a", 32)), "office", 2, many); len(s.Addresses) != MaxAddresses || s.Check() != nil {
		t.Errorf("of %d addresses %d are published", len(many), len(s.Addresses))
	}
}

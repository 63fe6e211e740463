package agent

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// The alias of an address that a peer names no longer is kept for a while: pods are still known by it, and
// Services do not lead there.
func TestAnAddressThatIsNamedNoLongerIsKnownAndLeadsNowhere(t *testing.T) {
	t.Parallel()
	var fc v1alpha1.ForeignCluster
	fc.Status.Aliases = []v1alpha1.PrefixAlias{{Prefix: "10.1.0.0/24", Alias: "198.18.0.0/24"}}
	fc.Status.AliasBlocks = []v1alpha1.AliasBlock{{
		Alias: "198.19.0.0/30", Addresses: []string{"10.2.0.1", "10.2.0.2", "10.1.0.7", ""},
		Released: []v1alpha1.ReleasedAlias{{Index: 1, Time: metav1.Now()}, {Index: 2, Time: metav1.Now()}, {Index: 9, Time: metav1.Now()}},
	}}
	table := tableOf(&fc)
	for addr, want := range map[string]struct{ home, named string }{
		"10.1.0.5": {"198.18.0.5", "198.18.0.5"},
		"10.2.0.1": {"198.19.0.0", "198.19.0.0"},
		"10.2.0.2": {"198.19.0.1", "invalid IP"},
		"10.1.0.7": {"198.18.0.7", "198.18.0.7"}, // of a prefix now
		"10.2.0.9": {"invalid IP", "invalid IP"},
	} {
		home, is := table.home(netip.MustParseAddr(addr))
		named, leads := table.named(netip.MustParseAddr(addr))
		if home.String() != want.home || named.String() != want.named || is != home.IsValid() || leads != named.IsValid() {
			t.Errorf("%s is known as %v and named as %v, want %v", addr, home, named, want)
		}
	}
}

package transit

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// naming is a home that names namespaces in a third cluster, to a cluster that runs pods of some of them.
type naming struct {
	third, home v1alpha1.ForeignCluster
	running     map[string][]netip.Addr
	known       map[Space]Named
	now         time.Time
}

func newNaming(namespaces, pods int) *naming {
	n := &naming{third: cluster("c", nil, nil), home: cluster("home", nil, nil), running: map[string][]netip.Addr{}, now: time.Unix(2e9, 0)}
	n.home.Spec.Transit.Through = []string{"c-id"}
	next := addr("10.0.0.0")
	for i := range namespaces {
		for range pods {
			next = next.Next()
			n.running[fmt.Sprint("ns-", i)] = append(n.running[fmt.Sprint("ns-", i)], next)
		}
	}
	return n
}

// says returns what is said to run once the home names these.
func (n *naming) says(names ...string) string {
	t := v1alpha1.TransitAddresses{ClusterID: "c-id"}
	for _, name := range names {
		t.Namespaces = append(t.Namespaces, v1alpha1.TransitNamespace{Name: name})
	}
	n.home.Status.Network.Transit = []v1alpha1.TransitAddresses{t}
	var out []peering.TransitAddresses
	out, n.known = Running(&n.third, []v1alpha1.ForeignCluster{n.home, n.third}, n.known, n.now, func(*v1alpha1.ForeignCluster) map[string][]netip.Addr { return n.running })
	return fmt.Sprint(out)
}

// A home may name what it likes, as often as it likes: what is said to run changes a few times an hour for each namespace of
// which pods run, and made-up names are not remembered.
func TestAHomeThatChangesWhatItNamesHasFewChangesBeSaid(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	const hours, most = 8, 3
	for what, next := range map[string]func(said string) []string{
		"it drops what is said, and names it again once it is not": func(said string) (names []string) {
			if said == "[]" {
				names = append(names, "ns-0", "ns-1", "ns-2")
			}
			return names
		},
		"now and then": func(string) (names []string) {
			for i := range most {
				if r.IntN(100) == 0 {
					names = append(names, fmt.Sprint("ns-", i))
				}
			}
			return names
		},
		"as often as it can": func(string) (names []string) {
			for i := range peering.MaxDirectNamespaces {
				if r.IntN(2) == 0 {
					names = append(names, fmt.Sprint("ns-", i*r.IntN(1000)))
				}
			}
			return names
		},
	} {
		n := newNaming(most, 600) // more than there is room for
		said, changes := "[]", 0
		for range hours * 120 {
			now := n.says(next(said)...)
			if now != said {
				said = now
				changes++
			}
			n.now = n.now.Add(30 * time.Second)
			if len(n.known) > most {
				t.Fatalf("%s: %d namespaces are remembered", what, len(n.known))
			}
		}
		if limit := most * 2 * (hours + 1); changes == 0 || changes > limit {
			t.Errorf("%s: what is said changed %d times in %d hours, want at most %d", what, changes, hours, limit)
		}
	}
}

// A home names a namespace as a whole or not at all, so it drops one for a moment when a pod is new there. That changes
// nothing here; and what this cluster decides itself, and its own pods, do at once.
func TestANamespaceThatIsNotNamedForAMomentIsSaidToRun(t *testing.T) {
	t.Parallel()
	n := newNaming(2, 1)
	both := "[{home-id [10.0.0.1 10.0.0.2] []}]"
	for i, step := range []struct {
		after time.Duration
		names []string
		want  string
	}{
		{0, nil, "[]"},
		{0, []string{"ns-0"}, "[{home-id [10.0.0.1] []}]"},
		{time.Minute, []string{"ns-1"}, both},
		{time.Minute, nil, both},
		{time.Minute, []string{"ns-0"}, both},
		{namedLasts, []string{"ns-0"}, "[{home-id [10.0.0.1] []}]"},
		{namedLasts / 2, nil, "[{home-id [10.0.0.1] []}]"},
	} {
		n.now = n.now.Add(step.after)
		if got := n.says(step.names...); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	n.running["ns-0"] = []netip.Addr{addr("10.0.0.7")}
	if got, want := n.says(), "[{home-id [10.0.0.7] []}]"; got != want {
		t.Errorf("with another pod %s, want %s", got, want)
	}
	n.home.Spec.Transit = nil
	if got := n.says("ns-0"); got != "[]" || len(n.known) > 0 {
		t.Errorf("without consent %s", got)
	}
}

package wire

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// rolled returns an identity after so many rollovers; of the last, both roots are
// shown.
func rolled(t testing.TB, times int) *identity.Identity {
	t.Helper()
	now := time.Unix(1_700_000_000, 0)
	id, err := identity.Generate(now)
	if err != nil {
		t.Fatal(err)
	}
	for range times {
		now = now.Add(time.Hour)
		if id, err = id.Rollover(now, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

func TestAClusterKeepsItsIDAfterRollovers(t *testing.T) {
	for _, times := range []int{0, 1, 2, 8} {
		id := rolled(t, times)
		info := identity.ClusterInfo{Name: "office", Endpoints: []string{"office.example:7443"}, Bundle: id.TrustBundle()}
		m := ClusterInfoTo(info)
		if (len(m.GetIdentityKey()) > 0) != (times > 1) || len(m.GetSuccession()) != times {
			t.Errorf("after %d rollovers it shows a key of %d bytes and %d successions", times, len(m.GetIdentityKey()), len(m.GetSuccession()))
		}
		received, err := ClusterInfoFrom(m, id.ID())
		if err != nil {
			t.Fatalf("after %d rollovers: %v", times, err)
		}
		if diff := cmp.Diff(m, ClusterInfoTo(received), protocmp.Transform()); diff != "" {
			t.Errorf("after %d rollovers (-sent +received):\n%s", times, diff)
		}
		kept, err := identity.ReadBundlePEM(id.ID(), []byte(received.PEM()))
		if err != nil {
			t.Fatal(err)
		}
		if kept.Hash() != id.TrustBundle().Hash() {
			t.Errorf("after %d rollovers the hash of what is kept is not the owner's", times)
		}
	}
}

func TestBundlesThatDifferHaveOtherHashes(t *testing.T) {
	one := rolled(t, 1)
	both := one.TrustBundle()
	settled, other, turned := both, both, both
	settled.Roots = both.Roots[:1]
	other.Succession = nil
	turned.Roots = append(both.Roots[1:2:2], both.Roots[0])
	seen := map[string]bool{}
	for _, b := range []identity.Bundle{both, settled, other, turned, rolled(t, 0).TrustBundle(), {}} {
		seen[b.Hash().String()] = true
	}
	if len(seen) != 6 {
		t.Errorf("six bundles have %d hashes", len(seen))
	}
}

func TestAClusterThatClaimsAnotherIsRefused(t *testing.T) {
	mine, other := rolled(t, 2), rolled(t, 2)
	for name, change := range map[string]func(*ententev1.ClusterInfo){
		"the roots of another":      func(m *ententev1.ClusterInfo) { m.Bundle = other.TrustBundle().DER() },
		"the key of another":        func(m *ententev1.ClusterInfo) { m.IdentityKey = other.PublicKey() },
		"no key":                    func(m *ententev1.ClusterInfo) { m.IdentityKey = nil },
		"no succession":             func(m *ententev1.ClusterInfo) { m.Succession = nil },
		"a succession cut short":    func(m *ententev1.ClusterInfo) { m.Succession = m.GetSuccession()[:1] },
		"a succession out of order": func(m *ententev1.ClusterInfo) { s := m.GetSuccession(); s[0], s[1] = s[1], s[0] },
		"the succession of another": func(m *ententev1.ClusterInfo) {
			m.Succession = ClusterInfoTo(identity.ClusterInfo{Bundle: other.TrustBundle()}).GetSuccession()
		},
		"a succession that repeats":    func(m *ententev1.ClusterInfo) { m.Succession = append(m.GetSuccession(), m.GetSuccession()[1]) },
		"nine successions":             func(m *ententev1.ClusterInfo) { m.Succession = make([][]byte, 9) },
		"a key of many bytes":          func(m *ententev1.ClusterInfo) { m.IdentityKey = make([]byte, 300) },
		"the old root without the new": func(m *ententev1.ClusterInfo) { m.Bundle = mine.TrustBundle().Roots[1].Raw },
		"another cluster, all of a piece": func(m *ententev1.ClusterInfo) {
			proto.Reset(m)
			proto.Merge(m, ClusterInfoTo(identity.ClusterInfo{Name: "office", Bundle: other.TrustBundle()}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := ClusterInfoTo(identity.ClusterInfo{Name: "office", Bundle: mine.TrustBundle()})
			change(m)
			if _, err := ClusterInfoFrom(m, mine.ID()); ReasonOf(err) != peering.ReasonRequestInvalid {
				t.Errorf("got %v", err)
			}
		})
	}
}

func FuzzClusterInfoAfterRollover(f *testing.F) {
	id := rolled(f, 2)
	seed := ClusterInfoTo(identity.ClusterInfo{Name: "a", Endpoints: []string{"a:1"}, Bundle: id.TrustBundle()})
	fuzzMessage(f, []*ententev1.ClusterInfo{seed}, func() *ententev1.ClusterInfo { return &ententev1.ClusterInfo{} },
		func(m *ententev1.ClusterInfo) (identity.ClusterInfo, error) { return ClusterInfoFrom(m, id.ID()) }, ClusterInfoTo)
}

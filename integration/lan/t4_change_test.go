package lan

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

// TestAThirdClusterMakesAFullMesh has a third cluster come, change its address, change
// its key, and go. Peerings follow, and contracts stay.
func TestAThirdClusterMakesAFullMesh(t *testing.T) {
	only.Matrix(t, "two minutes, mostly waiting")
	ctx, s := onStage(t)
	rome, milan, oslo := s.rome(), s.milan(), s.oslo()
	all := map[*e2e.Side]setting{rome: member, milan: member, oslo: member}
	ok(t, s.are(ctx, all))
	begin := time.Now() // the agent may have run before, as no member
	s.peered(ctx, t, 2*atMost, begin, s.pairs()...)

	t.Run("one that was killed comes back with another address", func(t *testing.T) {
		before := s.mesh(ctx, t)
		// Cut off first: the connections of what is killed would end in an orderly way.
		for _, side := range []*e2e.Side{rome, milan} {
			_, err := s.World.Lab.Fault(ctx, lab.FaultRequest{Kind: "cut", A: side.Plan.Name, B: oslo.Plan.Name})
			ok(t, err)
		}
		begin := time.Now()
		ok(t, s.World.Lab.StopNode(ctx, oslo.Node()))
		ok(t, s.World.Until(ctx, 2*atMost, "the others to miss oslo", func(ctx context.Context) (string, error) {
			for _, side := range []*e2e.Side{rome, milan} {
				fc, err := side.KnowsID(ctx, before.ids[oslo])
				if err != nil || fc == nil {
					return "it is not known", err
				}
				if meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected) {
					return side.Name + " is connected", nil
				}
			}
			return "", nil
		}))
		t.Logf("it was missed after %s", seconds(time.Since(begin)))
		ok(t, s.World.Heal(ctx))
		s.moves(ctx, t, oslo, "172.30.3.77")
		s.peered(ctx, t, 2*atMost, time.Now(), s.pairs()...)
		for _, side := range []*e2e.Side{rome, milan} {
			fc, err := side.Knows(ctx, oslo)
			ok(t, err)
			t.Logf("%s reaches it at %q", side.Name, fc.Spec.Endpoints)
		}
		s.contractsStay(ctx, t, before)
	})
	t.Run("one rolls its key over", func(t *testing.T) {
		before := s.mesh(ctx, t)
		out, err := milan.Entente(ctx, "identity", "rollover")
		ok(t, err)
		t.Log(out)
		for _, side := range []*e2e.Side{rome, oslo} {
			ok(t, s.World.Until(ctx, atMost, side.Name+" to hold the new key of milan", func(ctx context.Context) (string, error) {
				fc, err := side.Knows(ctx, milan)
				if err != nil || fc == nil {
					return "it does not know it", err
				}
				if fc.Spec.TrustBundle == before.bundles[pair{side, milan}] {
					return "it holds the old one", nil
				}
				return "", nil
			}))
		}
		s.peered(ctx, t, atMost, time.Now(), s.pairs()...)
		s.contractsStay(ctx, t, before)
	})
	t.Run("one leaves, and the others are notified", func(t *testing.T) {
		before := s.mesh(ctx, t)
		begin := time.Now()
		ok(t, s.are(ctx, map[*e2e.Side]setting{rome: member, milan: member}))
		t.Logf("uninstalled in %s", seconds(time.Since(begin)))
		begin = time.Now()
		for _, side := range []*e2e.Side{rome, milan} {
			ok(t, s.World.Until(ctx, atMost, side.Name+" to have nothing in force with oslo, and to find it no more", func(ctx context.Context) (string, error) {
				have, err := side.ContractsWithID(ctx, before.ids[oslo])
				if err != nil || len(have) > 0 {
					return fmt.Sprintf("%d contracts are in force", len(have)), err
				}
				nodes, err := side.VirtualNodes(ctx)
				if err != nil || len(nodes) != 1 {
					return fmt.Sprintf("there are %d virtual nodes, want that of the other", len(nodes)), err
				}
				fc, err := side.KnowsID(ctx, before.ids[oslo])
				if err != nil || fc == nil {
					return "", err
				}
				if len(fc.Status.Sightings) > 0 {
					return fmt.Sprintf("it is found: %+v", fc.Status.Sightings), nil
				}
				c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
				if c == nil || c.Status == metav1.ConditionTrue {
					return fmt.Sprintf("its trust is %+v", c), nil
				}
				return "", nil
			}))
		}
		t.Logf("and the others know %s later", seconds(time.Since(begin)))
		s.peered(ctx, t, atMost, time.Now(), pair{rome, milan})
	})
}

// moves gives a cluster's node another address, and waits for its agent.
func (s *stage) moves(ctx context.Context, t *testing.T, side *e2e.Side, to string) {
	t.Helper()
	was := side.Plan.Control()
	ok(t, s.World.Readdress(ctx, side, netip.MustParseAddr(to)))
	// Its own addresses are what the end is compared with.
	is := side.Plan.Control()
	for i, line := range s.before[side].Network {
		s.before[side].Network[i] = strings.NewReplacer(was.Address.String(), is.Address.String(), was.Address6.String(), is.Address6.String()).Replace(line)
	}
	begin := time.Now()
	ok(t, side.AgentReady(ctx, 2*e2e.Restarted))
	t.Logf("the agent of %s is ready %s after its API server", side.Name, seconds(time.Since(begin)))
}

// mesh has the peerings between the clusters.
type mesh struct {
	ids       map[*e2e.Side]string
	contracts map[pair]map[v1alpha1.ContractRole]string
	bundles   map[pair]string
}

// mesh reads the peerings between all clusters.
func (s *stage) mesh(ctx context.Context, t *testing.T) mesh {
	t.Helper()
	m := mesh{map[*e2e.Side]string{}, map[pair]map[v1alpha1.ContractRole]string{}, map[pair]string{}}
	for _, p := range s.pairs() {
		for _, way := range p.Ways() {
			id, err := way[0].ID(ctx)
			ok(t, err)
			m.ids[way[0]] = id
			have, err := way[0].ContractsWith(ctx, way[1])
			ok(t, err)
			m.contracts[way] = map[v1alpha1.ContractRole]string{}
			for role, c := range have {
				m.contracts[way][role] = fmt.Sprintf("%s, made %s", c.Name, c.CreationTimestamp.UTC().Format(time.RFC3339))
			}
			fc, err := way[0].Knows(ctx, way[1])
			ok(t, err)
			if fc != nil {
				m.bundles[way] = fc.Spec.TrustBundle
			}
		}
	}
	return m
}

// contractsStay checks that the contracts are those that were there before.
func (s *stage) contractsStay(ctx context.Context, t *testing.T, before mesh) {
	t.Helper()
	now := s.mesh(ctx, t)
	for way, was := range before.contracts {
		for role, c := range was {
			if now.contracts[way][role] != c {
				t.Errorf("%s with %s as %s: contract %s is %q now", way[0].Name, way[1].Name, role, c, now.contracts[way][role])
			}
		}
	}
}

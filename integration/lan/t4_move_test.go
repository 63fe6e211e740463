package lan

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

// TestNodesMoveToAnotherLANAndBack moves the node of one cluster, and then that of a second one, to
// a LAN behind a router, and both back, each time to another address. They are found at their new
// place, and no longer at the old one; peerings come back and contracts stay.
func TestNodesMoveToAnotherLANAndBack(t *testing.T) {
	only.Matrix(t, "six minutes, mostly waiting for records to expire")
	ctx, s := onStage(t)
	rome, milan, oslo := s.rome(), s.milan(), s.oslo()
	ok(t, s.are(ctx, map[*e2e.Side]setting{rome: member, milan: member, oslo: member}))
	s.peered(ctx, t, 2*atMost, time.Now(), s.pairs()...)
	ok(t, lab.InstallHostPrograms(ctx, s.Say, avahiPrograms...))
	there := s.host(ctx, t, "shed", 2)
	avahi(ctx, t, there)
	before := s.mesh(ctx, t)
	for _, tt := range []struct {
		name string
		side *e2e.Side
		to   string
		// lan has all clusters by their LAN afterwards.
		lan map[*e2e.Side]int
	}{
		{"one moves", oslo, "172.29.3.78", map[*e2e.Side]int{rome: 1, milan: 1, oslo: 2}},
		{"another one follows", milan, "172.29.2.78", map[*e2e.Side]int{rome: 1, milan: 2, oslo: 2}},
		{"the first one moves back", oslo, "172.30.3.79", map[*e2e.Side]int{rome: 1, milan: 2, oslo: 1}},
		{"the other one, too", milan, "172.30.2.79", map[*e2e.Side]int{rome: 1, milan: 1, oslo: 1}},
	} {
		if !t.Run(tt.name, func(t *testing.T) {
			begin := time.Now()
			s.moves(ctx, t, tt.side, tt.to)
			s.peered(ctx, t, 2*atMost, time.Now(), s.pairs()...)
			s.contractsStay(ctx, t, before)
			// A host name lives for two minutes (RFC 6762 section 10).
			ok(t, s.World.Until(ctx, 3*atMost, "each to be found on its own LAN, and nowhere else", func(ctx context.Context) (string, error) {
				for _, p := range s.pairs() {
					for _, way := range p.Ways() {
						missing, err := sighted(ctx, way[0], way[1], tt.lan[way[0]] == tt.lan[way[1]])
						if err != nil || missing != "" {
							return missing, err
						}
					}
				}
				return "", nil
			}))
			t.Logf("each is found where it is, and nowhere else, %s after it moved", seconds(time.Since(begin)))
			if tt.lan[tt.side] != 2 {
				return
			}
			ok(t, s.World.Until(ctx, atMost, "avahi to find it there", func(ctx context.Context) (string, error) {
				out, err := browses(ctx, there, "_entente._tcp")
				if err != nil {
					return "", err
				}
				return missingOf(out, before.ids[tt.side], tt.side), nil
			}))
		}) {
			return
		}
	}
}

// sighted says what is missing where a cluster is to find another one on its LAN, where
// that is now, or is not to find it at all.
func sighted(ctx context.Context, side, other *e2e.Side, want bool) (missing string, err error) {
	fc, err := side.Knows(ctx, other)
	if err != nil || fc == nil {
		return side.Name + " does not know " + other.Name, err
	}
	at := fmt.Sprintf("%s:%d", other.Plan.Control().Address, e2e.PeerNodePort)
	is := slices.ContainsFunc(fc.Status.Sightings, func(s v1alpha1.Sighting) bool {
		return s.Source == v1alpha1.SourceLAN && slices.Contains(s.Endpoints, at)
	})
	if is != want || !want && len(fc.Status.Sightings) > 0 {
		return fmt.Sprintf("%s finds %s, which is at %s, at %+v", side.Name, other.Name, at, fc.Status.Sightings), nil
	}
	return "", nil
}

package lan

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

// TestTwoClustersOfAGroupPeerByThemselves installs the chart in a second cluster, and
// does nothing else.
func TestTwoClustersOfAGroupPeerByThemselves(t *testing.T) {
	ctx, s := onStage(t)
	rome, milan := s.rome(), s.milan()
	ok(t, s.are(ctx, map[*e2e.Side]setting{rome: member}))
	ok(t, rome.AgentReady(ctx, e2e.Restarted))
	installed := make(chan error, 1)
	go func() { installed <- s.are(ctx, map[*e2e.Side]setting{rome: member, milan: member}) }()
	begin, err := milan.AgentStarted(ctx, e2e.Scheduled)
	ok(t, err)
	// How long it takes is measured and not judged: a busy machine takes as long as it takes.
	took := s.peered(ctx, t, patience, begin, pair{rome, milan})
	t.Logf("peered in both directions %s after the agent of the second cluster started", seconds(took))
	ok(t, <-installed)
	begin = time.Now()
	s.offloads(ctx, t, rome, milan)
	s.offloads(ctx, t, milan, rome)
	t.Logf("pods run in the other cluster, and answer, both ways: %s", seconds(time.Since(begin)))
}

// TestAvahiFindsAPublishedCluster browses from another machine on the LAN with a third-party
// browser.
func TestAvahiFindsAPublishedCluster(t *testing.T) {
	ctx, s := onStage(t)
	rome := s.rome()
	if s.is[rome] != member {
		ok(t, s.are(ctx, map[*e2e.Side]setting{rome: member}))
	}
	ok(t, lab.InstallHostPrograms(ctx, s.Say, avahiPrograms...))
	host := s.host(ctx, t, "desk", 1)
	avahi(ctx, t, host)
	id, err := rome.ID(ctx)
	ok(t, err)
	for _, service := range []string{"_entente._tcp", "_automatic._sub._entente._tcp"} {
		ok(t, s.World.Until(ctx, atMost, "avahi to resolve "+service, func(ctx context.Context) (string, error) {
			out, err := browses(ctx, host, service)
			if err != nil {
				return "", err
			}
			missing := missingOf(out, id, rome)
			if missing == "" {
				t.Logf("%s:\n%s", service, out)
				return "", nil
			}
			return missing + " in:\n" + out, nil
		}))
	}
}

// missingOf returns what avahi-browse does not report of a cluster: its name and its TXT by IPv4
// and by IPv6.
func missingOf(out, id string, side *e2e.Side) string {
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		// =;eth0;IPv4;name;_entente._tcp;local;host.local;address;port;"key=value" …
		f := strings.SplitN(strings.TrimSpace(line), ";", 10)
		if len(f) < 10 || f[0] != "=" || !strings.Contains(f[9], id) || !strings.HasPrefix(f[3], side.Name) {
			continue
		}
		seen[f[2]] = true
		if f[7] == side.Plan.Control().Address.String() {
			seen["its address"] = true
		}
	}
	for _, want := range []string{"IPv4", "IPv6", "its address"} {
		if !seen[want] {
			return "it does not find " + side.Name + " by " + want
		}
	}
	return ""
}

package agent

import (
	"fmt"
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// uncached is a manager whose cache is not needed.
type uncached struct{ ctrl.Manager }

func (uncached) GetCache() cache.Cache { return nil }

// What administrators are asked to paste into a zone is what the agent publishes itself,
// also while its key is being replaced.
func TestAdminInfoMatchesThePublishedService(t *testing.T) {
	t.Parallel()
	source := newSource(t)
	automatic := false
	a := &agent{
		cfg: Config{ClusterName: "office", PeerEndpoints: []string{"192.0.2.10:7443"}}, source: source, mgr: uncached{},
		announces: func() bool { return automatic },
	}
	prints := map[string]bool{}
	for _, automatic = range []bool{false, true} {
		s := a.service(a.cfg.PeerEndpoints)
		self := a.adminSelf()
		if s.Text.Fingerprint == "" || self.Fingerprint != s.Text.Fingerprint || self.Automatic != s.Automatic || s.Automatic != automatic {
			t.Errorf("administrators see %+v, and discovery publishes %+v", self, s)
		}
		prints[self.Fingerprint] = true
		next, err := source.Identity().Rollover(time.Now(), time.Nanosecond)
		if err != nil {
			t.Fatal(err)
		}
		if err := source.SetIdentity(next); err != nil {
			t.Fatal(err)
		}
	}
	for want, cfg := range map[string]Config{
		"[]": {}, "[LAN]": {DiscoveryLAN: true}, "[LAN DNS]": {DiscoveryLAN: true, DiscoveryDomains: []string{"example.com"}},
	} {
		a.cfg = cfg
		if self := a.adminSelf(); fmt.Sprint(self.Sources) != want {
			t.Errorf("it discovers clusters by %v, want %s", self.Sources, want)
		}
	}
	if len(prints) != 2 {
		t.Errorf("the fingerprints are %v: a key was replaced", prints)
	}
}

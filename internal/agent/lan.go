package agent

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/browse"
	"github.com/entente-dev/entente/internal/fabric"
	"github.com/entente-dev/entente/internal/sightings"
	"github.com/entente-dev/entente/peering"
)

// reconcileNodeDiscoveries reconciles the NodeDiscovery of the gateway. With discovery on LANs off it removes those
// that exist.
func (a *agent) reconcileNodeDiscoveries(_ context.Context, interfaces []string) error {
	discoveries := &sightings.NodeDiscoveries{Client: a.mgr.GetClient(), Now: time.Now, Desired: func(ctx context.Context) (*v1alpha1.NodeDiscoverySpec, error) {
		if !a.cfg.DiscoveryLAN {
			return nil, nil //nolint:nilnil // discovery on LANs is off
		}
		all, err := endpoints(ctx, a.mgr.GetCache(), &a.cfg)
		if err != nil {
			return nil, err
		}
		expected, err := browse.Expected(ctx, a.mgr.GetCache())
		if err != nil {
			return nil, err
		}
		spec := fabric.Published(a.service(all), all)
		spec.Interfaces, spec.PreferredClusterIDs = interfaces, expected
		return &spec, nil
	}}
	return discoveries.SetupWithManager(a.mgr)
}

// service is what this cluster publishes about itself, on LANs and in DNS.
func (a *agent) service(endpoints []string) discovery.Service {
	s := discovery.NewService(a.source.ID(), a.name(), peering.Protocol, endpoints)
	hash := a.source.Identity().TrustBundle().Hash()
	s.Text.Fingerprint, s.Automatic = hex.EncodeToString(hash[:fingerprintBytes]), a.announces()
	return s
}

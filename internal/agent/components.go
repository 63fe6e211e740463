package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// component is a part of the agent, as its configuration decides it.
type component struct {
	Name string
	// Config is the configuration of this part; nil if it has none.
	Config any

	build func(*agent, context.Context) error
}

// Configurations of parts that have more than one value.
type (
	statesConfig struct {
		PodCIDRs, ServiceCIDRs []netip.Prefix
		KeyEvery               time.Duration
	}
	serveConfig struct{ Health, Metrics string }
	nodesConfig struct {
		Address     string
		Certificate KubeletCertificate
	}
	domainsConfig struct{ Domains, Resolvers []string }
	peerConfig    struct {
		Address, InBand string
		Carry           CarryConfig
	}
)

// components returns the parts of an agent in the order in which they are built: a part
// uses those before it.
func components(cfg *Config) []component {
	list := []component{
		configured("lease", cfg.LeaseDuration, (*agent).elect),
		part("API server", (*agent).clients),
		configured("cluster domain", cfg.ClusterDomain, (*agent).findDomain),
		configured("identity", cfg.LeafLife, (*agent).identify),
		configured("manager", serveConfig{cfg.HealthAddress, cfg.MetricsAddress}, (*agent).manager),
		part("certificates", (*agent).certificates),
		configured("states", statesConfig{cfg.PodCIDRs, cfg.ServiceCIDRs, cfg.PresharedKeyEvery}, (*agent).buildStates),
		configured("provider", cfg.DNSService, (*agent).startProvider),
		part("discovery", (*agent).discovery),
		configured("relay", cfg.Relay, (*agent).relayDatagrams),
		configured("home API", cfg.HomeAPI, (*agent).buildHomeAPI),
		configured("peer API", peerConfig{cfg.PeerAddress, cfg.InBandAddress, cfg.Carry}, (*agent).peerAPI),
		part("sessions", (*agent).runSessions),
		configured("virtual nodes", nodesConfig{cfg.KubeletAddress, cfg.KubeletCertificate}, (*agent).virtualNodes),
		part("PeeringRequests", (*agent).reconcileRequests),
		configured("admin API", cfg.AdminAddress, (*agent).adminAPI),
		part("automatic peering", (*agent).peerByPolicy),
		part("trust", (*agent).reconcileTrust),
		configured("ExternalHosts", cfg.ExternalHosts, (*agent).reconcileHosts),
		configured("ForeignClusters", cfg.AliasPool, (*agent).reconcilePeers),
		part("gateways", (*agent).reconcileGateways),
		part("orphans", (*agent).reconcileOrphans),
		part("Contracts", (*agent).reconcileContracts),
		part("NamespaceOffloadings", (*agent).reconcileNamespaces),
		part("ImportedServices", (*agent).importServices),
		configured("ServiceImports", cfg.MultiClusterServices, (*agent).shareNamespaces),
		part("ClusterProfiles", (*agent).showProfiles),
	}
	if len(cfg.DiscoveryDomains)+len(cfg.DiscoveryResolvers) > 0 {
		list = append(list, configured("domains", domainsConfig{cfg.DiscoveryDomains, cfg.DiscoveryResolvers}, (*agent).browseDomains))
	}
	if cfg.DiscoveryLAN {
		list = append(list, part("LANs", (*agent).watchLANs))
	}
	if cfg.PlacementBy != "" {
		list = append(list, part("check of placement", (*agent).checkPlacement))
	}
	if cfg.Placement.Address != "" {
		list = append(list, configured("placement", cfg.Placement, (*agent).placePods))
	}
	return append(list,
		configured("NodeDiscoveries", cfg.DiscoveryInterfaces, (*agent).reconcileNodeDiscoveries),
		part("sightings", (*agent).recordSightings),
		configured("DNS updates", cfg.Update, (*agent).publish),
	)
}

func part(name string, build func(*agent, context.Context) error) component {
	return component{Name: name, build: build}
}

// configured returns a part that is built with its Config alone.
func configured[C any](name string, config C, build func(*agent, context.Context, C) error) component {
	return component{Name: name, Config: config, build: func(a *agent, ctx context.Context) error { return build(a, ctx, config) }}
}

func (a *agent) build(ctx context.Context) error {
	for _, c := range components(&a.cfg) {
		if err := c.build(a, ctx); err != nil {
			return fmt.Errorf("build %s: %w", c.Name, err)
		}
	}
	return nil
}

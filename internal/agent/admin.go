package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/version"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
	"github.com/entente-dev/entente/server/admin"
)

// adminAPI builds the API for administrators of this cluster.
func (a *agent) adminAPI(ctx context.Context, address string) error {
	api, err := admin.New(admin.Config{
		Log: a.log, Client: a.direct, Events: a.events, Cache: watched{a.mgr.GetCache()}, Kubernetes: a.kubernetes,
		TLS:  a.source.AdminTLS(a.serviceNames(), a.ownAddresses()),
		Self: a.storedSelf, Tokens: issued{a.tokens, a}, Join: a.join,
		Introduce: a.introduce, Preview: a.requests.Preview, TestPolicy: a.testPolicy, PlanNetwork: a.planNetwork, Rollover: a.rollover,
		NetworkParameters: a.networkParameters, ConnectInBand: a.connectInBand,
	})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for administrators on %s: %w", address, err)
	}
	return a.run(func(ctx context.Context) error { return api.Run(ctx, listener) })
}

// planNetwork returns what the network with a peer would be.
func (a *agent) planNetwork(ctx context.Context, peer *v1alpha1.ForeignCluster, prefixes []string) (peering.NetworkPlan, error) {
	own, err := a.gateways.Announced(ctx)
	if err != nil {
		return peering.NetworkPlan{}, err
	}
	return a.peers.PlanNetwork(ctx, peer, prefixes, own)
}

// adminSelf is what administrators see of this cluster.
func (a *agent) adminSelf() admin.Self {
	_, expires := a.source.Leaf()
	endpoints := a.endpoints()
	s := a.service(endpoints)
	self := admin.Self{
		ID: a.source.ID(), Name: a.name(), Version: version.Version, Endpoints: endpoints, Protocol: peering.Protocol,
		RootExpires: a.source.Identity().Root().NotAfter, CertificateExpires: expires,
		Fingerprint: s.Text.Fingerprint, Automatic: s.Automatic, Placement: a.cfg.PlacementBy, NotPlaced: a.placed.Problems(),
	}
	if a.found != nil {
		self.Problems, self.Domains = a.problems, domainStates(a.found.Browser)
	}
	if a.cfg.DiscoveryLAN {
		self.Sources = append(self.Sources, v1alpha1.SourceLAN)
	}
	if len(a.cfg.DiscoveryDomains) > 0 {
		self.Sources = append(self.Sources, v1alpha1.SourceDNS)
	}
	if published := a.published.Load(); published != nil {
		self.DNS = *published
	}
	return self
}

// storedSelf is adminSelf, with what is wrong with the identity that is stored.
func (a *agent) storedSelf(ctx context.Context) (admin.Self, error) {
	self := a.adminSelf()
	if p := store.IdentityProblem(ctx, a.direct, a.cfg.Namespace, self.ID); p != "" {
		self.Problems = slices.Concat([]string{p}, self.Problems)
	}
	return self, nil
}

// domainStates is what administrators see of domains; nil if none is browsed.
func domainStates(browser *dnssd.Browser) []admin.DNSDomain {
	if browser == nil {
		return nil
	}
	var out []admin.DNSDomain
	for _, s := range browser.Domains() {
		out = append(out, admin.DNSDomain{
			Domain: s.Name, Clusters: len(s.Found), Answered: s.Answered, Error: s.Err, Since: s.Since, Unlisted: s.Unlisted,
			Problems: s.Problems, LeftOut: s.LeftOut, Authenticated: s.Authenticated,
		})
	}
	return out
}

// issued is the tokens of this cluster. It implements admin.Tokens.
type issued struct {
	*store.Tokens
	a *agent
}

func (i issued) Mint(ctx context.Context, ttl time.Duration) (jointoken.Token, error) {
	return i.Tokens.Mint(ctx, i.a.source.ID(), i.a.endpoints(), ttl)
}

// testPolicy returns how a peer's request would be decided.
func (a *agent) testPolicy(ctx context.Context, peer peering.ClusterID, request *v1alpha1.PeeringRequest) (peering.PolicyTest, error) {
	ask, err := market.AskOf(request)
	if err != nil {
		return peering.PolicyTest{}, err
	}
	return a.provider.Test(ctx, peer, ask)
}

// rollover replaces the key under this cluster's root. The stored identity decides: an agent that stops halfway
// starts with the new key.
func (a *agent) rollover(ctx context.Context) (root, overlap time.Time, err error) {
	next, err := store.RolloverIdentity(ctx, a.direct, a.cfg.Namespace, time.Now(), a.source.Overlap())
	if early := (*identity.TooSoonError)(nil); errors.As(err, &early) {
		return root, overlap, peering.Errorf(peering.ReasonRolloverTooSoon,
			"the rollover before is not over until %s: peers still learn of it", early.Until.UTC().Format(time.RFC3339))
	}
	if errors.Is(err, identity.ErrNoSuccession) {
		return root, overlap, peering.Errorf(peering.ReasonRolloverTooSoon, "this cluster's key was replaced as often as it can be: %w", err)
	}
	if err != nil {
		return root, overlap, err
	}
	if err := a.source.SetIdentity(next); err != nil {
		return root, overlap, err
	}
	until, _ := next.Overlap()
	return next.Root().NotAfter, until, a.publishCA(ctx)
}

// watched is the agent's cache. It implements admin.Cache.
type watched struct{ cache.Cache }

func (w watched) Watch(ctx context.Context, kind ctrlclient.Object, handler toolscache.ResourceEventHandler) (func(), error) {
	return kube.Watch(ctx, w.Cache, kind, handler)
}

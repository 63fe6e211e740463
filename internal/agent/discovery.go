package agent

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/controller"
)

// domainsStart is for how long after its start the agent believes what it knew of a
// domain that cannot be asked.
const domainsStart = 10 * time.Minute

// discover keeps what discovery finds, while this agent leads. With discovery off what
// was found before goes.
func (a *agent) discover(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	d := &domains{now: time.Now, log: a.log}
	if len(a.cfg.DiscoveryDomains) > 0 {
		cfg := dnssd.Config{
			Domains:   a.cfg.DiscoveryDomains,
			Forbidden: a.keptToItself(ctx),
			Changed: func(dnssd.Domain) {
				select {
				case wake <- struct{}{}:
				default:
				}
			},
		}
		if len(a.cfg.DiscoveryResolvers) > 0 {
			resolvers, err := dnssd.NewResolvers(a.cfg.DiscoveryResolvers...)
			if err != nil {
				return fmt.Errorf("discovery: %w", err)
			}
			cfg.Exchange = resolvers.Exchange
		}
		var err error
		if d.browser, err = dnssd.NewBrowser(cfg); err != nil {
			return fmt.Errorf("discovery: %w", err)
		}
		if err := a.run(d.run); err != nil {
			return err
		}
	}
	return a.mgr.Add(&controller.Sightings{
		Client: a.mgr.GetClient(), Direct: a.direct, Self: a.source.ID(), Events: a.events, Log: a.log, Look: d.look, Wake: wake,
	})
}

// domains is what is found in domains.
type domains struct {
	// browser is nil if no domain is asked.
	browser *dnssd.Browser
	now     func() time.Time
	log     interface{ Warn(string, ...any) }

	mu    sync.Mutex
	began time.Time
	// told is what was logged of each domain.
	told map[string]string
}

func (d *domains) run(ctx context.Context) error {
	d.mu.Lock()
	d.began = d.now()
	d.mu.Unlock()
	return d.browser.Run(ctx)
}

// look returns what is found now.
func (d *domains) look() controller.Looked {
	if d.browser == nil {
		return controller.Looked{}
	}
	all := d.browser.Domains()
	d.mu.Lock()
	defer d.mu.Unlock()
	starting := d.began.IsZero() || d.now().Sub(d.began) < domainsStart
	out := controller.Looked{Starting: map[controller.Place]bool{}}
	for _, domain := range all {
		d.tell(domain)
		if starting && (domain.Asked.IsZero() || domain.Err != "") {
			out.Starting[controller.Place{Source: v1alpha1.FoundDNS, Where: domain.Name}] = true
		}
		for _, f := range domain.Found {
			out.Found = append(out.Found, controller.Sighted{ID: f.ID, Sighting: v1alpha1.Sighting{
				Source: v1alpha1.FoundDNS, Where: domain.Name, Name: f.Name, Endpoints: f.Endpoints, Seen: v1.NewTime(f.Seen),
			}})
		}
	}
	return out
}

// tell logs what is wrong with a domain, once.
func (d *domains) tell(domain dnssd.Domain) {
	text := domain.Err
	for _, p := range domain.Problems {
		text += "\n" + p
	}
	if d.told == nil {
		d.told = map[string]string{}
	}
	if d.told[domain.Name] == text {
		return
	}
	d.told[domain.Name] = text
	if text != "" {
		d.log.Warn("a domain cannot be asked for clusters, or says what is of no use", "domain", domain.Name, "err", domain.Err, "problems", domain.Problems)
	}
}

// keptToItself is addresses that nobody outside names for this cluster to dial: its
// API server, its Services and pods, and its peers' pods.
func (a *agent) keptToItself(ctx context.Context) []netip.Prefix {
	out := slices.Concat(a.cfg.ServiceCIDRs, a.cfg.PodCIDRs, a.cfg.AliasPool)
	add := func(addr netip.Addr) {
		if addr = addr.Unmap().WithZone(""); addr.IsValid() {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	add(a.cfg.PodIP)
	if u, err := url.Parse(a.cfg.Kubernetes.Host); err == nil {
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			add(addr)
		}
	}
	if host, _, err := net.SplitHostPort(a.cfg.Kubernetes.Host); err == nil {
		if addr, err := netip.ParseAddr(host); err == nil {
			add(addr)
		}
	}
	// Where the API server is outside of the cluster's own prefixes.
	var slices discoveryv1.EndpointSliceList
	if err := a.direct.List(ctx, &slices, ctrlclient.InNamespace("default"), ctrlclient.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}); err != nil {
		a.log.Warn("cannot tell where the API server is, which no domain may lead to", "err", err)
	}
	for i := range slices.Items {
		for _, e := range slices.Items[i].Endpoints {
			for _, text := range e.Addresses {
				if addr, err := netip.ParseAddr(text); err == nil {
					add(addr)
				}
			}
		}
	}
	return out
}

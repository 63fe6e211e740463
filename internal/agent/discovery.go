package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/admin"
)

// domainsStart is for how long after its start the agent believes what it knew of a
// domain that cannot be asked.
const domainsStart = 10 * time.Minute

// lookupInterval is how often is asked what this cluster keeps to itself, lookupTimeout how long
// that may take, and lookupRetry how soon it is asked again as long as it is not known.
const lookupInterval, lookupTimeout, lookupRetry = time.Minute, 5 * time.Second, 5 * time.Second

// discovery builds what knows which addresses may be dialled, and where what is found in
// domains comes to.
func (a *agent) discovery(context.Context) error {
	a.found = &domains{now: time.Now, log: a.log, changed: notify.New(), forbidden: func(ctx context.Context) ([]netip.Prefix, error) {
		return ownRanges(ctx, a.mgr.GetCache(), a.direct, a.states.Reserved, &a.cfg)
	}}
	return nil
}

// browseDomains looks for clusters in domains. What is malformed is reported and left out:
// no peering ends because of it.
func (a *agent) browseDomains(_ context.Context, cfg domainsConfig) error {
	a.found.browser, a.found.problems = newBrowser(cfg, func(dnssd.Domain) { a.found.changed.Notify() })
	if len(a.found.problems) > 0 {
		a.log.Error("discovery in domains is not as it was configured", "problems", a.found.problems)
	}
	if a.found.browser == nil {
		return nil
	}
	return a.run(a.found.run)
}

// newBrowser returns a browser of what is well-formed, nil if that is not enough, and what
// is not, a line each in words of the chart.
func newBrowser(cfg domainsConfig, changed func(dnssd.Domain)) (browser *dnssd.Browser, problems []string) {
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var domains []string
	var resolvers []netip.AddrPort
	for _, domain := range cfg.Domains {
		if err := dnssd.CheckDomain(domain); err != nil {
			say("discovery.domains: %v: nobody is looked for there", err)
			continue
		}
		domains = append(domains, domain)
	}
	for _, text := range cfg.Resolvers {
		addr, err := resolverAddress(text)
		if err != nil {
			say("discovery.resolvers: %v: it is not asked", err)
			continue
		}
		resolvers = append(resolvers, addr)
	}
	const off = "discovery by DNS is off"
	switch {
	case len(domains) == 0:
		say("%s: discovery.domains has no other domain", off)
		return nil, problems
	case len(resolvers) == 0 && len(cfg.Resolvers) > 0:
		// No others are asked: they are not to learn what somebody kept from them.
		say("%s: discovery.resolvers has no other resolver", off)
		return nil, problems
	}
	list, err := dnssd.NewResolvers(resolvers...)
	if err != nil {
		say("%s: discovery.resolvers: %v", off, err)
		return nil, problems
	}
	browser, err = dnssd.NewBrowser(dnssd.Config{Domains: domains, Changed: changed, Exchange: list.Exchange})
	if err != nil {
		say("%s: discovery.domains: %v", off, err)
	}
	return browser, problems
}

// resolverAddress reads the address of a DNS server, with a port or without.
func resolverAddress(text string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr, 53), nil
	}
	addr, err := netip.ParseAddrPort(text)
	if err != nil || addr.Port() == 0 {
		return addr, fmt.Errorf("%q is neither an address nor ADDRESS:PORT", peering.Text(text, maxDiscoveryText))
	}
	return addr, nil
}

// watchLANs looks at what the fabrics of nodes find on LANs.
func (a *agent) watchLANs(ctx context.Context) error {
	a.lans = &lans{reader: a.mgr.GetCache(), now: time.Now, log: a.log, kept: a.found.keptNow}
	return onChange(ctx, a.mgr.GetCache(), &v1alpha1.NodeDiscovery{}, newVersion, a.found.changed.Notify)
}

// recordSightings keeps in ForeignClusters what discovery finds. With discovery off what
// was found before is removed.
func (a *agent) recordSightings(context.Context) error {
	look := a.found.look
	if a.lans != nil {
		look = lookAll(a.found.look, a.lans.look)
	}
	return a.mgr.Add(&controller.Sightings{
		Client: a.mgr.GetClient(), Self: a.source.ID(), Events: a.events, Log: a.log, Now: time.Now, Budget: a.states.Budget, Look: look, Wake: a.found.changed,
	})
}

// domains is what is found in domains.
type domains struct {
	// browser is nil if no domain is asked.
	browser *dnssd.Browser
	// problems is what is wrong with what was configured.
	problems []string
	now      func() time.Time
	log      *slog.Logger
	// changed has a value when what is found changed, here or on LANs.
	changed notify.Channel
	// forbidden is addresses that no domain leads to, beside those that nobody may.
	forbidden func(context.Context) ([]netip.Prefix, error)

	mu     sync.Mutex
	began  time.Time
	kept   []netip.Prefix
	keptAt time.Time
	// keepTried is when it was last asked for.
	keepTried time.Time
	// told is what was logged of each domain.
	told map[string]string
}

func (d *domains) run(ctx context.Context) error {
	d.mu.Lock()
	d.began = d.now()
	d.mu.Unlock()
	return d.browser.Run(ctx)
}

func (d *domains) look() controller.Looked {
	if d.browser == nil {
		return controller.Looked{}
	}
	all := d.browser.Domains()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keep()
	starting := d.began.IsZero() || d.now().Sub(d.began) < domainsStart
	out := controller.Looked{Places: map[controller.Place]bool{}}
	for _, domain := range all {
		d.tell(domain)
		place := controller.Place{Source: v1alpha1.FoundDNS, Where: domain.Name}
		out.Places[place] = starting && (domain.Asked.IsZero() || domain.Err != "")
		for _, f := range domain.Found {
			if f.Endpoints = dialable(f.Endpoints, d.kept); d.keptAt.IsZero() || len(f.Endpoints) == 0 {
				continue
			}
			out.Found = append(out.Found, controller.Sighted{ID: f.ID, Sighting: v1alpha1.Sighting{
				Source: v1alpha1.FoundDNS, Where: domain.Name, Name: f.Name, Endpoints: f.Endpoints, Seen: metav1.NewTime(f.Seen),
			}})
		}
	}
	return out
}

// states is what administrators are told of domains.
func (d *domains) states() []admin.DNSDomain {
	if d.browser == nil {
		return nil
	}
	var out []admin.DNSDomain
	for _, s := range d.browser.Domains() {
		out = append(out, admin.DNSDomain{
			Domain: s.Name, Clusters: len(s.Found), Answered: s.Answered, Error: s.Err, Since: s.Since, Unlisted: s.Unlisted,
			Problems: s.Problems, LeftOut: s.LeftOut, Authenticated: s.Authenticated,
		})
	}
	return out
}

// keptNow returns what this cluster keeps to itself; false is that it is not known yet.
func (d *domains) keptNow() ([]netip.Prefix, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keep()
	return d.kept, !d.keptAt.IsZero()
}

// mayDial says whether what discovery found may be dialled now.
func (d *domains) mayDial(endpoint string) bool {
	kept, known := d.keptNow()
	return known && len(dialable([]string{endpoint}, kept)) == 1
}

// keep learns each minute what this cluster keeps to itself. The lock is held.
func (d *domains) keep() {
	pause := lookupInterval
	if d.keptAt.IsZero() {
		pause = lookupRetry
	}
	if !d.keepTried.IsZero() && d.now().Sub(d.keepTried) < pause {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout) //nolint:forbidigo // a look has none
	defer cancel()
	kept, err := d.forbidden(ctx)
	d.keepTried = d.now()
	if err != nil {
		d.log.Warn("cannot tell which addresses nobody may lead this cluster to; until it was told once, what is found is not dialled", "err", err)
		return
	}
	d.kept, d.keptAt = kept, d.keepTried
}

func dialable(endpoints []string, forbidden []netip.Prefix) []string {
	return slices.DeleteFunc(slices.Clone(endpoints), func(e string) bool {
		addr, err := netip.ParseAddrPort(e)
		return err != nil || discovery.Dialable(addr.Addr(), forbidden...) != nil
	})
}

// tell logs what is wrong with a domain, once.
func (d *domains) tell(domain dnssd.Domain) {
	text := strings.Join(append([]string{domain.Err}, domain.Problems...), "\n")
	text = strings.TrimSpace(text)
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

// ownRanges is addresses that nobody outside names for this cluster to dial: its
// API server, its Services and pods, its nodes, and its peers' pods. Nodes are cached
// already; of EndpointSlices only those of the API server are wanted, so they are asked for.
func ownRanges(ctx context.Context, cached, direct ctrlclient.Reader, services controller.Reserved, cfg *Config) ([]netip.Prefix, error) {
	reserved, err := services(ctx)
	if err != nil {
		return nil, err
	}
	out := slices.Concat(reserved, cfg.PodCIDRs, cfg.AliasPool)
	add := func(texts ...string) {
		for _, addr := range addrs(texts) {
			addr = addr.WithZone("")
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	add(cfg.PodIP.String(), cfg.Kubernetes.Host)
	if u, err := url.Parse(cfg.Kubernetes.Host); err == nil {
		add(u.Hostname())
	}
	var endpoints discoveryv1.EndpointSliceList
	if err := direct.List(ctx, &endpoints, ctrlclient.InNamespace("default"), ctrlclient.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}); err != nil {
		return nil, fmt.Errorf("find out where the API server is: %w", err)
	}
	for i := range endpoints.Items {
		for _, e := range endpoints.Items[i].Endpoints {
			add(e.Addresses...)
		}
	}
	var nodes corev1.NodeList
	if err := cached.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("find out where nodes are: %w", err)
	}
	for i := range nodes.Items {
		for _, address := range nodes.Items[i].Status.Addresses {
			add(address.Address)
		}
		out = append(out, podCIDRs(&nodes.Items[i])...)
	}
	return out, nil
}

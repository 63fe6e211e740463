package browse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/sightings"
	"github.com/entente-dev/entente/peering"
)

// NewBrowser returns a browser of the well-formed domains with the well-formed resolvers, or nil if
// these do not suffice, and one line for each that is malformed, with the names of the chart's
// values. Malformed resolvers are reported even without domains.
func NewBrowser(inDomains, byResolvers []string, changed func(dnssd.Domain)) (browser *dnssd.Browser, problems []string) {
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var domains []string
	var resolvers []netip.AddrPort
	for _, domain := range inDomains {
		if err := dnssd.CheckDomain(domain); err != nil {
			say("discovery.domains: %v: no cluster is looked for there", err)
			continue
		}
		domains = append(domains, domain)
	}
	for _, text := range byResolvers {
		addr, err := resolverAddress(text)
		if err != nil {
			say("discovery.resolvers: %v: it is not asked", err)
			continue
		}
		resolvers = append(resolvers, addr)
	}
	const off = "discovery by DNS is off"
	switch {
	case len(inDomains) == 0:
		return nil, problems // discovery by DNS was not asked for
	case len(domains) == 0:
		say("%s: discovery.domains has no other domain", off)
		return nil, problems
	case len(resolvers) == 0 && len(byResolvers) > 0:
		// No other resolvers are asked: they must not learn which domains those are.
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

// resolverAddress parses the address of a DNS server, with or without a port.
func resolverAddress(text string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr, 53), nil
	}
	addr, err := netip.ParseAddrPort(text)
	if err == nil && addr.Port() != 0 {
		return addr, nil
	}
	shown := peering.Text(text, MaxText)
	host, port, _ := net.SplitHostPort(text)
	_, hostErr := netip.ParseAddr(host)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if hostErr == nil && (errors.Is(portErr, strconv.ErrRange) || portErr == nil && number == 0) {
		return netip.AddrPort{}, fmt.Errorf("%q: its port is not from 1 to 65535", shown)
	}
	return netip.AddrPort{}, fmt.Errorf("%q is neither an address nor ADDRESS:PORT", shown)
}

// Domains collects the clusters that are found in domains.
type Domains struct {
	// Browser is nil if discovery by DNS is off.
	Browser *dnssd.Browser
	// Dialable returns those of endpoints that may be dialled: none until it is known which
	// addresses this cluster reserves for itself.
	Dialable func(endpoints []string) []string
	Now      func() time.Time
	Log      *slog.Logger

	mu    sync.Mutex
	began time.Time
	// logged has the last log line about each domain.
	logged map[string]string
}

// Run browses until ctx ends.
func (d *Domains) Run(ctx context.Context) error {
	d.mu.Lock()
	d.began = d.Now()
	d.mu.Unlock()
	return d.Browser.Run(ctx)
}

// Snapshot returns what was found.
func (d *Domains) Snapshot() sightings.Snapshot {
	if d.Browser == nil {
		return sightings.Snapshot{}
	}
	all := d.Browser.Domains()
	d.mu.Lock()
	defer d.mu.Unlock()
	starting := d.began.IsZero() || d.Now().Sub(d.began) < domainsStart
	out := sightings.Snapshot{Places: map[sightings.Place]bool{}}
	for _, domain := range all {
		d.logProblems(domain)
		place := sightings.Place{Source: v1alpha1.SourceDNS, Where: domain.Name}
		out.Places[place] = starting && (domain.Asked.IsZero() || domain.Err != "")
		for _, f := range domain.Found {
			if f.Endpoints = d.Dialable(f.Endpoints); len(f.Endpoints) == 0 {
				continue
			}
			out.Found = append(out.Found, sightings.Sighted{ID: f.ID, Sighting: v1alpha1.Sighting{
				Source: v1alpha1.SourceDNS, Location: domain.Name, Name: f.Name, Endpoints: f.Endpoints, LastSeenTime: metav1.NewTime(f.Seen),
			}})
		}
	}
	return out
}

// logProblems logs the problems of a domain, once.
func (d *Domains) logProblems(domain dnssd.Domain) {
	text := strings.TrimSpace(strings.Join(append([]string{domain.Err}, domain.Problems...), "\n"))
	if d.logged == nil {
		d.logged = map[string]string{}
	}
	if d.logged[domain.Name] == text {
		return
	}
	d.logged[domain.Name] = text
	if text != "" {
		d.Log.Warn("a domain cannot be browsed for clusters, or has records that cannot be used", "domain", domain.Name, "err", domain.Err, "problems", domain.Problems)
	}
}

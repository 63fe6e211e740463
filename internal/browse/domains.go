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

// NewBrowser returns a browser of those domains, by those resolvers, that are well-formed, nil
// if that is not enough, and what is not, a line each in words of the chart. Without domains
// there is no browser, and what is wrong with resolvers is said all the same.
func NewBrowser(inDomains, byResolvers []string, changed func(dnssd.Domain)) (browser *dnssd.Browser, problems []string) {
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var domains []string
	var resolvers []netip.AddrPort
	for _, domain := range inDomains {
		if err := dnssd.CheckDomain(domain); err != nil {
			say("discovery.domains: %v: nobody is looked for there", err)
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
		return nil, problems // nothing is off that nobody asked for
	case len(domains) == 0:
		say("%s: discovery.domains has no other domain", off)
		return nil, problems
	case len(resolvers) == 0 && len(byResolvers) > 0:
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
	if err == nil && addr.Port() != 0 {
		return addr, nil
	}
	said := peering.Text(text, MaxText)
	host, port, _ := net.SplitHostPort(text)
	_, hostErr := netip.ParseAddr(host)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if hostErr == nil && (errors.Is(portErr, strconv.ErrRange) || portErr == nil && number == 0) {
		return netip.AddrPort{}, fmt.Errorf("%q: its port is not from 1 to 65535", said)
	}
	return netip.AddrPort{}, fmt.Errorf("%q is neither an address nor ADDRESS:PORT", said)
}

// Domains is what is found in domains.
type Domains struct {
	// Browser is nil if no domain is asked.
	Browser *dnssd.Browser
	// Dialable returns those of endpoints that may be dialled: none as long as it is not known
	// which addresses this cluster keeps to itself.
	Dialable func(endpoints []string) []string
	Now      func() time.Time
	Log      *slog.Logger

	mu    sync.Mutex
	began time.Time
	// told is what was logged of each domain.
	told map[string]string
}

// Run asks until ctx ends.
func (d *Domains) Run(ctx context.Context) error {
	d.mu.Lock()
	d.began = d.Now()
	d.mu.Unlock()
	return d.Browser.Run(ctx)
}

// Look returns what is found now.
func (d *Domains) Look() sightings.Looked {
	if d.Browser == nil {
		return sightings.Looked{}
	}
	all := d.Browser.Domains()
	d.mu.Lock()
	defer d.mu.Unlock()
	starting := d.began.IsZero() || d.Now().Sub(d.began) < domainsStart
	out := sightings.Looked{Places: map[sightings.Place]bool{}}
	for _, domain := range all {
		d.tell(domain)
		place := sightings.Place{Source: v1alpha1.FoundDNS, Where: domain.Name}
		out.Places[place] = starting && (domain.Asked.IsZero() || domain.Err != "")
		for _, f := range domain.Found {
			if f.Endpoints = d.Dialable(f.Endpoints); len(f.Endpoints) == 0 {
				continue
			}
			out.Found = append(out.Found, sightings.Sighted{ID: f.ID, Sighting: v1alpha1.Sighting{
				Source: v1alpha1.FoundDNS, Where: domain.Name, Name: f.Name, Endpoints: f.Endpoints, Seen: metav1.NewTime(f.Seen),
			}})
		}
	}
	return out
}

// tell logs what is wrong with a domain, once.
func (d *Domains) tell(domain dnssd.Domain) {
	text := strings.TrimSpace(strings.Join(append([]string{domain.Err}, domain.Problems...), "\n"))
	if d.told == nil {
		d.told = map[string]string{}
	}
	if d.told[domain.Name] == text {
		return
	}
	d.told[domain.Name] = text
	if text != "" {
		d.Log.Warn("a domain cannot be asked for clusters, or says what is of no use", "domain", domain.Name, "err", domain.Err, "problems", domain.Problems)
	}
}

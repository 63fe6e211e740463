package mdns

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

// collect returns the clusters that the link found, by instance, without those that it publishes
// itself, and separately those that imitate them. Its own are recognised by their ID, as another
// process on this host has the same addresses.
func (l *link) collect() (out, imitations []discovery.Found) {
	for _, p := range l.cache.sets[key{fold(serviceName), dns.TypePTR}] {
		instance, parent := p.target().first()
		if fold(parent) != fold(serviceName) {
			continue
		}
		f, ok := l.resolve(p, instance)
		if !ok {
			continue
		}
		mine := slices.ContainsFunc(l.services, func(s discovery.Service) bool { return s.Text.ID == f.ID })
		switch {
		case len(f.Endpoints) == 0:
		case !mine:
			out = append(out, f)
		case l.imitates(f):
			imitations = append(imitations, f)
		}
	}
	byInstance := func(a, b discovery.Found) int { return cmp.Compare(a.Instance, b.Instance) }
	slices.SortFunc(out, byInstance)
	slices.SortFunc(imitations, byInstance)
	return out, imitations
}

// resolve returns what is known about an instance, without endpoints until everything is. It
// returns false for one that is not a cluster.
func (l *link) resolve(p *entry, instance string) (discovery.Found, bool) {
	f := discovery.Found{Where: l.name, Seen: p.received, Until: p.until}
	if f.Instance = peering.Text(instance, discovery.MaxLabel); f.Instance != instance {
		return f, false
	}
	used := func(e *entry) {
		f.Seen, f.Until = later(f.Seen, e.received), earlier(f.Until, e.until)
	}
	text := newest(l.cache.sets[key{fold(p.target()), dns.TypeTXT}])
	where := newest(l.cache.sets[key{fold(p.target()), dns.TypeSRV}])
	if text == nil || where == nil {
		return f, true
	}
	var err error
	if f.Text, err = discovery.ParseText(text.texts()); err != nil {
		return f, false
	}
	used(text)
	used(where)
	f.Endpoints, f.From = l.endpoints(where), slices.Clone(where.senders)
	f.Automatic = slices.ContainsFunc(l.cache.sets[key{fold(automatic), dns.TypePTR}], func(e *entry) bool {
		return fold(e.target()) == fold(p.target())
	})
	var until time.Time
	for _, e := range l.hosts(where) {
		until = later(until, e.until)
	}
	if !until.IsZero() {
		f.Until = earlier(f.Until, until)
	}
	return f, true
}

// newest returns the entry that counts in a set that should have only one.
func newest(set []*entry) *entry {
	if len(set) == 0 {
		return nil
	}
	return slices.MaxFunc(set, func(a, b *entry) int { return a.received.Compare(b.received) })
}

func (l *link) hosts(srv *entry) []*entry {
	n := fold(srv.target())
	return slices.Concat(l.cache.sets[key{n, dns.TypeA}], l.cache.sets[key{n, dns.TypeAAAA}])
}

// endpoints returns the endpoints of an SRV record: IPv4 first, and link-local ones last, with
// their zone, without those of this host. Beyond the limit, each sender gets a share.
func (l *link) endpoints(srv *entry) []string {
	var all []discovery.Claim[netip.Addr]
	for _, e := range l.hosts(srv) {
		a := e.addr().Unmap()
		if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || !a.IsValid() {
			continue
		}
		if a.IsLinkLocalUnicast() && a.Is6() {
			a = a.WithZone(l.name)
		}
		all = append(all, discovery.Claim[netip.Addr]{Of: a, From: e.senders})
	}
	rank := func(a netip.Addr) int {
		switch {
		case a.IsLinkLocalUnicast():
			return 2
		case a.Is6():
			return 1
		}
		return 0
	}
	order := func(a, b netip.Addr) int { return cmp.Or(rank(a)-rank(b), a.Compare(b)) }
	own := func(c discovery.Claim[netip.Addr]) int {
		if slices.Contains(c.From, c.Of.WithZone("")) {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b discovery.Claim[netip.Addr]) int {
		return cmp.Or(own(a)-own(b), order(a.Of, b.Of))
	})
	list := discovery.InTurn(all, peering.MaxEndpoints)
	slices.SortFunc(list, order)
	var out []string
	for _, a := range list {
		if e := netip.AddrPortFrom(a, srv.port()).String(); peering.CheckEndpoint(e) == nil {
			out = append(out, e)
		}
	}
	return out
}

// sameFound reports whether two lists differ at most in times.
func sameFound(a, b []discovery.Found) bool {
	return slices.EqualFunc(a, b, func(a, b discovery.Found) bool {
		return a.Instance == b.Instance && a.Text == b.Text && a.Automatic == b.Automatic && a.Where == b.Where &&
			slices.Equal(a.Endpoints, b.Endpoints) && slices.Equal(a.From, b.From)
	})
}

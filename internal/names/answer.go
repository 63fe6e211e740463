package names

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

const (
	// ttl is the TTL of a record of home, in seconds: as in CoreDNS.
	ttl = 5
	// version is the version of the Kubernetes DNS specification that is followed.
	version = "1.1.0"
	// setDomain is the domain of Services of the Multi-Cluster Services API.
	setDomain = "clusterset.local"
)

// Answer is the answer to a question.
type Answer struct {
	// Forward means that the name is not home's: the question goes to the node's resolvers. Nothing
	// else is set then.
	Forward bool
	Rcode   int
	Records []dns.RR
	// Extra are addresses of the names in Records.
	Extra []dns.RR
	// Partial means that there are more records than the limit.
	Partial bool
	// Authority has the SOA record of a negative answer.
	Authority []dns.RR
	// Aliases lead from the name of the question to that of Records, one to the next.
	Aliases []dns.RR
	// Outside is the target of the last of Aliases, if it is not home's: it has to be resolved by
	// the node's resolvers. There are no Records then.
	Outside string
	// Work is how many endpoints and ports were read.
	Work int
}

// ClusterNames is which of this cluster's own names consumers can resolve.
type ClusterNames struct {
	// Hidden are this cluster's domains, in which consumers can resolve nothing.
	Hidden []string
	// Visible means that names that home does not have are forwarded, as the resolvers are this
	// cluster's. Only names below a namespace of home are hidden then.
	Visible bool
}

// Answer answers a question of a consumer's pod, with at most limit records.
//
//	NAME.NAMESPACE.svc.DOMAIN               A, AAAA, SRV   of a Service; or CNAME,
//	                                                       and what its target has
//	HOST.NAME.NAMESPACE.svc.DOMAIN          A, AAAA        of an endpoint
//	_PORT._PROTO.NAME.NAMESPACE.svc.DOMAIN  SRV            of a named port
//	the same below clusterset.local         the same       of a Service of home's cluster set;
//	                                                       HOST.CLUSTER.NAME… is an endpoint
//	….in-addr.arpa, ….ip6.arpa              PTR            of what home knows
//	other private addresses, this cluster's domains        no such name
//	everything else                                        forwarded
//
// The names are those of the Kubernetes specification of DNS-based service discovery, so that a pod
// sees what it would see at home.
func (b *Book) Answer(who Who, q dns.Question, limit int, cluster ClusterNames) Answer {
	switch q.Qtype {
	case dns.TypeANY:
		// RFC 8482: the smallest honest answer.
		return Answer{Records: []dns.RR{&dns.HINFO{Hdr: header(q.Name, dns.TypeHINFO), Cpu: "RFC8482"}}}
	case dns.TypeAXFR, dns.TypeIXFR, dns.TypeMAILA, dns.TypeMAILB:
		return Answer{Rcode: dns.RcodeRefused}
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	a := b.answer(who, q, limit, cluster)
	if q.Qtype == dns.TypeCNAME {
		a.Outside = ""
		return a
	}
	return b.follow(who, a, q, limit, cluster.Hidden)
}

// follow adds the answer for the target of an alias, if that is home's.
func (b *Book) follow(who Who, a Answer, q dns.Question, limit int, hidden []string) Answer {
	aliases, work := a.Aliases, a.Work
	for a.Outside != "" {
		if len(aliases) > maxAliases {
			return Answer{Rcode: dns.RcodeServerFailure, Work: work}
		}
		// A target is resolved as one of home's names, even if pods can resolve this cluster's,
		// too: home did not choose those.
		q.Name = a.Outside
		if a = b.answer(who, q, limit, ClusterNames{Hidden: hidden}); a.Forward {
			a = Answer{Outside: q.Name}
			break
		}
		aliases, work = append(aliases, a.Aliases...), work+a.Work
	}
	a.Aliases, a.Work = aliases, work
	return a
}

// answer answers a question without following aliases: Outside is the target of one, even if it is
// home's.
func (b *Book) answer(who Who, q dns.Question, limit int, cluster ClusterNames) Answer {
	// Names are compared in lower case; answers repeat the question as it was asked.
	labels := dns.SplitDomainName(strings.ToLower(q.Name))
	for _, set := range []bool{false, true} {
		z := zone{spaces: b.homes[who.Peer], domain: who.Domain, limit: limit, set: set}
		if set {
			z.domain = setDomain
		}
		rest, ok := below(labels, z.domain)
		if !ok {
			continue
		}
		if cluster.Visible && !z.has(rest) {
			return Answer{Forward: true}
		}
		a := z.answer(rest, q)
		a.Work = z.work
		return a
	}
	if p, ok := reversePrefix(labels); ok {
		return b.pointer(who, q, p, limit, cluster.Visible)
	}
	for _, domain := range cluster.Hidden {
		if _, ok := below(labels, domain); ok && !cluster.Visible {
			return negative(domain, dns.RcodeNameError)
		}
	}
	return Answer{Forward: true}
}

// below returns the labels before a domain's.
func below(labels []string, domain string) ([]string, bool) {
	suffix := dns.SplitDomainName(domain)
	n := len(labels) - len(suffix)
	if len(suffix) == 0 || n < 0 || !slices.Equal(labels[n:], suffix) {
		return nil, false
	}
	return labels[:n], true
}

// zone has the names that one consumer's pods can resolve.
type zone struct {
	spaces map[string]*space
	domain string
	// set means that its names are those of a cluster set.
	set   bool
	limit int
	work  int
}

// hit is the Service of a name.
type hit struct {
	Service
	space *space
	// key is its name here.
	key string
	// full is its fully qualified name.
	full string
}

// find returns the Service of a name.
func (z *zone) find(s *space, name string) (hit, bool) {
	key := name
	if z.set {
		key = s.sets[name]
	}
	svc, ok := s.services[key]
	return hit{Service: svc, space: s, key: key, full: name + "." + s.home + ".svc." + dns.Fqdn(z.domain)}, ok && (svc.Set != "") == z.set
}

// endpoints returns the endpoints of the Service that take traffic, in a fixed order.
func (r hit) endpoints() iter.Seq[Endpoint] { return r.space.endpoints(r.key) }

// of returns the name of an endpoint below its Service.
func (z *zone) of(e Endpoint) string {
	if z.set {
		return e.Hostname + "." + e.Cluster
	}
	return e.Hostname
}

// has reports whether names belong to home: those below its namespaces do.
func (z *zone) has(labels []string) bool {
	n := len(labels)
	return n >= 2 && labels[n-1] == "svc" && z.spaces[labels[n-2]] != nil
}

func (z *zone) answer(labels []string, q dns.Question) Answer {
	n := len(labels)
	switch {
	case n == 0:
		if q.Qtype == dns.TypeSOA {
			return Answer{Records: []dns.RR{soa(z.domain)}}
		}
		return z.noData()
	case n == 1 && labels[0] == "dns-version":
		if q.Qtype != dns.TypeTXT {
			return z.noData()
		}
		return Answer{Records: []dns.RR{&dns.TXT{Hdr: header(q.Name, dns.TypeTXT), Txt: []string{version}}}}
	case labels[n-1] != "svc":
		return z.noName()
	case n == 1:
		return z.noData()
	}
	s := z.spaces[labels[n-2]]
	switch {
	case s == nil:
		return z.noName()
	case n == 2:
		return z.noData()
	}
	r, ok := z.find(s, labels[n-3])
	below := labels[:n-3]
	switch {
	case !ok:
		return z.noName()
	case len(below) == 0:
		return z.service(r, q)
	case len(below) <= 2 && strings.HasPrefix(below[len(below)-1], "_"):
		return z.port(r, below, q)
	case len(below) <= 2:
		return z.endpoint(r, strings.Join(below, "."), q)
	}
	return z.noName()
}

func (z *zone) service(r hit, q dns.Question) Answer {
	switch {
	case r.ExternalName != "":
		target := dns.Fqdn(r.ExternalName)
		return Answer{Aliases: []dns.RR{&dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: target}}, Outside: target}
	case q.Qtype == dns.TypeSRV:
		return z.srv(r, r.Ports, q)
	case !r.Headless:
		return z.addresses(slices.Values(r.Addresses), q)
	}
	for range r.endpoints() {
		return z.addresses(addressesOf(r.endpoints()), q)
	}
	return z.noName()
}

// endpoint answers for an endpoint of a Service, and in a cluster set also for the label between
// them, its cluster. In a set, a Service with an address has no such names.
func (z *zone) endpoint(r hit, host string, q dns.Question) Answer {
	if z.set && !r.Headless {
		return z.noName()
	}
	var list []netip.Addr
	for e := range r.endpoints() {
		z.work++
		switch {
		case z.of(e) == host:
			list = append(list, e.Address)
		case z.set && e.Cluster == host:
			return z.noData()
		}
	}
	if len(list) == 0 {
		return z.noName()
	}
	return z.addresses(slices.Values(list), q)
}

func (z *zone) port(r hit, labels []string, q dns.Question) Answer {
	proto := labels[len(labels)-1]
	found := slices.DeleteFunc(slices.Clone(r.Ports), func(p Port) bool {
		return p.Name == "" || "_"+p.Protocol != proto || len(labels) > 1 && "_"+p.Name != labels[0]
	})
	switch {
	case len(found) == 0:
		return z.noName()
	case len(labels) == 1 || q.Qtype != dns.TypeSRV:
		return z.noData()
	}
	return z.srv(r, found, q)
}

// srv lists ports of a Service: its own, or those of its endpoints if it is headless.
func (z *zone) srv(r hit, ports []Port, q dns.Question) Answer {
	var out Answer
	seen := make(map[string]bool)
	add := func(target string, port uint16, list []netip.Addr) {
		out.Records = append(out.Records, &dns.SRV{Hdr: header(q.Name, dns.TypeSRV), Weight: 100, Port: port, Target: target})
		if seen[target] {
			return
		}
		seen[target] = true
		for _, a := range list {
			out.Extra = append(out.Extra, address(target, a))
		}
	}
	if !r.Headless {
		for _, p := range ports {
			add(r.full, p.Number, r.Addresses)
		}
	} else {
		z.endpointPorts(r, ports, &out, add)
		if len(out.Records) == 0 {
			return z.noName()
		}
	}
	if len(out.Records) == 0 {
		return z.noData()
	}
	// As in CoreDNS: all have the same weight.
	weight := uint16(max(1, 100/len(out.Records)))
	for _, rr := range out.Records {
		rr.(*dns.SRV).Weight = weight
	}
	return out
}

// endpointPorts adds those ports that the endpoints of a Service have.
func (z *zone) endpointPorts(r hit, ports []Port, out *Answer, add func(target string, port uint16, list []netip.Addr)) {
	for e := range r.endpoints() {
		for _, p := range e.Ports {
			z.work++
			if !slices.ContainsFunc(ports, func(w Port) bool { return w.Name == p.Name && w.Protocol == p.Protocol }) {
				continue
			}
			if len(out.Records) == z.limit {
				out.Partial = true
				return
			}
			add(z.of(e)+"."+r.full, p.Number, []netip.Addr{e.Address})
		}
	}
}

// addresses answers a question with the addresses of its family.
func (z *zone) addresses(list iter.Seq[netip.Addr], q dns.Question) Answer {
	var out Answer
	seen := make(map[netip.Addr]bool)
	for a := range list {
		z.work++
		if seen[a] || (q.Qtype != dns.TypeA || !a.Is4()) && (q.Qtype != dns.TypeAAAA || !a.Is6()) {
			continue
		}
		if len(out.Records) == z.limit {
			out.Partial = true
			break
		}
		seen[a] = true
		out.Records = append(out.Records, address(q.Name, a))
	}
	if len(out.Records) == 0 {
		return z.noData()
	}
	return out
}

func (z *zone) noData() Answer { return negative(z.domain, dns.RcodeSuccess) }
func (z *zone) noName() Answer { return negative(z.domain, dns.RcodeNameError) }

// endpoints returns the endpoints of a Service that take traffic, in a fixed order.
func (s *space) endpoints(service string) iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for _, name := range slices.Sorted(maps.Keys(s.slicesOf[service])) {
			for _, e := range s.slices[name].endpoints {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func addressesOf(endpoints iter.Seq[Endpoint]) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for e := range endpoints {
			if !yield(e.Address) {
				return
			}
		}
	}
}

func (b *Book) pointer(who Who, q dns.Question, p netip.Prefix, limit int, visible bool) Answer {
	var names []string
	work := 0
	if p.IsSingleIP() {
		names, work = b.namesOf(who, p.Addr())
	}
	switch {
	case len(names) > 0 && q.Qtype != dns.TypePTR:
		return negative(dns.Fqdn(q.Name), dns.RcodeSuccess)
	case len(names) > 0:
		out := Answer{Work: work}
		for _, name := range names[:min(len(names), limit, maxReverse)] {
			out.Records = append(out.Records, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: name})
		}
		return out
	case private(p) && !visible:
		// Names of private addresses, this cluster's or its owner's, are not disclosed.
		return negative(dns.Fqdn(q.Name), dns.RcodeNameError)
	}
	return Answer{Forward: true}
}

// namesOf returns the names of an address at a consumer's home, sorted: the Service of a cluster
// address, and endpoints of headless Services.
func (b *Book) namesOf(who Who, a netip.Addr) (out []string, work int) {
	for o := range b.reverse[a] {
		work++
		s := b.spaces[o.namespace]
		if s == nil || s.peer != who.Peer || b.homes[s.peer][s.home] != s {
			continue
		}
		svc, ok := s.services[o.service]
		if !ok || svc.Set != "" { // names of a cluster set have no reverse
			continue
		}
		full := o.service + "." + s.home + ".svc." + dns.Fqdn(who.Domain)
		switch {
		case o.slice == "":
			out = append(out, full)
		case svc.Headless:
			for _, e := range s.slices[o.slice].endpoints {
				work++
				if e.Address == a {
					out = append(out, e.Hostname+"."+full)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), work
}

// reversePrefix returns the addresses of a name below in-addr.arpa or ip6.arpa.
func reversePrefix(labels []string) (netip.Prefix, bool) {
	if rest, ok := below(labels, "in-addr.arpa"); ok && len(rest) <= 4 {
		var a [4]byte
		for i, label := range rest {
			n, err := strconv.ParseUint(label, 10, 8)
			if err != nil {
				return netip.Prefix{}, false
			}
			a[len(rest)-1-i] = byte(n)
		}
		return netip.PrefixFrom(netip.AddrFrom4(a), 8*len(rest)), true
	}
	if rest, ok := below(labels, "ip6.arpa"); ok && len(rest) <= 32 {
		var a [16]byte
		for i, label := range rest {
			n, err := strconv.ParseUint(label, 16, 4)
			if err != nil || len(label) != 1 {
				return netip.Prefix{}, false
			}
			at := len(rest) - 1 - i
			a[at/2] |= byte(n) << (4 * (1 - at%2))
		}
		return netip.PrefixFrom(netip.AddrFrom16(a), 4*len(rest)), true
	}
	return netip.Prefix{}, false
}

// private reports whether all addresses of a prefix are private.
func private(p netip.Prefix) bool {
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15",
		"::/127", "fc00::/7", "fe80::/10", "64:ff9b:1::/48",
	} {
		if r := netip.MustParsePrefix(text); r.Bits() <= p.Bits() && r.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

func header(name string, rtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rtype, Class: dns.ClassINET, Ttl: ttl}
}

func address(name string, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()}
}

func soa(domain string) dns.RR {
	domain = dns.Fqdn(domain)
	return &dns.SOA{
		Hdr: header(domain, dns.TypeSOA), Ns: "ns.dns." + domain, Mbox: "hostmaster." + domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

func negative(domain string, rcode int) Answer {
	return Answer{Rcode: rcode, Authority: []dns.RR{soa(domain)}}
}

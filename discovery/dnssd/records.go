package dnssd

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

// Records returns the records that publish a service in a domain: first the pointers of RFC 6763
// sections 4, 7.1 and 9, then SRV, TXT and the host's addresses. Without addresses, the host's name
// is published elsewhere.
func Records(s discovery.Service, domain string, ttl time.Duration) ([]dns.RR, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if ttl < MinPublishTTL || ttl > MaxPublishTTL {
		return nil, fmt.Errorf("TTL %s is not from %s to %s", ttl, MinPublishTTL, MaxPublishTTL)
	}
	domain, err := checkDomain(domain)
	if err != nil {
		return nil, err
	}
	host, instance := hostName(s, domain), instanceName(s, domain)
	header := func(name string, qtype uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: qtype, Class: dns.ClassINET, Ttl: uint32(ttl / time.Second)}
	}
	pointer := func(from, to string) dns.RR { return &dns.PTR{Hdr: header(from, dns.TypePTR), Ptr: to} }
	list := []dns.RR{
		pointer(metaName(domain), serviceName(domain)),
		pointer(serviceName(domain), instance),
	}
	if s.Automatic {
		list = append(list, pointer(automaticName(domain), instance))
	}
	text := make([]string, 0, 8)
	for _, t := range s.Text.Strings() {
		text = append(text, escapeText(t))
	}
	list = append(list,
		&dns.SRV{Hdr: header(instance, dns.TypeSRV), Port: s.Port, Target: host},
		&dns.TXT{Hdr: header(instance, dns.TypeTXT), Txt: text})
	for _, a := range s.Addresses {
		if a = a.Unmap(); discovery.Dialable(a) != nil {
			return nil, fmt.Errorf("others would not dial this address: %w", discovery.Dialable(a))
		}
		if ip := net.IP(a.AsSlice()); a.Is4() {
			list = append(list, &dns.A{Hdr: header(host, dns.TypeA), A: ip})
		} else {
			list = append(list, &dns.AAAA{Hdr: header(host, dns.TypeAAAA), AAAA: ip})
		}
	}
	for _, rr := range list {
		if _, ok := dns.IsDomainName(rr.Header().Name); !ok {
			return nil, fmt.Errorf("name %s is too long", show(rr.Header().Name))
		}
	}
	return list, nil
}

// Zone returns the records of a service as lines for a zone file (RFC 1035 section 5), for zones
// that are edited by hand.
func Zone(s discovery.Service, domain string, ttl time.Duration) (string, error) {
	list, err := Records(s, domain, ttl)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "; cluster %s in %s\n", s.Text.ID, peering.Text(domain, maxProblem))
	for _, rr := range list {
		fmt.Fprintln(&b, rr)
	}
	return b.String(), nil
}

// Removal returns the nsupdate commands that remove a service's records from a zone. The pointer
// from "_services" stays: it is for all clusters.
func Removal(s discovery.Service, domain string) ([]string, error) {
	list, err := Records(s, domain, DefaultTTL)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, rr := range list {
		h := rr.Header()
		line := fmt.Sprintf("update delete %s %s", h.Name, dns.TypeToString[h.Rrtype])
		if ptr, ok := rr.(*dns.PTR); ok {
			if _, _, err := splitInstance(ptr.Ptr); err != nil {
				continue
			}
			line += " " + ptr.Ptr
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// instanceName keeps the case of the configured name.
func instanceName(s discovery.Service, domain string) string {
	return escapeLabel(s.Instance) + "." + serviceName(domain)
}

func hostName(s discovery.Service, domain string) string { return canonical(s.Host + "." + domain) }

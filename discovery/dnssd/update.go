package dnssd

import (
	"errors"
	"slices"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

// content has the current record sets of a zone that matter for a service.
type content map[question][]dns.RR

// questions returns the record sets to read from a zone before it is changed.
func questions(s discovery.Service, domain string) []question {
	list := []question{
		{canonical(instanceName(s, domain)), dns.TypeTXT},
		{canonical(instanceName(s, domain)), dns.TypeSRV},
		{metaName(domain), dns.TypePTR},
		{serviceName(domain), dns.TypePTR},
		{automaticName(domain), dns.TypePTR},
	}
	if len(s.Addresses) > 0 {
		list = append(list, question{hostName(s, domain), dns.TypeA}, question{hostName(s, domain), dns.TypeAAAA})
	}
	return list
}

// change is the content of an update (RFC 2136).
type change struct {
	// present and absent are the prerequisites: sets that must still be as they were read, and sets
	// that must not exist.
	present []dns.RR
	absent  []question
	// remove and add are records of the service's own names; pointers are at names that all
	// services share.
	remove, add                 []dns.RR
	removePointers, addPointers []dns.RR
}

func (c change) empty() bool {
	return len(c.remove)+len(c.add)+len(c.removePointers)+len(c.addPointers) == 0
}

// Conflicts with records of others.
var (
	errInstanceTaken = errors.New("the instance's name belongs to another cluster")
	errHostTaken     = errors.New("the host's name and addresses belong to another publisher")
)

// owner returns the cluster ID in an instance's TXT record, or "", and whether the instance's name is free.
func (c content) owner(instance string) (id peering.ClusterID, free bool) {
	txt, srv := c[question{instance, dns.TypeTXT}], c[question{instance, dns.TypeSRV}]
	if len(txt)+len(srv) == 0 {
		return "", true
	}
	t, err := textFrom(txt)
	if err != nil {
		return "", false
	}
	return t.ID, false
}

// hosts reports whether an instance is at this host.
func (c content) hosts(instance, host string) bool {
	return slices.ContainsFunc(c[question{instance, dns.TypeSRV}], func(rr dns.RR) bool {
		srv, ok := rr.(*dns.SRV)
		return ok && canonical(srv.Target) == host
	})
}

// publish returns the change after which a zone has these records of a service, and none of its
// older ones. It removes no records of others: an instance is the cluster's own if its TXT record
// has the ID, and a host if the cluster's own instance is there.
func (c content) publish(s discovery.Service, domain string, records []dns.RR) (change, error) {
	instance, host := canonical(instanceName(s, domain)), hostName(s, domain)
	id, free := c.owner(instance)
	if !free && id != s.Text.ID {
		return change{}, errInstanceTaken
	}
	want := content{}
	for _, rr := range records {
		q := question{canonical(rr.Header().Name), rr.Header().Rrtype}
		want[q] = append(want[q], rr)
	}
	var ch change
	if free {
		ch.absent = append(ch.absent, question{instance, dns.TypeTXT}, question{instance, dns.TypeSRV})
	} else {
		ch.present = append(ch.present, c[question{instance, dns.TypeTXT}]...)
	}
	sets := []question{{instance, dns.TypeSRV}, {instance, dns.TypeTXT}}
	if len(s.Addresses) > 0 {
		sets = append(sets, question{host, dns.TypeA}, question{host, dns.TypeAAAA})
		if free || !c.hosts(instance, host) {
			for _, q := range sets[2:] {
				switch have := c[q]; {
				case len(have) == 0:
					ch.absent = append(ch.absent, q)
				case !subset(have, want[q]) || !subset(want[q], have):
					return change{}, errHostTaken
				}
			}
		}
	}
	for _, q := range sets {
		for _, rr := range c[q] {
			if !contains(want[q], rr) {
				ch.remove = append(ch.remove, rr)
			}
		}
		for _, rr := range want[q] {
			if !contains(c[q], rr) || !sameTTL(c[q], rr) {
				ch.add = append(ch.add, rr)
			}
		}
	}
	for _, q := range []question{{metaName(domain), dns.TypePTR}, {serviceName(domain), dns.TypePTR}, {automaticName(domain), dns.TypePTR}} {
		ch.addPointers = append(ch.addPointers, c.missing(q, want[q])...)
	}
	if !s.Automatic {
		ch.removePointers = pointers(c[question{automaticName(domain), dns.TypePTR}], instance)
	}
	return ch, nil
}

// missing returns the records of a shared set that the zone lacks. A set has one TTL (RFC 2181
// section 5.2), which a later publisher does not change.
func (c content) missing(q question, want []dns.RR) []dns.RR {
	var out []dns.RR
	for _, rr := range want {
		if contains(c[q], rr) {
			continue
		}
		rr = dns.Copy(rr)
		if have := c[q]; len(have) > 0 {
			rr.Header().Ttl = have[0].Header().Ttl
		}
		out = append(out, rr)
	}
	return out
}

// withdraw returns the change that removes a service from a zone. The pointer from "_services"
// stays: it is for all clusters.
func (c content) withdraw(s discovery.Service, domain string) change {
	instance, host := canonical(instanceName(s, domain)), hostName(s, domain)
	if id, free := c.owner(instance); free || id != s.Text.ID {
		return change{}
	}
	ch := change{present: c[question{instance, dns.TypeTXT}]}
	ch.remove = append(slices.Clone(c[question{instance, dns.TypeSRV}]), c[question{instance, dns.TypeTXT}]...)
	if c.hosts(instance, host) && len(s.Addresses) > 0 {
		ch.remove = append(ch.remove, c[question{host, dns.TypeA}]...)
		ch.remove = append(ch.remove, c[question{host, dns.TypeAAAA}]...)
	}
	ch.removePointers = append(pointers(c[question{serviceName(domain), dns.TypePTR}], instance),
		pointers(c[question{automaticName(domain), dns.TypePTR}], instance)...)
	return ch
}

// message returns the change as an update of a zone (RFC 2136 section 2).
func (c change) message(zone string) *dns.Msg {
	m := new(dns.Msg)
	m.SetUpdate(zone)
	m.Used(copies(c.present))
	for _, q := range c.absent {
		m.RRsetNotUsed([]dns.RR{&dns.ANY{Hdr: dns.RR_Header{Name: q.name, Rrtype: q.qtype}}})
	}
	m.Remove(copies(c.removePointers))
	m.Remove(copies(c.remove))
	m.Insert(copies(c.add))
	m.Insert(copies(c.addPointers))
	return m
}

// names returns the names that a change touches.
func (c change) names() (list []string) {
	for _, rr := range slices.Concat(c.remove, c.add, c.removePointers, c.addPointers) {
		if n := canonical(rr.Header().Name); !slices.Contains(list, n) {
			list = append(list, n)
		}
	}
	return list
}

func copies(list []dns.RR) []dns.RR {
	out := make([]dns.RR, len(list))
	for i, rr := range list {
		out[i] = dns.Copy(rr)
	}
	return out
}

func pointers(list []dns.RR, instance string) []dns.RR {
	return slices.DeleteFunc(slices.Clone(list), func(rr dns.RR) bool {
		ptr, ok := rr.(*dns.PTR)
		return !ok || canonical(ptr.Ptr) != instance
	})
}

func contains(list []dns.RR, rr dns.RR) bool {
	return slices.ContainsFunc(list, func(o dns.RR) bool { return key(o) == key(rr) })
}

func sameTTL(list []dns.RR, rr dns.RR) bool {
	return !slices.ContainsFunc(list, func(o dns.RR) bool { return o.Header().Ttl != rr.Header().Ttl })
}

func subset(a, b []dns.RR) bool {
	return !slices.ContainsFunc(a, func(rr dns.RR) bool { return !contains(b, rr) })
}

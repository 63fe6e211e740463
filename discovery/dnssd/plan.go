package dnssd

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

// A Domain is the state of one domain.
type Domain struct {
	// Name is the domain, in lower case, without its final dot.
	Name string
	// Found are its clusters, by name.
	Found []discovery.Found
	// Asked is when it was last asked, and Next when it will be. Zero means not yet.
	Asked, Next time.Time
	// Answered is when its list of instances was last answered. Zero means never.
	Answered time.Time
	// Err is why the query for the domain's list of instances, or for an instance, failed; "" means
	// that none did. It may be shown to users.
	Err string
	// Since is when the question of Err last ceased to be answered.
	Since time.Time
	// Unlisted means that Err is about the list itself, so that new instances in the domain are not
	// found.
	Unlisted bool
	// Authenticated means that the resolver marked all answers as verified by DNSSEC (AD, RFC 4035
	// section 3.2.3), which is worth as much as the resolver and the path to it.
	Authenticated bool
	// LeftOut is how many records and instances were beyond the limits.
	LeftOut int
	// Problems are why some of the domain's records cannot be used, at most [maxProblems]. They may
	// be shown to users.
	Problems []string
}

// plan has the questions, their answers, and which to ask next.
//
// Each domain has its own answers, and cannot affect those of another.
//
// A question is asked again when the TTL of its answer has ended, with a small random delay, but
// never before: a caching resolver returns the remaining TTL, so that an early query would get ever
// shorter ones. The old answer is kept for [grace] longer, so that no instance vanishes in between.
type plan struct {
	domains map[string]*domainState
	due     dueQueue
	// seed makes the order of hosts of equal priority differ between machines.
	seed uint64
	// random returns a number from 0 to less than 1.
	random func() float64
}

type domainState struct {
	name    string
	entries map[question]*entry
	// known are the accepted instances: their labels, as users see them, by name.
	known   map[string]string
	leftOut int
	asked   time.Time
	// asking is how many questions are in progress, and waiting are those that are due but beyond
	// [maxPerDomain].
	asking  int
	waiting []*entry
}

// entry is a question and its answer.
type entry struct {
	question
	domain *domainState
	// due is when to ask, and index its place in the queue: -1 while it is in progress or waits for
	// others of its domain.
	due    time.Time
	index  int
	asking bool
	gone   bool

	answer
	// keep is the time until which the answer is kept; zero without an answer.
	keep time.Time

	seen time.Time
	err  string
	// failing is when it first failed since its last answer.
	failing  time.Time
	failures int
	used     bool
}

// live returns the answer's records while they are kept.
func (e *entry) live(now time.Time) []dns.RR {
	if e == nil || !now.Before(e.keep) {
		return nil
	}
	return e.records
}

func newPlan(seed uint64, random func() float64) *plan {
	return &plan{domains: map[string]*domainState{}, seed: seed, random: random}
}

// add adds a domain, of the form of [checkDomain].
func (p *plan) add(name string, now time.Time) {
	if p.domains[name] == nil {
		d := &domainState{name: name, entries: map[question]*entry{}, known: map[string]string{}}
		p.domains[name] = d
		p.grow(d, nil, now)
	}
}

// next returns when the next question is due; zero if none will be.
func (p *plan) next() time.Time {
	if len(p.due) == 0 {
		return time.Time{}
	}
	return p.due[0].due
}

// ask is a question to ask now.
type ask struct {
	question
	domain string
	state  *domainState
}

// take returns the next question that is due. The caller then calls answered or failed.
func (p *plan) take(now time.Time) (ask, bool) {
	for len(p.due) > 0 && !now.Before(p.due[0].due) {
		e := heap.Pop(&p.due).(*entry)
		d := e.domain
		if d.asking == maxPerDomain {
			d.waiting = append(d.waiting, e)
			continue
		}
		d.asking++
		e.asking = true
		return ask{question: e.question, domain: d.name, state: d}, true
	}
	return ask{}, false
}

// release makes waiting questions due, as many as maxPerDomain allows.
func (p *plan) release(d *domainState) {
	for room := maxPerDomain - d.asking; room > 0 && len(d.waiting) > 0; {
		e := d.waiting[0]
		d.waiting = d.waiting[1:]
		// Meanwhile additional records may have answered it, or it may be gone.
		if !e.gone && !e.asking && e.index < 0 {
			heap.Push(&p.due, e)
			room--
		}
	}
}

// done returns the entry of ask, or nil if its answer is no longer needed.
func (p *plan) done(a ask) *entry {
	d := a.state
	d.asking--
	e := d.entries[a.question]
	if e == nil || !e.asking {
		return nil
	}
	e.asking = false
	return e
}

func (p *plan) answered(a ask, got answer, now time.Time) {
	defer p.release(a.state) // After the additional records were used, which may answer waiting questions.
	e := p.done(a)
	if e == nil {
		return
	}
	p.fill(e, got, now)
	e.domain.asked = now
	p.grow(e.domain, got.extra, now)
}

// failed records that no resolver answered.
func (p *plan) failed(a ask, err error, now time.Time) {
	defer p.release(a.state) // After the additional records were used, which may answer waiting questions.
	e := p.done(a)
	if e == nil {
		return
	}
	if e.failures == 0 {
		e.failing = now
	}
	e.err = peering.Text(err.Error(), maxProblem)
	e.failures++
	pause := time.Duration(float64(backoff(retryMin, retryMax, e.failures)) * (1 - p.random()/5))
	e.due = now.Add(pause)
	if now.Before(e.keep) && e.keep.Before(e.due) {
		// This is when the old answer expires.
		e.due = e.keep
	}
	heap.Push(&p.due, e)
	e.domain.asked = now
	p.grow(e.domain, nil, now)
}

// backoff returns the pause after that many failures.
func backoff(least, most time.Duration, failures int) time.Duration {
	return min(most, least<<min(failures-1, 20))
}

// fill sets the answer of an entry, and when to ask again.
func (p *plan) fill(e *entry, a answer, now time.Time) {
	a.extra = nil
	a.records = distinct(a.records)
	e.answer, e.seen, e.err, e.failures = a, now, "", 0
	jitter := time.Duration(p.random() * float64(min(a.ttl/10, maxJitter)))
	e.due = now.Add(a.ttl + jitter)
	e.keep = e.due.Add(grace)
	if e.index >= 0 {
		heap.Fix(&p.due, e.index)
	} else {
		heap.Push(&p.due, e)
	}
}

// distinct returns the records without duplicates, sorted, as servers change the order.
func distinct(records []dns.RR) []dns.RR {
	list := slices.SortedFunc(slices.Values(records), func(a, b dns.RR) int { return strings.Compare(key(a), key(b)) })
	return slices.CompactFunc(list, func(a, b dns.RR) bool { return key(a) == key(b) })
}

// grow adds the questions that follow from the answers of a domain, and removes those that no
// longer do.
func (p *plan) grow(d *domainState, extra map[question]answer, now time.Time) {
	for _, e := range d.entries {
		e.used = false
	}
	list := p.ensure(d, question{serviceName(d.name), dns.TypePTR}, extra, now)
	auto := p.ensure(d, question{automaticName(d.name), dns.TypePTR}, extra, now)
	d.leftOut = list.leftOut + auto.leftOut + d.know(list.live(now))
	for _, name := range slices.Sorted(maps.Keys(d.known)) {
		p.ensure(d, question{name, dns.TypeTXT}, extra, now)
		targets, over := p.targets(p.ensure(d, question{name, dns.TypeSRV}, extra, now).live(now))
		d.leftOut += over
		for _, target := range targets {
			p.ensure(d, question{canonical(target.Target), dns.TypeA}, extra, now)
			p.ensure(d, question{canonical(target.Target), dns.TypeAAAA}, extra, now)
		}
	}
	for q, e := range d.entries {
		if !e.used {
			p.drop(e)
			delete(d.entries, q)
		}
	}
}

// ensure returns the entry of a question, with the answer from additional records if it has no
// valid one.
func (p *plan) ensure(d *domainState, q question, extra map[question]answer, now time.Time) *entry {
	e := d.entries[q]
	if e == nil {
		e = &entry{question: q, domain: d, due: now}
		d.entries[q] = e
		heap.Push(&p.due, e)
	}
	// While it is in progress, its own answer will arrive.
	if a, ok := extra[q]; ok && !e.asking && !e.used && !now.Before(e.due) {
		p.fill(e, a, now)
	}
	e.used = true
	return e
}

func (p *plan) drop(e *entry) {
	e.gone = true
	if e.index >= 0 {
		heap.Remove(&p.due, e.index)
	}
}

// know accepts instances up to the limit: known ones first, so that more instances cannot displace
// them, then by name. It returns how many are left out.
func (d *domainState) know(pointers []dns.RR) (over int) {
	labels := map[string]string{}
	for _, rr := range pointers {
		if ptr, ok := rr.(*dns.PTR); ok {
			if label, _, err := splitInstance(ptr.Ptr); err == nil {
				labels[canonical(ptr.Ptr)] = label
			}
		}
	}
	known, others := []string{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if _, ok := d.known[name]; ok {
			known = append(known, name)
		} else {
			others = append(others, name)
		}
	}
	names := append(known, others...)
	d.known = map[string]string{}
	for _, name := range names[:min(len(names), MaxInstances)] {
		d.known[name] = labels[name]
	}
	return len(names) - len(d.known)
}

// targets returns the hosts of an instance in the order in which to try them (RFC 2782): by
// priority, and within a priority at random, weighted. The random order is stable while the plan
// exists.
func (p *plan) targets(records []dns.RR) (list []*dns.SRV, over int) {
	for _, rr := range records {
		// A target of "." means that the service does not exist.
		if srv, ok := rr.(*dns.SRV); ok && srv.Port != 0 && srv.Target != "." {
			list = append(list, srv)
		}
	}
	slices.SortStableFunc(list, func(a, b *dns.SRV) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(rank(a, p.seed), rank(b, p.seed)))
	})
	most := min(len(list), maxTargets)
	return list[:most], len(list) - most
}

// rank draws a number from an exponential distribution with the record's weight. Sorting by such
// numbers is a weighted draw without replacement (Efraimidis and Spirakis, 2006), as RFC 2782
// describes.
func rank(srv *dns.SRV, seed uint64) float64 {
	h := fnv.New64a()
	b := binary.BigEndian.AppendUint64(nil, seed)
	b = binary.BigEndian.AppendUint16(b, srv.Port)
	h.Write(append(b, canonical(srv.Target)...))
	// FNV leaves traces of its input in the high bits; this mixes them (splitmix64).
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	u := (float64(x>>11) + 1) / (1 << 53)
	// Weight 0 has a very small chance.
	return -math.Log(u) / max(float64(srv.Weight), 0.01)
}

// snapshot returns the state of a domain.
func (p *plan) snapshot(name string, now time.Time) (Domain, bool) {
	d := p.domains[name]
	if d == nil {
		return Domain{}, false
	}
	out := Domain{Name: strings.TrimSuffix(name, "."), Asked: d.asked, LeftOut: d.leftOut, Authenticated: true}
	problems := 0
	problem := func(format string, args ...any) {
		if problems++; len(out.Problems) < maxProblems {
			out.Problems = append(out.Problems, peering.Text(fmt.Sprintf(format, args...), maxProblem))
		}
	}
	list := d.entries[question{serviceName(name), dns.TypePTR}]
	for _, rr := range list.live(now) {
		if ptr, ok := rr.(*dns.PTR); ok {
			if _, _, err := splitInstance(canonical(ptr.Ptr)); err != nil {
				problem("%v", err)
			}
		}
	}
	automatic := d.entries[question{automaticName(name), dns.TypePTR}].live(now)
	for _, instance := range slices.Sorted(maps.Keys(d.known)) {
		f, ok, left := p.found(d, instance, list, now, problem)
		out.LeftOut += left
		if ok {
			f.Automatic = len(pointers(automatic, instance)) > 0
			out.Found = append(out.Found, f)
		}
	}
	if more := problems - len(out.Problems); more > 0 {
		out.Problems = append(out.Problems[:maxProblems-1], fmt.Sprintf("and %d more", more+1))
	}
	for _, e := range d.entries {
		out.Authenticated = out.Authenticated && now.Before(e.keep) && e.authenticated
		if out.Next.IsZero() || e.due.Before(out.Next) {
			out.Next = e.due
		}
	}
	out.Answered, out.Unlisted = list.seen, list.err != ""
	if failed := d.failed(list); failed != nil {
		out.Err, out.Since = failed.err, failed.failing
	}
	return out, true
}

// failed returns a failed question of the domain, the list first, or nil.
func (d *domainState) failed(list *entry) (first *entry) {
	if list.err != "" {
		return list
	}
	for _, e := range d.entries {
		if e.err != "" && (first == nil || e.err < first.err) {
			first = e
		}
	}
	return first
}

// found returns an instance; false until its endpoints are known.
func (p *plan) found(d *domainState, name string, list *entry, now time.Time, problem func(string, ...any)) (f discovery.Found, ok bool, left int) {
	f = discovery.Found{Instance: d.known[name], Where: strings.TrimSuffix(d.name, "."), Seen: list.seen, Until: list.keep}
	txt, srv := d.entries[question{name, dns.TypeTXT}], d.entries[question{name, dns.TypeSRV}]
	if !answered(list, now) || !answered(txt, now) || !answered(srv, now) {
		return f, false, 0
	}
	var err error
	if f.Text, err = textFrom(txt.records); err != nil {
		problem("%s: %v", show(name), err)
		return f, false, 0
	}
	targets, _ := p.targets(srv.records)
	if len(targets) == 0 {
		problem("%s: no SRV record with a host and a port", show(name))
		return f, false, 0
	}
	used, waiting := []*entry{txt, srv}, false
	for _, t := range targets {
		host := canonical(t.Target)
		here := 0
		for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeA} {
			e := d.entries[question{host, qtype}]
			if !answered(e, now) {
				waiting = true
				continue
			}
			addrs, over := addressesOf(e.records)
			left += over
			for _, a := range addrs {
				if err := discovery.Dialable(a); err != nil {
					problem("%s: host %s: %v", show(name), show(host), err)
					continue
				}
				here++
				switch endpoint := netip.AddrPortFrom(a, t.Port).String(); {
				case slices.Contains(f.Endpoints, endpoint):
				case len(f.Endpoints) == peering.MaxEndpoints:
					left++
				default:
					used = append(used, e)
					f.Endpoints = append(f.Endpoints, endpoint)
				}
			}
		}
		if here == 0 && !waiting {
			problem("%s: host %s has no address that may be dialled", show(name), show(host))
		}
	}
	for _, e := range used {
		if e.seen.After(f.Seen) {
			f.Seen = e.seen
		}
		if e.keep.Before(f.Until) {
			f.Until = e.keep
		}
	}
	return f, len(f.Endpoints) > 0, left
}

func answered(e *entry, now time.Time) bool { return e != nil && now.Before(e.keep) }

// textFrom parses the TXT record of an instance; of several, the first valid one.
func textFrom(records []dns.RR) (t discovery.Text, err error) {
	err = errors.New("no TXT record")
	for i, rr := range records {
		txt, ok := rr.(*dns.TXT)
		if !ok || i == maxStrings {
			break
		}
		if t, err = discovery.ParseText(textOf(txt)); err == nil {
			return t, nil
		}
	}
	return t, err
}

func addressesOf(records []dns.RR) (list []netip.Addr, over int) {
	for _, rr := range records {
		var addr netip.Addr
		switch rr := rr.(type) {
		case *dns.A:
			addr, _ = netip.AddrFromSlice(rr.A)
		case *dns.AAAA:
			addr, _ = netip.AddrFromSlice(rr.AAAA)
		}
		if addr.IsValid() {
			list = append(list, addr.Unmap())
		}
	}
	most := min(len(list), maxAddresses)
	return list[:most], len(list) - most
}

// dueQueue is a heap of entries by due time.
type dueQueue []*entry

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *dueQueue) Push(x any) {
	e := x.(*entry)
	e.index = len(*q)
	*q = append(*q, e)
}

func (q *dueQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	e.index = -1
	return e
}

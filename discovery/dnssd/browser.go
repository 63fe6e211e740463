package dnssd

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Config is what a [Browser] needs.
type Config struct {
	// Domains are the domains to browse, at most [MaxDomains].
	Domains []string
	// Exchange asks a resolver. Nil means those of /etc/resolv.conf.
	Exchange Exchange
	// Changed is called with a domain that changed. It may be nil, and must neither block nor call
	// the Browser.
	Changed func(Domain)
}

// Browser finds clusters in domains. For the hosts in SRV records it reports only checked
// addresses, never names, so that another answer for the same name cannot redirect a dial (DNS
// rebinding).
type Browser struct {
	exchange Exchange
	changed  func(Domain)
	wake     chan struct{}

	mu   sync.Mutex
	plan *plan
	last map[string]Domain
}

// NewBrowser returns a Browser that sends no queries before Run.
func NewBrowser(cfg Config) (*Browser, error) {
	if cfg.Exchange == nil {
		r, err := NewResolvers()
		if err != nil {
			return nil, err
		}
		cfg.Exchange = r.Exchange
	}
	b := &Browser{
		exchange: cfg.Exchange, changed: cfg.Changed,
		wake: make(chan struct{}, 1),
		plan: newPlan(rand.Uint64(), rand.Float64),
		last: map[string]Domain{},
	}
	if len(cfg.Domains) > MaxDomains {
		return nil, fmt.Errorf("%d domains; the limit is %d", len(cfg.Domains), MaxDomains)
	}
	for _, d := range cfg.Domains {
		name, err := checkDomain(d)
		if err != nil {
			return nil, err
		}
		b.plan.add(name, time.Now())
	}
	return b, nil
}

// Domains returns the state of all domains, by name.
func (b *Browser) Domains() []Domain {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []Domain
	for _, name := range slices.Sorted(maps.Keys(b.plan.domains)) {
		d, _ := b.plan.snapshot(name, time.Now())
		list = append(list, d)
	}
	return list
}

// Run browses until ctx ends, and then returns nil.
func (b *Browser) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	free := make(chan struct{}, maxConcurrent)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for len(free) < cap(free) {
			a, ok := b.take()
			if !ok {
				break
			}
			free <- struct{}{}
			workers.Go(func() {
				got, err := lookup(ctx, b.exchange, a.question, a.domain)
				if ctx.Err() == nil {
					b.put(a, got, err)
				}
				<-free
				select {
				case b.wake <- struct{}{}:
				default:
				}
			})
		}
		if len(free) < cap(free) {
			timer.Reset(b.pause())
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		case <-timer.C:
		}
	}
}

func (b *Browser) take() (ask, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plan.take(time.Now())
}

// pause returns the time until something is due.
func (b *Browser) pause() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.plan.next()
	if next.IsZero() {
		return time.Hour
	}
	return max(0, time.Until(next))
}

func (b *Browser) put(a ask, got answer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if err != nil {
		b.plan.failed(a, err, now)
	} else {
		b.plan.answered(a, got, now)
	}
	d, ok := b.plan.snapshot(a.domain, now)
	if !ok || b.changed == nil || same(d, b.last[a.domain]) {
		return
	}
	b.last[a.domain] = d
	b.changed(d)
}

// same reports whether two states differ only in times.
func same(a, b Domain) bool {
	for _, d := range []*Domain{&a, &b} {
		d.Asked, d.Next, d.Answered = time.Time{}, time.Time{}, time.Time{}
	}
	return reflect.DeepEqual(a, b)
}

// wire returns the question in the codec's form.
func (q question) wire() dns.Question {
	return dns.Question{Name: q.name, Qtype: q.qtype, Qclass: dns.ClassINET}
}

package dnssd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

// PublishConfig is what a [Publisher] needs.
type PublishConfig struct {
	// Service is what is published, in Domain. Names that others have are changed: see
	// Status.
	Service discovery.Service
	Domain  string
	// TTL is that of the records; zero is [DefaultTTL].
	TTL time.Duration
	// Key signs all that is said to the server. Required.
	Key Key
	// Server is the primary server of Zone, to which Domain belongs. Required.
	Server netip.AddrPort
	Zone   string
	// Claim is called before anything is written, with the names under which it will be:
	// whoever remembers them can withdraw them later. Its error ends the try. Nil does
	// nothing.
	Claim func(ctx context.Context, instance, host string) error
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Status is how far publishing is.
type Status struct {
	// Instance and Host are the names under which the service is published.
	Instance, Host string
	// Published says that the instance, its text and its addresses were there after the
	// last try.
	Published bool
	// Missing are records that are not there and that the key may not write, as lines for
	// a zone file. Nobody finds the cluster until the zone's administrator adds them.
	Missing []string
	// Left are records that a withdrawal left there, because the key may not remove them,
	// as lines for a zone file.
	Left []string
}

// Publisher keeps a cluster's records in a zone by dynamic updates. It writes no more
// than what differs, only its own records, and only if nobody changed them since they
// were read.
type Publisher struct {
	cfg    PublishConfig
	domain string

	// mu is held while the zone is written.
	mu      sync.Mutex
	service discovery.Service
	status  Status
}

// NewPublisher checks the configuration.
func NewPublisher(cfg PublishConfig) (*Publisher, error) {
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	if _, err := Records(cfg.Service, cfg.Domain, cfg.TTL); err != nil {
		return nil, fmt.Errorf("publish in %s: %w", peering.Text(cfg.Domain, maxProblem), err)
	}
	if cfg.Key.secret == nil {
		return nil, fmt.Errorf("publish in %s: no key: make one with tsig-keygen", cfg.Domain)
	}
	domain, err := checkDomain(cfg.Domain)
	if err != nil {
		return nil, err
	}
	if cfg.Zone, err = checkDomain(cfg.Zone); err != nil {
		return nil, fmt.Errorf("zone: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Publisher{cfg: cfg, domain: domain, service: cfg.Service}, nil
}

// Status returns how far it is.
func (p *Publisher) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Pause is when to look again at what was published, after that many tries that failed
// one after the other: with none, every 12 to 15 minutes, by chance; otherwise after
// 10 s at first, and 30 min at last.
func Pause(failures int) time.Duration {
	pause := refreshEvery
	if failures > 0 {
		pause = backoff(updateRetryMin, updateRetryMax, failures)
	}
	return pause - time.Duration(rand.Float64()*float64(pause)/5)
}

// Publish makes the zone hold the service once.
func (p *Publisher) Publish(ctx context.Context) error {
	return p.locked(ctx, "publish in", p.publish)
}

// Withdraw takes the service out of the zone.
func (p *Publisher) Withdraw(ctx context.Context) error {
	return p.locked(ctx, "withdraw from", p.withdraw)
}

func (p *Publisher) locked(ctx context.Context, what string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s %s: server %s, zone %s: %w", what, strings.TrimSuffix(p.domain, "."), p.cfg.Server, show(p.cfg.Zone), err)
	}
	return nil
}

// publish tries names until there is one that is free or one's own.
func (p *Publisher) publish(ctx context.Context) error {
	p.status.Published = false
	s := p.cfg.Service
	for host, races, renames := 1, 0, 0; ; {
		s.Host = renameHost(p.cfg.Service.Host, host)
		err := p.write(ctx, s)
		switch {
		case err == nil:
			p.service = s
			p.status.Instance, p.status.Host, p.status.Published = s.Instance, strings.TrimSuffix(hostName(s, p.domain), "."), true
			return nil
		case errors.Is(err, errChanged) && races < maxRaces:
			races++
			continue
		case errors.Is(err, errInstanceTaken) && renames < maxRenames:
			s.Instance = discovery.Rename(s.Instance)
		case errors.Is(err, errHostTaken) && renames < maxRenames:
			host++
		default:
			return err
		}
		renames++
	}
}

func (p *Publisher) write(ctx context.Context, s discovery.Service) error {
	records, err := Records(s, p.domain, p.cfg.TTL)
	if err != nil {
		return err
	}
	have, err := p.content(ctx, s)
	if err != nil {
		return err
	}
	ch, err := have.publish(s, p.domain, records)
	if err != nil {
		return err
	}
	if p.cfg.Claim != nil && !ch.empty() {
		if err := p.cfg.Claim(ctx, s.Instance, s.Host); err != nil {
			return err
		}
	}
	return p.apply(ctx, ch)
}

func (p *Publisher) withdraw(ctx context.Context) error {
	for races := 0; ; races++ {
		have, err := p.content(ctx, p.service)
		if err != nil {
			return err
		}
		err = p.apply(ctx, have.withdraw(p.service, p.domain))
		if err == nil {
			p.status.Published, p.status.Missing = false, nil
			return nil
		}
		if !errors.Is(err, errChanged) || races == maxRaces {
			return err
		}
	}
}

// apply sends a change. Where the key may not write the pointers, which all services
// share, it writes the rest.
func (p *Publisher) apply(ctx context.Context, ch change) error {
	p.status.Missing, p.status.Left = nil, nil
	if ch.empty() {
		return nil
	}
	for _, n := range ch.names() {
		if !dns.IsSubDomain(p.cfg.Zone, n) {
			return fmt.Errorf("%s is not in the zone: name the zone that it belongs to, or publish it by hand", show(n))
		}
	}
	_, err := p.send(ctx, p.cfg.Server, ch.message(p.cfg.Zone))
	if !errors.Is(err, errRefused) || len(ch.addPointers)+len(ch.removePointers) == 0 {
		return err
	}
	missing, left := ch.addPointers, ch.removePointers
	ch.addPointers, ch.removePointers = nil, nil
	if !ch.empty() {
		if _, err := p.send(ctx, p.cfg.Server, ch.message(p.cfg.Zone)); err != nil {
			return err
		}
	}
	for _, rr := range missing {
		p.status.Missing = append(p.status.Missing, rr.String())
	}
	for _, rr := range left {
		p.status.Left = append(p.status.Left, rr.String())
	}
	return nil
}

// content reads what the zone holds now, from the server itself.
func (p *Publisher) content(ctx context.Context, s discovery.Service) (content, error) {
	have := content{}
	for _, q := range questions(s, p.domain) {
		m := new(dns.Msg)
		m.Id = dns.Id()
		m.Question = []dns.Question{q.wire()}
		r, err := p.send(ctx, p.cfg.Server, m)
		if err != nil {
			return nil, err
		}
		if !r.Authoritative {
			return nil, fmt.Errorf("it is not authoritative for %s: name the primary server", show(q.name))
		}
		for _, rr := range r.Answer {
			if h := rr.Header(); h.Rrtype == q.qtype && h.Class == dns.ClassINET && canonical(h.Name) == q.name {
				have[q] = append(have[q], rr)
			}
		}
	}
	return have, nil
}

// send signs a message, sends it and checks the answer's signature. What does not fit
// or stays without an answer goes over TCP.
func (p *Publisher) send(ctx context.Context, server netip.AddrPort, m *dns.Msg) (*dns.Msg, error) {
	var verify error
	for _, c := range []dns.Client{{Net: "udp", Timeout: udpTimeout}, {Net: "tcp", Timeout: tcpTimeout}} {
		signed := m.Copy()
		signed.Id = dns.Id()
		now := p.cfg.Now()
		if c.Net == "udp" {
			signed.SetEdns0(udpSize, false)
			if signed.Len()+len(p.cfg.Key.name)+128 > udpSize {
				continue
			}
		}
		signed.SetTsig(p.cfg.Key.name, p.cfg.Key.algorithm, fudge, now.Unix())
		c.TsigProvider = signer{p.cfg.Key}
		var r *dns.Msg
		r, _, verify = c.ExchangeContext(ctx, signed, server.String())
		if r == nil || !answersUpdate(r, signed) {
			if verify == nil {
				verify = errors.New("it answered another question")
			}
			continue
		}
		if r.Truncated && c.Net == "udp" {
			continue
		}
		return r, verdict(r, verify, p.cfg.Key, now)
	}
	if verify == nil {
		verify = errors.New("its answer over TCP is truncated, too")
	}
	return nil, fmt.Errorf("%w: is it reachable over UDP and TCP, and the server's address right?", plain(verify))
}

// answersUpdate is answers, but servers leave out the question of an update.
func answersUpdate(r, m *dns.Msg) bool {
	if len(r.Question) == 0 {
		return r.Response && r.Id == m.Id && r.Opcode == m.Opcode
	}
	return answers(r, m)
}

package dnssd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

// Publisher keeps a cluster's records in a zone by dynamic updates. It writes only differences,
// only its own records, and only if they have not changed since it read them.
type Publisher struct {
	// Service is published in Domain. Names that are taken are changed: see [Status].
	Service discovery.Service
	Domain  string
	// TTL is that of the records; zero means [DefaultTTL].
	TTL time.Duration
	// Key signs all messages to the server. Required.
	Key Key
	// Server is the primary server of Zone, to which Domain belongs. Required.
	Server netip.AddrPort
	Zone   string
	// Claim is called before anything is written, with the names that will be used, so that the
	// caller can store them for a withdrawal. Its error ends the attempt. Nil means no call.
	Claim func(ctx context.Context, instance, host string) error

	// now is the clock; nil means time.Now.
	now func() time.Time
}

// Status is the result of publishing or withdrawing.
type Status struct {
	// Instance and Host, a label, are the names under which the service is published.
	Instance, Host string
	// Missing are records that are missing and that the key may not write, as lines for a zone
	// file. The cluster cannot be found until the zone's administrator adds them.
	Missing []string
	// Left are records that a withdrawal left because the key may not remove them, as lines for a
	// zone file.
	Left []string
}

// Pause returns the pause before the next Publish, after so many failures in a row: with none, a
// random 12 to 15 minutes; otherwise from 10 s up to 30 min.
func Pause(failures int) time.Duration {
	pause := refreshEvery
	if failures > 0 {
		pause = backoff(updateRetryMin, updateRetryMax, failures)
	}
	return pause - time.Duration(rand.Float64()*float64(pause)/5)
}

// Publish writes the service into the zone.
func (p Publisher) Publish(ctx context.Context) (Status, error) {
	return p.do(ctx, "publish in", p.publish)
}

// Withdraw removes the service, with the names under which it was published, from the zone.
func (p Publisher) Withdraw(ctx context.Context) (Status, error) {
	return p.do(ctx, "withdraw from", p.withdraw)
}

func (p Publisher) do(ctx context.Context, what string, do func(context.Context) (Status, error)) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	var status Status
	err := errors.Join(CheckDomain(p.Domain), CheckDomain(p.Zone))
	if err == nil {
		status, err = do(ctx)
	}
	if err != nil {
		return status, fmt.Errorf("%s %s: server %s, zone %s: %w", what, peering.Text(p.Domain, maxProblem), p.Server, show(p.Zone), err)
	}
	return status, nil
}

// publish tries names until one is free, or its own.
func (p Publisher) publish(ctx context.Context) (Status, error) {
	s := p.Service
	for races, renames := 0, 0; ; {
		status, err := p.write(ctx, s)
		switch {
		case err == nil:
			status.Instance, status.Host = s.Instance, s.Host
			return status, nil
		case errors.Is(err, errChanged) && races < maxRaces:
			races++
			continue
		case errors.Is(err, errInstanceTaken) && renames < maxRenames:
			s.Instance = discovery.Rename(s.Instance)
		case errors.Is(err, errHostTaken) && renames < maxRenames:
			s.Host = discovery.RenameHost(s.Host)
		default:
			return status, err
		}
		renames++
	}
}

func (p Publisher) write(ctx context.Context, s discovery.Service) (Status, error) {
	records, err := Records(s, p.Domain, cmp.Or(p.TTL, DefaultTTL))
	if err != nil {
		return Status{}, err
	}
	have, err := p.content(ctx, s)
	if err != nil {
		return Status{}, err
	}
	ch, err := have.publish(s, canonical(p.Domain), records)
	if err != nil {
		return Status{}, err
	}
	if p.Claim != nil && !ch.empty() {
		if err := p.Claim(ctx, s.Instance, s.Host); err != nil {
			return Status{}, err
		}
	}
	return p.apply(ctx, ch)
}

func (p Publisher) withdraw(ctx context.Context) (Status, error) {
	for races := 0; ; races++ {
		have, err := p.content(ctx, p.Service)
		if err != nil {
			return Status{}, err
		}
		status, err := p.apply(ctx, have.withdraw(p.Service, canonical(p.Domain)))
		if !errors.Is(err, errChanged) || races == maxRaces {
			return status, err
		}
	}
}

// apply sends a change. If the key may not write the pointers, which all services share, it writes
// the rest.
func (p Publisher) apply(ctx context.Context, ch change) (Status, error) {
	var status Status
	if ch.empty() {
		return status, nil
	}
	zone := canonical(p.Zone)
	for _, n := range ch.names() {
		if !dns.IsSubDomain(zone, n) {
			return status, fmt.Errorf("%s is not in the zone: set the zone to which it belongs, or publish it by hand", show(n))
		}
	}
	_, err := p.send(ctx, ch.message(zone))
	if !errors.Is(err, errRefused) || len(ch.addPointers)+len(ch.removePointers) == 0 {
		return status, err
	}
	for _, rr := range ch.addPointers {
		status.Missing = append(status.Missing, rr.String())
	}
	for _, rr := range ch.removePointers {
		status.Left = append(status.Left, rr.String())
	}
	if ch.addPointers, ch.removePointers = nil, nil; !ch.empty() {
		_, err = p.send(ctx, ch.message(zone))
		return status, err
	}
	return status, nil
}

// content reads the zone's current records, from the server itself.
func (p Publisher) content(ctx context.Context, s discovery.Service) (content, error) {
	have := content{}
	for _, q := range questions(s, canonical(p.Domain)) {
		m := new(dns.Msg)
		m.Id = dns.Id()
		m.Question = []dns.Question{q.wire()}
		r, err := p.send(ctx, m)
		if err != nil {
			return nil, err
		}
		if !r.Authoritative {
			return nil, fmt.Errorf("it is not authoritative for %s: set the primary server", show(q.name))
		}
		for _, rr := range r.Answer {
			if h := rr.Header(); h.Rrtype == q.qtype && h.Class == dns.ClassINET && canonical(h.Name) == q.name {
				have[q] = append(have[q], rr)
			}
		}
	}
	return have, nil
}

// send signs a message, sends it, and verifies the response's signature. It uses TCP if UDP does
// not fit or gets no response.
func (p Publisher) send(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	if p.Key.secret == nil {
		return nil, errors.New("no key: generate one with tsig-keygen")
	}
	clock := p.now
	if clock == nil {
		clock = time.Now
	}
	var verify error
	for _, c := range []dns.Client{{Net: "udp", Timeout: udpTimeout}, {Net: "tcp", Timeout: tcpTimeout}} {
		signed := m.Copy()
		signed.Id = dns.Id()
		now := clock()
		if c.Net == "udp" {
			signed.SetEdns0(udpSize, false)
			if signed.Len()+len(p.Key.name)+128 > udpSize {
				continue
			}
		}
		signed.SetTsig(p.Key.name, p.Key.algorithm, fudge, now.Unix())
		c.TsigProvider = signer{p.Key}
		var r *dns.Msg
		r, _, verify = c.ExchangeContext(ctx, signed, p.Server.String())
		if r == nil || !answersUpdate(r, signed) {
			verify = cmp.Or(verify, errors.New("it answered another question"))
			continue
		}
		if r.Truncated && c.Net == "udp" {
			continue
		}
		return r, verdict(r, verify, p.Key, now)
	}
	verify = cmp.Or(verify, errors.New("its answer over TCP is truncated, too"))
	return nil, fmt.Errorf("%w: check that it is reachable over UDP and TCP, and that the server's address is right", plain(verify))
}

// answersUpdate is answers for an update, whose question servers leave out.
func answersUpdate(r, m *dns.Msg) bool {
	if len(r.Question) == 0 {
		return r.Response && r.Id == m.Id && r.Opcode == m.Opcode
	}
	return answers(r, m)
}

package identity

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/entente-dev/entente/peering"
)

const (
	// DefaultLeafLife is how long a leaf certificate is valid by default.
	DefaultLeafLife = 24 * time.Hour
	// minLeafLife keeps renewal from running in a tight loop.
	minLeafLife = time.Second
	// retryRenewal is how long Run waits after a renewal that failed.
	retryRenewal = 10 * time.Second
)

// SourceConfig configures a Source.
type SourceConfig struct {
	// Identity is the cluster's. Required.
	Identity *Identity
	// LeafLife is how long a leaf certificate is valid; 0 means DefaultLeafLife, less than a
	// second is refused. Leaves are renewed at half of it.
	LeafLife time.Duration
	// Log gets a line for each renewal. If nil, they are discarded.
	Log *slog.Logger
}

// Source mints the leaf certificates of a cluster's agent, each with a key of its
// own and the SPIFFE ID spiffe://<id>/agent. It implements x509svid.Source.
// Connections begin with the current leaf; the owner of those that outlive it has to renew them,
// and is notified of new leaves by Subscribe.
type Source struct {
	cfg   SourceConfig
	id    peering.ClusterID
	agent spiffeid.ID

	mu       sync.Mutex
	identity *Identity
	svid     *x509svid.SVID
	renewAt  time.Time
	watchers map[chan struct{}]struct{}
}

// NewSource returns a Source with its first leaf.
func NewSource(cfg SourceConfig) (*Source, error) {
	if cfg.Identity == nil {
		return nil, errors.New("identity source: no identity")
	}
	cfg.LeafLife = cmp.Or(cfg.LeafLife, DefaultLeafLife)
	if cfg.LeafLife < minLeafLife {
		return nil, fmt.Errorf("identity source: leaf life %s is below %s", cfg.LeafLife, minLeafLife)
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	id := cfg.Identity.ID()
	agent, err := spiffeid.FromString(id.AgentURI())
	if err != nil {
		return nil, fmt.Errorf("identity source: %w", err)
	}
	s := &Source{cfg: cfg, id: id, agent: agent, identity: cfg.Identity, watchers: map[chan struct{}]struct{}{}}
	s.cfg.Identity = nil // a key that was rolled over is not kept
	if _, err := s.current(time.Now()); err != nil {
		return nil, err
	}
	return s, nil
}

// ID returns the cluster's ID.
func (s *Source) ID() peering.ClusterID { return s.id }

// Identity returns the cluster's current identity. Do not keep it: it changes by SetIdentity, and
// when an overlap ends.
func (s *Source) Identity() *Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endOverlap(time.Now())
	return s.identity
}

// SetIdentity replaces the identity by one that Rollover returned: from then on the new key signs
// leaves. Another cluster's identity, or one that undoes a rollover, is refused.
func (s *Source) SetIdentity(next *Identity) error {
	if next.ID() != s.id {
		return fmt.Errorf("identity source: %w", &PinError{Want: s.id, Got: next.ID()})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.endOverlap(now)
	next = next.at(now)
	if err := Supersedes(s.identity.TrustBundle(), next.TrustBundle()); err != nil {
		return fmt.Errorf("identity source: %w", err)
	}
	if s.identity.key.Equal(next.key) {
		s.identity = next
		return nil
	}
	if err := s.renew(next, now); err != nil {
		return err
	}
	s.identity = next
	return nil
}

// Overlap is how long the old root has to be presented beside the new one in a rollover: until
// the last leaf that the old key signed has ended.
func (s *Source) Overlap() time.Duration { return s.cfg.LeafLife }

// Subscribe returns a channel that gets a value after a new leaf or a change of the identity, one
// for any number of changes. cancel ends the subscription.
func (s *Source) Subscribe() (changes <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	s.watchers[c] = struct{}{}
	s.mu.Unlock()
	return c, func() {
		s.mu.Lock()
		delete(s.watchers, c)
		s.mu.Unlock()
	}
}

// notify wakes the subscribers. The caller holds the lock.
func (s *Source) notify() {
	for c := range s.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// endOverlap removes the old root once the overlap is over. The caller holds the lock.
func (s *Source) endOverlap(now time.Time) {
	if settled := s.identity.at(now); settled != s.identity {
		s.identity = settled
		s.cfg.Log.Info("the root before the rollover is no longer presented")
		s.notify()
	}
}

// Run renews the leaf at half of its life, and ends overlaps, until ctx ends, so that Leaf is
// current and subscribers are notified. GetX509SVID returns a current leaf even if Run was late
// or the machine slept.
func (s *Source) Run(ctx context.Context) error {
	for {
		wait := retryRenewal
		if _, err := s.current(time.Now()); err != nil {
			s.cfg.Log.Error("renew certificate", "err", err)
		} else {
			wait = max(time.Until(s.Next()), 0)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Next is the latest time at which GetX509SVID or Identity returns another value.
func (s *Source) Next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until, ok := s.identity.Overlap(); ok && until.Before(s.renewAt) {
		return until
	}
	return s.renewAt
}

// GetX509SVID implements x509svid.Source: leaf first, then the certificates from its signer to
// the identity key.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) { return s.current(time.Now()) }

// Leaf returns the serial number of the current certificate, in hexadecimal, and when it ends.
func (s *Source) Leaf() (serial string, notAfter time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	leaf := s.svid.Certificates[0]
	return leaf.SerialNumber.Text(16), leaf.NotAfter
}

// current returns the leaf, a new one if half of the life of the old one is over. If renewing
// fails, the old one is used until it ends.
func (s *Source) current(now time.Time) (*x509svid.SVID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endOverlap(now)
	if s.svid != nil && now.Before(s.renewAt) && !now.Before(s.svid.Certificates[0].NotBefore) {
		return s.svid, nil
	}
	if err := s.renew(s.identity, now); err != nil && (s.svid == nil || !now.Before(s.svid.Certificates[0].NotAfter)) {
		return nil, err
	}
	return s.svid, nil
}

// renew creates a leaf of an identity and uses it from then on. The caller holds the lock.
func (s *Source) renew(by *Identity, now time.Time) error {
	uri, err := url.Parse(s.id.AgentURI())
	if err != nil {
		return fmt.Errorf("agent's SPIFFE ID: %w", err)
	}
	leaf, key, err := by.mint(&x509.Certificate{
		NotBefore:   now.Add(-leafBackdate),
		NotAfter:    leafEnd(now, s.cfg.LeafLife),
		URIs:        []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	s.svid = &x509svid.SVID{
		ID:           s.agent,
		Certificates: append([]*x509.Certificate{leaf}, by.chain()...),
		PrivateKey:   key,
	}
	s.renewAt = now.Add(s.cfg.LeafLife / 2)
	s.cfg.Log.Info("certificate renewed", "serial", leaf.SerialNumber.Text(16), "notAfter", leaf.NotAfter)
	s.notify()
	return nil
}

// leafEnd is the end of a leaf. Certificates have whole seconds, so it is rounded up.
func leafEnd(now time.Time, life time.Duration) time.Time {
	return now.Add(life + time.Second - time.Nanosecond).Truncate(time.Second)
}

// mint signs a leaf over a fresh key.
func (i *Identity) mint(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate leaf key: %w", err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	leaf, err := sign(template, i.root, key.Public(), i.key)
	if err != nil {
		return nil, nil, fmt.Errorf("leaf certificate: %w", err)
	}
	return leaf, key, nil
}

// tlsCertificate is the current leaf for crypto/tls.
func (s *Source) tlsCertificate() (*tls.Certificate, error) {
	svid, err := s.GetX509SVID()
	if err != nil {
		return nil, err
	}
	return tlsCertificate(svid.Certificates[0], svid.PrivateKey, svid.Certificates[1:]), nil
}

func tlsCertificate(leaf *x509.Certificate, key crypto.Signer, chain []*x509.Certificate) *tls.Certificate {
	c := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, cert := range chain {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}

// AdminTLS returns the TLS configuration of a server of this cluster's own users:
// a certificate for these names and addresses, signed by the newest key (RootPEM
// is the ca.crt; an older one does too), renewed at half life. It has no SPIFFE
// ID, so no peer takes it for the agent. The caller has to handle client certificates.
func (s *Source) AdminTLS(dnsNames []string, ips []netip.Addr) *tls.Config {
	a := &adminLeaf{source: s, dnsNames: dnsNames}
	for _, ip := range ips {
		a.ips = append(a.ips, ip.AsSlice())
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.current(time.Now())
		},
	}
}

// adminLeaf is the certificate of AdminTLS.
type adminLeaf struct {
	source   *Source
	dnsNames []string
	ips      []net.IP

	mu      sync.Mutex
	cert    *tls.Certificate
	root    *x509.Certificate
	renewAt time.Time
}

func (a *adminLeaf) current(now time.Time) (*tls.Certificate, error) {
	by := a.source.Identity()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cert != nil && a.root == by.root && now.Before(a.renewAt) {
		return a.cert, nil
	}
	life := a.source.cfg.LeafLife
	leaf, key, err := by.mint(&x509.Certificate{
		NotBefore:   now.Add(-leafBackdate),
		NotAfter:    leafEnd(now, life),
		DNSNames:    a.dnsNames,
		IPAddresses: a.ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("admin certificate: %w", err)
	}
	a.cert, a.root = tlsCertificate(leaf, key, by.chain()), by.root
	a.renewAt = now.Add(life / 2)
	return a.cert, nil
}

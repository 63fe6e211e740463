package identity

import (
	"context"
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
	// DefaultLeafLife is how long a leaf certificate is valid where Config says
	// nothing.
	DefaultLeafLife = 24 * time.Hour
	// minLeafLife keeps renewal from spinning.
	minLeafLife = time.Second
	// retryRenewal is how long Run waits after a renewal that failed.
	retryRenewal = 10 * time.Second
)

// SourceConfig configures a Source.
type SourceConfig struct {
	// Identity is the cluster's. Required.
	Identity *Identity
	// LeafLife is how long a leaf certificate is valid; 0 is DefaultLeafLife, less
	// than a second is refused. Leaves are renewed at half of it.
	LeafLife time.Duration
	// Log gets a line each renewal; nil discards.
	Log *slog.Logger
}

// Source mints the leaf certificates of a cluster's agent, each with a key of its
// own and the SPIFFE ID spiffe://<id>/agent. It implements x509svid.Source.
// Connections that exist go on with the leaf that they began with.
type Source struct {
	cfg     SourceConfig
	agent   spiffeid.ID
	mu      sync.Mutex
	svid    *x509svid.SVID
	renewAt time.Time
}

// NewSource makes the first leaf.
func NewSource(cfg SourceConfig) (*Source, error) {
	if cfg.Identity == nil {
		return nil, errors.New("identity source: no identity")
	}
	if cfg.LeafLife == 0 {
		cfg.LeafLife = DefaultLeafLife
	}
	if cfg.LeafLife < minLeafLife {
		return nil, fmt.Errorf("identity source: leaf life %s is below %s", cfg.LeafLife, minLeafLife)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	agent, err := spiffeid.FromString(cfg.Identity.ID().AgentURI())
	if err != nil {
		return nil, fmt.Errorf("identity source: %w", err)
	}
	s := &Source{cfg: cfg, agent: agent}
	if _, err := s.current(time.Now()); err != nil {
		return nil, err
	}
	return s, nil
}

// Identity returns the cluster's identity.
func (s *Source) Identity() *Identity { return s.cfg.Identity }

// ID returns the cluster's ID.
func (s *Source) ID() peering.ClusterID { return s.cfg.Identity.ID() }

// Run renews the leaf at half of its life until ctx ends, so that what Leaf tells
// is current. Whoever asks for a leaf gets one that is, also where Run was late or
// the machine slept.
func (s *Source) Run(ctx context.Context) error {
	for {
		wait := retryRenewal
		if _, err := s.current(time.Now()); err != nil {
			s.cfg.Log.Error("renew certificate", "err", err)
		} else {
			s.mu.Lock()
			wait = max(time.Until(s.renewAt), 0)
			s.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// GetX509SVID implements x509svid.Source: leaf first, then the root.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) { return s.current(time.Now()) }

// Leaf tells which certificate is in use: its serial number in hexadecimal and
// when it ends.
func (s *Source) Leaf() (serial string, notAfter time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	leaf := s.svid.Certificates[0]
	return leaf.SerialNumber.Text(16), leaf.NotAfter
}

// current returns the leaf, a new one where half of the life of the old is over.
// One that failed to renew is good until its end.
func (s *Source) current(now time.Time) (*x509svid.SVID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.svid != nil && now.Before(s.renewAt) && !now.Before(s.svid.Certificates[0].NotBefore) {
		return s.svid, nil
	}
	uri, err := url.Parse(s.cfg.Identity.ID().AgentURI())
	if err != nil {
		return nil, fmt.Errorf("agent's SPIFFE ID: %w", err)
	}
	leaf, key, err := s.cfg.Identity.mint(&x509.Certificate{
		NotBefore:   now.Add(-leafBackdate),
		NotAfter:    now.Add(s.cfg.LeafLife),
		URIs:        []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		if s.svid != nil && now.Before(s.svid.Certificates[0].NotAfter) {
			return s.svid, nil
		}
		return nil, err
	}
	s.svid = &x509svid.SVID{
		ID:           s.agent,
		Certificates: []*x509.Certificate{leaf, s.cfg.Identity.root},
		PrivateKey:   key,
	}
	s.renewAt = now.Add(s.cfg.LeafLife / 2)
	s.cfg.Log.Info("certificate renewed", "serial", leaf.SerialNumber.Text(16), "notAfter", leaf.NotAfter)
	return s.svid, nil
}

// mint signs a leaf over a fresh key.
func (i *Identity) mint(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate leaf key: %w", err)
	}
	if template.SerialNumber, err = newSerial(); err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, i.root, key.Public(), i.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign leaf certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("leaf certificate: %w", err)
	}
	return leaf, key, nil
}

// tlsCertificate is the current leaf in the form that crypto/tls wants.
func (s *Source) tlsCertificate() (*tls.Certificate, error) {
	svid, err := s.GetX509SVID()
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{PrivateKey: svid.PrivateKey, Leaf: svid.Certificates[0]}
	for _, cert := range svid.Certificates {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c, nil
}

// AdminTLS returns the TLS configuration of a server of this cluster's own users:
// a certificate for these names and addresses, signed by the root (RootPEM is the
// ca.crt), renewed at half life. It has no SPIFFE ID, so no peer takes it for the
// agent. Client certificates are left to the caller.
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
	renewAt time.Time
}

func (a *adminLeaf) current(now time.Time) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cert != nil && now.Before(a.renewAt) {
		return a.cert, nil
	}
	life := a.source.cfg.LeafLife
	leaf, key, err := a.source.cfg.Identity.mint(&x509.Certificate{
		NotBefore:   now.Add(-leafBackdate),
		NotAfter:    now.Add(life),
		DNSNames:    a.dnsNames,
		IPAddresses: a.ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("admin certificate: %w", err)
	}
	a.cert = &tls.Certificate{
		Certificate: [][]byte{leaf.Raw, a.source.cfg.Identity.root.Raw},
		PrivateKey:  key,
		Leaf:        leaf,
	}
	a.renewAt = now.Add(life / 2)
	return a.cert, nil
}

package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"

	"github.com/entente-dev/entente/peering"
)

// maxChain is the most certificates that a peer may present: leaf, root, and
// room for a successor's.
const maxChain = 4

// PinError says that another cluster answered than the one expected, or that a
// certificate claims an ID that its key does not have.
type PinError struct {
	Want, Got peering.ClusterID
}

// Error implements error.
func (e *PinError) Error() string {
	return fmt.Sprintf("the key belongs to cluster %s, expected %s", e.Got, e.Want)
}

// UntrustedError says that a cluster proved who it is, but is not trusted here.
type UntrustedError struct {
	ID peering.ClusterID
}

// Error implements error.
func (e *UntrustedError) Error() string {
	return fmt.Sprintf("cluster %s is not trusted here: join it first", e.ID)
}

// TimeError says that a certificate is not valid by this machine's clock.
type TimeError struct {
	ID                  peering.ClusterID
	NotBefore, NotAfter time.Time
	// Now is this machine's clock.
	Now time.Time
}

// Error implements error.
func (e *TimeError) Error() string {
	const layout = "2006-01-02T15:04:05Z"
	now := e.Now.UTC().Format(layout)
	if e.Now.Before(e.NotBefore) {
		return fmt.Sprintf("certificate of %s is not valid yet: its cluster's clock says at least %s, this one's %s, %s behind; set the clocks right",
			e.ID, e.NotBefore.UTC().Format(layout), now, e.NotBefore.Sub(e.Now).Round(time.Second))
	}
	return fmt.Sprintf("certificate of %s ended at %s, this cluster's clock says %s, %s later: the clocks differ, or the peer does not renew its certificate",
		e.ID, e.NotAfter.UTC().Format(layout), now, e.Now.Sub(e.NotAfter).Round(time.Second))
}

// VerifyPeer returns what a chain of certificates, leaf first, proves. The leaf
// has exactly one URI, the SPIFFE ID of an agent. If its cluster is trusted, the
// chain has to verify against its bundle; if not, against the root at its end,
// which has to be of the key behind the ID: then Trusted is false. Errors are
// *PinError, *TimeError, or say what is wrong with the chain. A nil bundles
// trusts nobody.
func VerifyPeer(chain []*x509.Certificate, bundles *Bundles, now time.Time) (AuthInfo, error) {
	if len(chain) == 0 || len(chain) > maxChain {
		return AuthInfo{}, fmt.Errorf("%d certificates, want 1 to %d", len(chain), maxChain)
	}
	svid, err := x509svid.IDFromCert(chain[0])
	if err != nil {
		return AuthInfo{}, err
	}
	id, err := peering.ParseAgentURI(svid.String())
	if err != nil {
		return AuthInfo{}, fmt.Errorf("SPIFFE ID of the certificate: %w", err)
	}
	source, trusted, err := bundleFor(id, svid.TrustDomain(), chain, bundles)
	if err != nil {
		return AuthInfo{}, err
	}
	_, chains, err := x509svid.Verify(chain, source, x509svid.WithTime(now))
	if err != nil {
		return AuthInfo{}, timeError(id, err, chain, now)
	}
	root := chains[0][len(chains[0])-1]
	return AuthInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		ID:             id,
		Trusted:        trusted,
		Root:           root.Raw,
		NotAfter:       chain[0].NotAfter,
	}, nil
}

// bundleFor picks the roots to verify a chain against.
func bundleFor(id peering.ClusterID, domain spiffeid.TrustDomain, chain []*x509.Certificate, bundles *Bundles) (x509bundle.Source, bool, error) {
	if bundles != nil {
		if bundle, err := bundles.GetX509BundleForTrustDomain(domain); err == nil {
			// The bundle as it is now: a change while verifying changes nothing.
			return bundle, true, nil
		}
	}
	root := chain[len(chain)-1]
	if len(chain) < 2 {
		return nil, false, &UntrustedError{ID: id}
	}
	if err := checkRoot(id, root); err != nil {
		return nil, false, err
	}
	return x509bundle.FromX509Authorities(domain, []*x509.Certificate{root}), false, nil
}

// timeError turns what x509 says of time into what both clocks say.
func timeError(id peering.ClusterID, err error, chain []*x509.Certificate, now time.Time) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil {
		return &TimeError{ID: id, NotBefore: invalid.Cert.NotBefore, NotAfter: invalid.Cert.NotAfter, Now: now}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		// An expired root makes the chain end early; say so where it is the cause.
		for _, c := range chain {
			if now.Before(c.NotBefore) || now.After(c.NotAfter) {
				return &TimeError{ID: id, NotBefore: c.NotBefore, NotAfter: c.NotAfter, Now: now}
			}
		}
	}
	return err
}

// PeerOf returns what the client of a finished TLS handshake proved. It is the
// zero AuthInfo if it presented no certificate.
func PeerOf(cs tls.ConnectionState, bundles *Bundles) (AuthInfo, error) {
	if len(cs.PeerCertificates) == 0 {
		return AuthInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	}
	return VerifyPeer(cs.PeerCertificates, bundles, time.Now())
}

// ServerTLS returns the TLS configuration of the peer API, for these application
// protocols: TLS 1.3 only, this cluster's current leaf, a client certificate that
// may be absent but, if present, has to be one that VerifyPeer takes. Sessions
// are not resumed, so that each connection is judged anew.
func (s *Source) ServerTLS(bundles *Bundles, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.tlsCertificate()
		},
		// crypto/tls knows no per-peer roots: VerifyConnection does it all.
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := PeerOf(cs, bundles)
			return err
		},
	}
}

// ClientTLS returns the TLS configuration of a client that expects one cluster:
// TLS 1.3 only, this cluster's current leaf and root. With bundles the cluster has
// to be trusted; with nil, its root key has to be the one behind expect, which is
// what joining by token does. serverName is sent as SNI, for what routes by it; it
// proves nothing and may be empty. Errors of the handshake are *PinError,
// *UntrustedError, *TimeError, or say what is wrong with the chain.
func (s *Source) ClientTLS(expect peering.ClusterID, bundles *Bundles, serverName string, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return s.tlsCertificate()
		},
		// Names prove nothing here: the server is verified by its cluster ID, in
		// VerifyConnection.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(cs tls.ConnectionState) error {
			info, err := VerifyPeer(cs.PeerCertificates, bundles, time.Now())
			if err != nil {
				return err
			}
			if info.ID != expect {
				return &PinError{Want: expect, Got: info.ID}
			}
			if bundles != nil && !info.Trusted {
				return &UntrustedError{ID: info.ID}
			}
			return nil
		},
	}
}

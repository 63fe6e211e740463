package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"

	"github.com/entente-dev/entente/peering"
)

// PinError is the error that another cluster than the expected one presented its certificate, or
// that a certificate claims an ID that its key does not have.
type PinError struct {
	Want, Got peering.ClusterID
}

func (e *PinError) Error() string {
	return fmt.Sprintf("the key belongs to cluster %s, expected %s", e.Got, e.Want)
}

// UntrustedError is the error that a cluster proved its identity, but is not trusted here.
type UntrustedError struct {
	ID peering.ClusterID
}

func (e *UntrustedError) Error() string {
	return fmt.Sprintf("cluster %s is not trusted here: join it first", e.ID)
}

// TimeError is the error that a certificate is not valid by this machine's clock. Otherwise the
// chain proves that the peer is ID.
type TimeError struct {
	ID                  peering.ClusterID
	NotBefore, NotAfter time.Time
	// Now is this machine's clock.
	Now time.Time
	// Clock is the time by the peer's clock, if it sent that.
	Clock time.Time
}

// sameClock is by how much two clocks may differ without being named as the cause.
const sameClock = 10 * time.Second

func (e *TimeError) Error() string {
	const layout = "2006-01-02T15:04:05Z"
	text := fmt.Sprintf("certificate of %s ended at %s", e.ID, e.NotAfter.UTC().Format(layout))
	early := e.Now.Before(e.NotBefore)
	if early {
		text = fmt.Sprintf("certificate of %s is not valid yet, it begins at %s", e.ID, e.NotBefore.UTC().Format(layout))
	}
	now := e.Now.UTC().Format(layout)
	skew := e.Clock.Sub(e.Now).Round(time.Second)
	switch {
	case !e.Clock.IsZero() && skew.Abs() > sameClock:
		side := "ahead"
		if skew < 0 {
			side = "behind"
		}
		return fmt.Sprintf("%s: its cluster's clock says %s, this one's %s, so it is %s %s; set the clocks right", text, e.Clock.UTC().Format(layout), now, skew.Abs(), side)
	case !e.Clock.IsZero():
		return fmt.Sprintf("%s, and the clocks agree that it is %s: the peer does not renew its certificate", text, now)
	case early:
		return fmt.Sprintf("%s: its cluster's clock says at least that, this one's %s, %s behind; set the clocks right", text, now, e.NotBefore.Sub(e.Now).Round(time.Second))
	}
	return fmt.Sprintf("%s, this cluster's clock says %s, %s later: the clocks differ, or the peer does not renew its certificate", text, now, e.Now.Sub(e.NotAfter).Round(time.Second))
}

// VerifyPeer returns what a chain of certificates, leaf first, proves. The leaf has to have
// exactly one URI, the SPIFFE ID of an agent. If its cluster is trusted, the chain has to verify
// against its bundle. If not, Trusted is false, and the chain has to lead, signature by
// signature, to the root of the key behind the ID, which is its last certificate. Errors are
// *PinError, *TimeError, or say what is wrong with the chain. With nil bundles no cluster is
// trusted.
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
	if _, _, err = x509svid.Verify(chain, source, x509svid.WithTime(now)); err != nil {
		if late := timeError(id, chain, source, now); late != nil {
			return AuthInfo{}, late
		}
		return AuthInfo{}, err
	}
	return AuthInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		ID:             id,
		Trusted:        trusted,
		NotAfter:       chain[0].NotAfter,
	}, nil
}

// bundleFor picks the roots to verify a chain against.
func bundleFor(id peering.ClusterID, domain spiffeid.TrustDomain, chain []*x509.Certificate, bundles *Bundles) (x509bundle.Source, bool, error) {
	if bundles != nil {
		if bundle, err := bundles.GetX509BundleForTrustDomain(domain); err == nil {
			// This is the current bundle: later changes do not affect this verification.
			return bundle, true, nil
		}
	}
	if len(chain) < 2 {
		return nil, false, &UntrustedError{ID: id}
	}
	newest, err := chainRoot(id, chain[1:])
	if err != nil {
		return nil, false, err
	}
	return x509bundle.FromX509Authorities(domain, []*x509.Certificate{newest}), false, nil
}

// chainRoot returns the certificate of an unknown cluster's newest key from what it presents
// beside its leaf: the succession, newest first, and the root of the key behind its ID.
func chainRoot(id peering.ClusterID, authorities []*x509.Certificate) (*x509.Certificate, error) {
	first := authorities[len(authorities)-1]
	if got := peering.ClusterIDOfSPKI(first.RawSubjectPublicKeyInfo); got != id {
		return nil, &PinError{Want: id, Got: got}
	}
	if err := checkRoot(id, first); err != nil {
		return nil, err
	}
	var succession [][]byte
	for _, c := range slices.Backward(authorities[:len(authorities)-1]) {
		succession = append(succession, c.Raw)
	}
	if _, err := peering.CheckSuccession(id, first.RawSubjectPublicKeyInfo, succession); err != nil {
		return nil, err
	}
	return authorities[0], nil
}

// timeError returns a TimeError if a chain is wrong only by its time: if it was valid when its
// leaf began. Else it returns nil.
func timeError(id peering.ClusterID, chain []*x509.Certificate, source x509bundle.Source, now time.Time) *TimeError {
	_, chains, err := x509svid.Verify(chain, source, x509svid.WithTime(chain[0].NotBefore))
	if err == nil {
		for _, c := range chains[0] {
			if now.Before(c.NotBefore) || now.After(c.NotAfter) {
				return &TimeError{ID: id, NotBefore: c.NotBefore, NotAfter: c.NotAfter, Now: now}
			}
		}
	}
	return nil
}

// PeerOf returns what the client of a finished TLS handshake proved. It is the
// zero AuthInfo if it presented no certificate.
func PeerOf(cs tls.ConnectionState, bundles *Bundles) (AuthInfo, error) {
	if len(cs.PeerCertificates) == 0 {
		return AuthInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
	}
	info, err := VerifyPeer(cs.PeerCertificates, bundles, time.Now())
	if err != nil || !cs.HandshakeComplete {
		return info, err
	}
	info.Channel, err = Channel(cs)
	return info, err
}

const (
	// ChannelLen is how many bytes AuthInfo.Channel has.
	ChannelLen = 32
	// channelLabel is what Channel is exported for. Labels for private use begin so (RFC
	// 5705, section 4).
	channelLabel = "EXPERIMENTAL entente channel"
)

// Channel returns the exported keying material (RFC 8446, section 7.5) of a TLS connection whose
// handshake is finished, as in AuthInfo.
func Channel(cs tls.ConnectionState) ([ChannelLen]byte, error) {
	out, err := cs.ExportKeyingMaterial(channelLabel, nil, ChannelLen)
	if err != nil {
		return [ChannelLen]byte{}, fmt.Errorf("channel of the connection: %w", err)
	}
	return [ChannelLen]byte(out), nil
}

// ServerTLS returns the TLS configuration of the peer API, for these application
// protocols: TLS 1.3 only, this cluster's current leaf, a client certificate that may be absent
// but, if present, has to be one that VerifyPeer accepts. Sessions are not resumed, so that each
// connection is verified.
func (s *Source) ServerTLS(bundles *Bundles, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.tlsCertificate()
		},
		// crypto/tls has no roots per peer: VerifyConnection does all of it.
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := PeerOf(cs, bundles)
			return err
		},
	}
}

// ClientTLS returns the TLS configuration of a client that expects one cluster:
// TLS 1.3 only, this cluster's current leaf. With bundles the cluster has
// to be trusted; with nil, as for joining by token, its root key has to be the one behind expect.
// serverName is sent as SNI for load balancers that route by it; it proves nothing and may be
// empty. Errors of the handshake are *PinError,
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
			late, ok := errors.AsType[*TimeError](err)
			switch {
			case ok:
				info.ID, info.Trusted = late.ID, bundles.Has(late.ID)
			case err != nil:
				return err
			}
			if info.ID != expect {
				return &PinError{Want: expect, Got: info.ID}
			}
			if bundles != nil && !info.Trusted {
				return &UntrustedError{ID: info.ID}
			}
			return err
		},
	}
}

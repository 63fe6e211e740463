package volumecopy

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// secure returns the TLS configuration of both sides: they use one key, derived from the secret,
// and each has to prove that it has it.
func secure(secret []byte) (*tls.Config, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("the secret has %d bytes; the minimum is %d", len(secret), minSecret)
	}
	seed, err := hkdf.Key(sha256.New, secret, nil, "entente volume copy", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0)}
	der, err := x509.CreateCertificate(nil, template, template, public, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAnyClientCert,
		// Neither side has a certificate of an authority: each knows the other's key, which is its own.
		InsecureSkipVerify:     true, //nolint:gosec // VerifyConnection does
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 {
				return errors.New("the other side has no certificate")
			}
			if theirs, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey); !ok || !public.Equal(theirs) {
				return errors.New("the other side does not have the secret of this copy")
			}
			return nil
		},
	}, nil
}

package peering

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// CheckSuccession checks the rollovers of a cluster's key: identityKey is the key behind its ID
// (SubjectPublicKeyInfo, DER), and each certificate of the succession (X.509, DER) is for the
// next key and signed by the one before. It returns the newest key, which is the identity key
// itself without a succession.
//
// A certificate of a succession is valid for ever: its dates are not checked.
func CheckSuccession(id ClusterID, identityKey []byte, succession [][]byte) (spki []byte, err error) {
	keys, err := Party{ID: id, PublicKey: identityKey, Succession: succession}.keys()
	if err != nil {
		return nil, err
	}
	spki, err = x509.MarshalPKIXPublicKey(keys[len(keys)-1])
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return spki, nil
}

// keys returns all keys that the party ever signed with, oldest first.
func (p Party) keys() ([]*ecdsa.PublicKey, error) {
	if len(p.Succession) > MaxSuccession {
		return nil, fmt.Errorf("%d successions of the key, more than %d", len(p.Succession), MaxSuccession)
	}
	first, err := p.identityKey()
	if err != nil {
		return nil, err
	}
	keys := []*ecdsa.PublicKey{first}
	for i, der := range p.Succession {
		next, err := successor(p.ID, keys[len(keys)-1], der)
		if err != nil {
			return nil, fmt.Errorf("succession %d of the key of %s: %w", i+1, p.ID, err)
		}
		for _, k := range keys {
			if k.Equal(next) {
				return nil, fmt.Errorf("succession %d of the key of %s: goes back to an earlier key", i+1, p.ID)
			}
		}
		keys = append(keys, next)
	}
	return keys, nil
}

// identityKey returns the key behind the party's ID.
func (p Party) identityKey() (*ecdsa.PublicKey, error) {
	if len(p.PublicKey) > MaxPublicKeyLen {
		return nil, fmt.Errorf("public key has %d bytes, more than %d", len(p.PublicKey), MaxPublicKeyLen)
	}
	if _, err := ParseClusterID(string(p.ID)); err != nil {
		return nil, err
	}
	if got := ClusterIDOfSPKI(p.PublicKey); got != p.ID {
		return nil, fmt.Errorf("public key is that of %s, not of %s", got, p.ID)
	}
	pub, err := x509.ParsePKIXPublicKey(p.PublicKey)
	if err != nil {
		return nil, errors.New("public key is not a SubjectPublicKeyInfo")
	}
	return p256(pub)
}

// p256 returns a key that may sign. A second algorithm of signatures would begin here: an
// envelope does not name its algorithm.
func p256(pub any) (*ecdsa.PublicKey, error) {
	key, ok := pub.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("public key is not ECDSA P-256")
	}
	return key, nil
}

// successor returns the key that a cross certificate of key is for.
func successor(id ClusterID, key *ecdsa.PublicKey, der []byte) (*ecdsa.PublicKey, error) {
	if len(der) > MaxCertificateLen {
		return nil, fmt.Errorf("certificate has %d bytes, more than %d", len(der), MaxCertificateLen)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.New("not an X.509 certificate")
	}
	next, err := p256(cert.PublicKey)
	if err != nil {
		return nil, err
	}
	if cert.SignatureAlgorithm != x509.ECDSAWithSHA256 {
		return nil, errors.New("not signed with ECDSA and SHA-256")
	}
	issuer := x509.Certificate{PublicKeyAlgorithm: x509.ECDSA, PublicKey: key}
	if err := issuer.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature); err != nil {
		return nil, errors.New("not signed by the key before")
	}
	if !cert.BasicConstraintsValid || !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, errors.New("not the certificate of an authority")
	}
	if len(cert.UnhandledCriticalExtensions) > 0 {
		return nil, errors.New("it has a critical extension that is unknown")
	}
	if len(cert.URIs) != 1 || cert.URIs[0].String() != id.TrustDomainURI() ||
		len(cert.DNSNames)+len(cert.EmailAddresses)+len(cert.IPAddresses) > 0 {
		return nil, fmt.Errorf("its one name is not %s", id.TrustDomainURI())
	}
	return next, nil
}

// Key returns the public key with which the party signs now: the end of its
// succession, after checking all of it, from the key behind the party's ID on.
func (p Party) Key() (*ecdsa.PublicKey, error) {
	keys, err := p.keys()
	if err != nil {
		return nil, err
	}
	return keys[len(keys)-1], nil
}

// Equal reports whether two parties are the same cluster with the same keys.
func (p Party) Equal(o Party) bool {
	return p.ID == o.ID && bytes.Equal(p.PublicKey, o.PublicKey) && slices.EqualFunc(p.Succession, o.Succession, bytes.Equal)
}

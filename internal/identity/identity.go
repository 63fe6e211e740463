package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/entente-dev/entente/peering"
)

const (
	// rootLife is how long a root certificate is valid. What makes it the root is
	// its key, which is the cluster; it is replaced by rollover, not by time.
	rootLife = 20 * 365 * 24 * time.Hour
	// rootBackdate and leafBackdate let clocks differ: a certificate is valid some
	// time before it was made.
	rootBackdate = 24 * time.Hour
	leafBackdate = time.Hour

	pemKey  = "PRIVATE KEY"
	pemCert = "CERTIFICATE"

	// maxIdentityPEM bounds what Parse reads.
	maxIdentityPEM = 64 << 10
)

// Identity is a cluster's key and the self-signed root certificate over it. The
// cluster ID is the hash of the key. It does not change.
type Identity struct {
	id   peering.ClusterID
	key  *ecdsa.PrivateKey
	root *x509.Certificate
}

// Generate makes a new identity: an ECDSA P-256 key and a root certificate that
// is valid for 20 years from a day before now.
func Generate(now time.Time) (*Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate identity key: %w", err)
	}
	id, err := peering.ClusterIDOf(key.Public())
	if err != nil {
		return nil, err
	}
	uri, err := url.Parse(id.TrustDomainURI())
	if err != nil {
		return nil, fmt.Errorf("trust domain of %s: %w", id, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "Entente cluster " + id.Short()},
		NotBefore:             now.Add(-rootBackdate),
		NotAfter:              now.Add(rootLife),
		URIs:                  []*url.URL{uri},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign root certificate: %w", err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("root certificate: %w", err)
	}
	return &Identity{id: id, key: key, root: root}, nil
}

// newSerial returns a random positive serial number of at most 127 bits.
func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

// Marshal writes the private key (PKCS #8) and the root certificate as PEM. Keep
// it secret.
func (i *Identity) Marshal() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(i.key)
	if err != nil {
		return nil, fmt.Errorf("encode identity key: %w", err)
	}
	out := pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})
	return append(out, i.RootPEM()...), nil
}

// Parse reads what Marshal wrote, and checks that key and root belong together.
func Parse(b []byte) (*Identity, error) {
	if len(b) > maxIdentityPEM {
		return nil, fmt.Errorf("identity has %d bytes, more than %d", len(b), maxIdentityPEM)
	}
	i := &Identity{}
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		switch {
		case block.Type == pemKey && i.key == nil:
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, errors.New("identity: private key is not PKCS #8") // the cause could quote the key
			}
			ec, ok := key.(*ecdsa.PrivateKey)
			if !ok || ec.Curve != elliptic.P256() {
				return nil, errors.New("identity: private key is not ECDSA P-256")
			}
			i.key = ec
		case block.Type == pemCert && i.root == nil:
			root, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("identity: root certificate: %w", err)
			}
			i.root = root
		default:
			return nil, fmt.Errorf("identity: unexpected PEM block %q", block.Type)
		}
	}
	if i.key == nil || i.root == nil {
		return nil, errors.New("identity: private key or root certificate is missing")
	}
	if !i.key.PublicKey.Equal(i.root.PublicKey) {
		return nil, errors.New("identity: root certificate is of another key")
	}
	i.id = peering.ClusterIDOfSPKI(i.root.RawSubjectPublicKeyInfo)
	if err := checkRoot(i.id, i.root); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return i, nil
}

// ID returns the cluster's ID.
func (i *Identity) ID() peering.ClusterID { return i.id }

// Signer returns the identity key, with which contracts are signed.
func (i *Identity) Signer() crypto.Signer { return i.key }

// PublicKey returns the public key as SubjectPublicKeyInfo, DER.
func (i *Identity) PublicKey() []byte { return bytes.Clone(i.root.RawSubjectPublicKeyInfo) }

// Party returns the cluster as a party of a contract.
func (i *Identity) Party() peering.Party {
	return peering.Party{ID: i.id, PublicKey: i.PublicKey()}
}

// Root returns the root certificate. Do not change it.
func (i *Identity) Root() *x509.Certificate { return i.root }

// RootPEM returns the root certificate as PEM, as in a ca.crt.
func (i *Identity) RootPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: i.root.Raw})
}

// Bundle returns the cluster's trust bundle, DER certificates one after the
// other: what a peer needs in order to trust it.
func (i *Identity) Bundle() []byte { return bytes.Clone(i.root.Raw) }

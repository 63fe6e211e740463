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
	"slices"
	"time"

	"github.com/entente-dev/entente/peering"
)

const (
	// rootLife is how long a root certificate is valid. A root is replaced by rollover of its key,
	// not by time.
	rootLife = 20 * 365 * 24 * time.Hour
	// rootBackdate and leafBackdate let clocks differ: a certificate is valid some
	// time before it was made.
	rootBackdate = 24 * time.Hour
	leafBackdate = time.Hour

	pemKey       = "PRIVATE KEY"
	pemPublicKey = "PUBLIC KEY"
	pemCert      = "CERTIFICATE"

	// untilHeader is the PEM header that Marshal writes for the root of the previous key: until
	// when that is presented to peers.
	untilHeader = "Until"
)

// Identity is a cluster's key, its self-signed root certificate, and the succession from the
// first key, the identity key. The cluster ID is the hash of the identity key and never changes.
// An Identity is immutable: Rollover returns a new one.
type Identity struct {
	id  peering.ClusterID
	key *ecdsa.PrivateKey
	// root is the certificate of key, first that of the identity key. They are the
	// same until the first rollover. first carries the identity key to clusters that
	// know nothing but the ID.
	root, first *x509.Certificate
	// succession leads from first's key to key: each certificate is for the next key
	// and signed by the one before.
	succession []*x509.Certificate
	// older is the root of the previous key, which is presented beside root before until. It is
	// nil after that, and without a rollover.
	older *x509.Certificate
	until time.Time
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
	template, err := authority(id, 0, now)
	if err != nil {
		return nil, err
	}
	root, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("root certificate: %w", err)
	}
	return &Identity{id: id, key: key, root: root, first: root}, nil
}

// authority returns the template of the certificates of a cluster's key: its root, and the one
// that the previous key signs for it. number is how many keys came before.
func authority(id peering.ClusterID, number int, now time.Time) (*x509.Certificate, error) {
	uri, err := url.Parse(id.TrustDomainURI())
	if err != nil {
		return nil, fmt.Errorf("trust domain of %s: %w", id, err)
	}
	// Each key has a name of its own: chains are built by names.
	name := "Entente cluster " + id.Short()
	if number > 0 {
		name += fmt.Sprintf(" key %d", number+1)
	}
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-rootBackdate),
		NotAfter:              now.Add(rootLife),
		URIs:                  []*url.URL{uri},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		// Below it are its successors.
		MaxPathLen: peering.MaxSuccession,
	}, nil
}

// sign creates a certificate.
func sign(template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	// A random positive serial number of at most 127 bits.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Marshal writes the private key (PKCS #8) and the certificates as PEM. Keep it
// secret.
func (i *Identity) Marshal() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(i.key)
	if err != nil {
		return nil, fmt.Errorf("encode identity key: %w", err)
	}
	out := pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})
	written := map[string]bool{}
	for _, c := range append([]*x509.Certificate{i.root}, append(slices.Clone(i.succession), i.first, i.older)...) {
		if c == nil || written[string(c.Raw)] {
			continue
		}
		written[string(c.Raw)] = true
		block := &pem.Block{Type: pemCert, Bytes: c.Raw}
		if c == i.older {
			block.Headers = map[string]string{untilHeader: i.until.UTC().Format(time.RFC3339Nano)}
		}
		out = append(out, pem.EncodeToMemory(block)...)
	}
	return out, nil
}

// Parse reads what Marshal wrote, and checks that it all belongs together.
func Parse(b []byte) (*Identity, error) {
	if len(b) > maxIdentityPEM {
		return nil, fmt.Errorf("identity has %d bytes, more than %d", len(b), maxIdentityPEM)
	}
	i := &Identity{}
	var roots []*x509.Certificate
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
		case block.Type == pemCert:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("identity: certificate: %w", err)
			}
			if !selfSigned(c) {
				i.succession = append(i.succession, c)
				continue
			}
			roots = append(roots, c)
			if until := block.Headers[untilHeader]; until != "" && i.older == nil {
				if i.until, err = time.Parse(time.RFC3339Nano, until); err != nil {
					return nil, errors.New("identity: the end of the overlap is not RFC 3339")
				}
				i.older = c
			}
		default:
			return nil, fmt.Errorf("identity: unexpected PEM block %q", block.Type)
		}
	}
	if i.key == nil || len(roots) == 0 {
		return nil, errors.New("identity: private key or root certificate is missing")
	}
	if err := i.assemble(roots); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return i, nil
}

// assemble assigns the roots to the keys, and checks that all belong together.
func (i *Identity) assemble(roots []*x509.Certificate) error {
	for _, c := range roots {
		switch {
		case i.root == nil && i.key.PublicKey.Equal(c.PublicKey):
			i.root = c
		case i.first == nil && len(i.succession) > 0 && i.succession[0].CheckSignatureFrom(c) == nil:
			i.first = c
		case c != i.older:
			return fmt.Errorf("root certificate of another key, %s", peering.ClusterIDOfSPKI(c.RawSubjectPublicKeyInfo))
		}
	}
	if len(i.succession) == 0 {
		i.first = i.root
	}
	if i.root == nil || i.first == nil {
		return errors.New("the root certificate of the private key, or of the first key, is missing")
	}
	i.id = peering.ClusterIDOfSPKI(i.first.RawSubjectPublicKeyInfo)
	if err := i.TrustBundle().check(i.id); err != nil {
		return err
	}
	return checkRoot(i.id, i.first)
}

// ID returns the cluster's ID.
func (i *Identity) ID() peering.ClusterID { return i.id }

// Signer returns the newest key, with which contracts are signed.
func (i *Identity) Signer() crypto.Signer { return i.key }

// PublicKey returns the identity key, the one behind the ID, as SubjectPublicKeyInfo, DER. After
// a rollover Signer returns another key.
func (i *Identity) PublicKey() []byte { return bytes.Clone(i.first.RawSubjectPublicKeyInfo) }

// Party returns the cluster as a party of a contract.
func (i *Identity) Party() peering.Party { return i.TrustBundle().Party(i.id) }

// Root returns the root certificate of the newest key. Do not change it.
func (i *Identity) Root() *x509.Certificate { return i.root }

// RootPEM returns the root certificates as PEM, as in a ca.crt: the newest first,
// and in an overlap the one before.
func (i *Identity) RootPEM() []byte {
	var out []byte
	for _, c := range i.roots() {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.Raw})...)
	}
	return out
}

// TrustBundle returns what a peer needs in order to trust the cluster.
func (i *Identity) TrustBundle() Bundle {
	b := Bundle{Roots: i.roots(), IdentityKey: i.PublicKey()}
	for _, c := range i.succession {
		b.Succession = append(b.Succession, c.Raw)
	}
	return b
}

func (i *Identity) roots() []*x509.Certificate {
	if i.older == nil {
		return []*x509.Certificate{i.root}
	}
	return []*x509.Certificate{i.root, i.older}
}

// chain returns the certificates that lead from a leaf to the identity key. With
// them a peer that knows any of the cluster's roots can verify the leaf, also one that was away
// during a rollover, and a cluster that knows no root learns the ID.
func (i *Identity) chain() []*x509.Certificate {
	out := slices.Clone(i.succession)
	slices.Reverse(out)
	return append(out, i.first)
}

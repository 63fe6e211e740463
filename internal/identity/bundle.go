package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/entente-dev/entente/peering"
)

// Bundle has what is needed to trust a cluster. Get it by ReadBundle, ReadBundlePEM or
// Identity.TrustBundle.
type Bundle struct {
	// Roots are its root certificates, the newest key's first.
	Roots []*x509.Certificate
	// IdentityKey is the key behind the cluster's ID, SubjectPublicKeyInfo in DER.
	IdentityKey []byte
	// Succession leads from that key to the newest root's: certificates, DER, each for the next
	// key and signed by the one before. It is nil if there was no rollover.
	Succession [][]byte
}

// ReadBundle reads a trust bundle as it comes over the wire: root certificates, DER, one after
// the other; the identity key, which may be empty if its root is among them; and the succession.
// Each root has to be of the identity key or of a key of the succession, and the newest key's
// root has to be there.
func ReadBundle(id peering.ClusterID, roots, identityKey []byte, succession [][]byte) (Bundle, error) {
	if len(roots) > maxBundle {
		return Bundle{}, fmt.Errorf("trust bundle has %d bytes, more than %d", len(roots), maxBundle)
	}
	certs, err := x509.ParseCertificates(roots)
	if err != nil {
		return Bundle{}, fmt.Errorf("trust bundle: %w", err)
	}
	return newBundle(id, Bundle{Roots: certs, IdentityKey: identityKey, Succession: succession})
}

// ReadBundlePEM is ReadBundle for PEM, as in a ForeignCluster: roots and
// succession are CERTIFICATE blocks, of which the roots are self-signed;
// the identity key is a PUBLIC KEY block.
func ReadBundlePEM(id peering.ClusterID, text []byte) (Bundle, error) {
	if len(text) > maxBundlePEM {
		return Bundle{}, fmt.Errorf("trust bundle has %d bytes, more than %d", len(text), maxBundlePEM)
	}
	var b Bundle
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		switch {
		case block.Type == pemPublicKey && b.IdentityKey == nil:
			b.IdentityKey = block.Bytes
		case block.Type == pemCert:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return Bundle{}, fmt.Errorf("trust bundle: %w", err)
			}
			if selfSigned(c) {
				b.Roots = append(b.Roots, c)
			} else {
				b.Succession = append(b.Succession, c.Raw)
			}
		default:
			return Bundle{}, fmt.Errorf("trust bundle: unexpected PEM block %q", block.Type)
		}
	}
	if len(bytes.TrimSpace(text)) != 0 {
		return Bundle{}, errors.New("trust bundle: there is text after the certificates")
	}
	return newBundle(id, b)
}

// newBundle completes and checks a bundle.
func newBundle(id peering.ClusterID, b Bundle) (Bundle, error) {
	if len(b.IdentityKey) == 0 && len(b.Roots) > 0 {
		// Take the first root's, so that the error for another cluster's bundle names that cluster.
		b.IdentityKey = b.Roots[0].RawSubjectPublicKeyInfo
		for _, root := range b.Roots {
			if peering.ClusterIDOfSPKI(root.RawSubjectPublicKeyInfo) == id {
				b.IdentityKey = root.RawSubjectPublicKeyInfo
			}
		}
	}
	if len(b.Succession) == 0 {
		b.Succession = nil
	}
	if err := b.check(id); err != nil {
		return Bundle{}, fmt.Errorf("trust bundle of %s: %w", id, err)
	}
	keys, err := b.keys()
	if err != nil {
		return Bundle{}, fmt.Errorf("trust bundle of %s: %w", id, err)
	}
	b.Roots = slices.Clone(b.Roots)
	slices.SortStableFunc(b.Roots, func(x, y *x509.Certificate) int { return indexOf(keys, y) - indexOf(keys, x) })
	return b, nil
}

// check returns what is wrong with a bundle, if anything.
func (b Bundle) check(id peering.ClusterID) error {
	if len(b.Roots) == 0 || len(b.Roots) > maxRoots {
		return fmt.Errorf("%d root certificates, want 1 to %d", len(b.Roots), maxRoots)
	}
	if got := peering.ClusterIDOfSPKI(b.IdentityKey); got != id {
		return &PinError{Want: id, Got: got}
	}
	if _, err := peering.CheckSuccession(id, b.IdentityKey, b.Succession); err != nil {
		return err
	}
	keys, err := b.keys()
	if err != nil {
		return err
	}
	newest := false
	for i, root := range b.Roots {
		n := indexOf(keys, root)
		if n < 0 {
			return &PinError{Want: id, Got: peering.ClusterIDOfSPKI(root.RawSubjectPublicKeyInfo)}
		}
		if err := checkRoot(id, root); err != nil {
			return err
		}
		if slices.ContainsFunc(b.Roots[:i], root.Equal) {
			return errors.New("a root certificate is there twice")
		}
		newest = newest || n == len(keys)-1
	}
	if !newest {
		return errors.New("the root certificate of the newest key is missing")
	}
	if n := len(b.PEM()); n > maxBundlePEM {
		return fmt.Errorf("it has %d bytes as PEM, more than %d", n, maxBundlePEM)
	}
	return nil
}

// keys returns all keys of the cluster that are in the bundle, oldest first.
func (b Bundle) keys() ([]*ecdsa.PublicKey, error) {
	pub, err := x509.ParsePKIXPublicKey(b.IdentityKey)
	if err != nil {
		return nil, errors.New("identity key is not a SubjectPublicKeyInfo")
	}
	keys := make([]*ecdsa.PublicKey, 0, len(b.Succession)+1)
	for _, der := range b.Succession {
		key, ok := pub.(*ecdsa.PublicKey)
		if !ok {
			break
		}
		keys = append(keys, key)
		next, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("succession: %w", err)
		}
		pub = next.PublicKey
	}
	key, ok := pub.(*ecdsa.PublicKey)
	if !ok {
		return nil, errors.New("a key is not ECDSA")
	}
	return append(keys, key), nil
}

// DER returns the roots, one after the other.
func (b Bundle) DER() []byte {
	var out []byte
	for _, c := range b.Roots {
		out = append(out, c.Raw...)
	}
	return out
}

// PEM writes the bundle for ReadBundlePEM. It includes the identity key if its root is missing.
func (b Bundle) PEM() string {
	var out []byte
	holdsIdentity := func(c *x509.Certificate) bool { return bytes.Equal(c.RawSubjectPublicKeyInfo, b.IdentityKey) }
	if len(b.IdentityKey) > 0 && !slices.ContainsFunc(b.Roots, holdsIdentity) {
		out = pem.EncodeToMemory(&pem.Block{Type: pemPublicKey, Bytes: b.IdentityKey})
	}
	for _, c := range b.Roots {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.Raw})...)
	}
	for _, der := range b.Succession {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der})...)
	}
	return string(out)
}

// Hash is the SHA-256 of the roots, the newest key's first, and then the succession. Two sides
// compare a trust bundle by it.
func (b Bundle) Hash() peering.Hash {
	h := sha256.New()
	h.Write(b.DER())
	for _, der := range b.Succession {
		h.Write(der)
	}
	return peering.Hash(h.Sum(nil))
}

// Party returns the cluster as a party of a contract.
func (b Bundle) Party(id peering.ClusterID) peering.Party {
	return peering.Party{ID: id, PublicKey: b.IdentityKey, Succession: b.Succession}
}

// selfSigned reports whether a certificate is signed by its own key. Keys of another kind than
// ours are not even tried: checking a huge one takes long.
func selfSigned(c *x509.Certificate) bool {
	return c.PublicKeyAlgorithm == x509.ECDSA && c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// checkRoot checks that a certificate is a root of a cluster, of any of its keys: self-signed,
// able to sign, and with the cluster's ID in its only URI.
func checkRoot(id peering.ClusterID, root *x509.Certificate) error {
	key, ok := root.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return errors.New("root certificate's key is not ECDSA P-256")
	}
	if !root.IsCA || !root.BasicConstraintsValid || root.KeyUsage&x509.KeyUsageCertSign == 0 {
		return errors.New("root certificate may not sign certificates")
	}
	if len(root.URIs) != 1 || root.URIs[0].String() != id.TrustDomainURI() {
		return fmt.Errorf("root certificate's URI is not %s alone", id.TrustDomainURI())
	}
	if err := root.CheckSignatureFrom(root); err != nil {
		return fmt.Errorf("root certificate is not self-signed: %w", err)
	}
	return nil
}

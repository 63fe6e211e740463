package peering

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
)

// ClusterID identifies a cluster for ever: the first 20 bytes of the SHA-256 of its
// public identity key (SubjectPublicKeyInfo, DER), in lower-case base32 (RFC
// 4648) without padding, 32 characters. It cannot be claimed without the key. It
// is also a DNS label, a label value and a SPIFFE trust domain.
type ClusterID string

const (
	// clusterIDBytes is how many bytes of the hash an ID has: 160 bits, so that no second key with
	// the same ID can be found.
	clusterIDBytes = 20
	// ClusterIDLen is the length of a ClusterID in characters.
	ClusterIDLen = 32
	// shortIDLen is how much of an ID is shown to people.
	shortIDLen = 8
)

// idEncoding is RFC 4648 base32 in lower case: what DNS labels and trust domains
// allow.
var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding) //nolint:gochecknoglobals // a constant

// ClusterIDOf returns the ID of the cluster whose public identity key is pub. It
// fails for keys that have no SubjectPublicKeyInfo.
func ClusterIDOf(pub crypto.PublicKey) (ClusterID, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	return ClusterIDOfSPKI(der), nil
}

// ClusterIDOfSPKI returns the ID of the cluster whose public identity key is
// this SubjectPublicKeyInfo in DER, as in x509.Certificate.RawSubjectPublicKeyInfo.
func ClusterIDOfSPKI(der []byte) ClusterID {
	sum := sha256.Sum256(der)
	return ClusterID(idEncoding.EncodeToString(sum[:clusterIDBytes]))
}

// ParseClusterID checks that s has the form of a ClusterID.
func ParseClusterID(s string) (ClusterID, error) {
	if len(s) != ClusterIDLen {
		return "", fmt.Errorf("cluster ID has %d characters, want %d", len(s), ClusterIDLen)
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return "", fmt.Errorf("cluster ID has %q at %d, want a-z or 2-7", c, i)
		}
	}
	return ClusterID(s), nil
}

func (id ClusterID) String() string { return string(id) }

// Short returns the first 8 characters, for people. It proves nothing.
func (id ClusterID) Short() string {
	if len(id) < shortIDLen {
		return string(id)
	}
	return string(id[:shortIDLen])
}

// Bytes returns the decoded ID: the first 20 bytes of the SHA-256 of the key.
func (id ClusterID) Bytes() ([clusterIDBytes]byte, error) {
	var b [clusterIDBytes]byte
	if _, err := ParseClusterID(string(id)); err != nil {
		return b, err
	}
	if n, err := idEncoding.Decode(b[:], []byte(id)); err != nil || n != len(b) {
		return b, errors.New("cluster ID is not base32")
	}
	return b, nil
}

// agentPath is the path of an agent's SPIFFE ID.
const agentPath = "/agent"

const spiffeScheme = "spiffe://"

// TrustDomainURI returns the cluster's SPIFFE trust domain as a URI,
// spiffe://<id>.
func (id ClusterID) TrustDomainURI() string { return spiffeScheme + string(id) }

// AgentURI returns the SPIFFE ID of the cluster's agent, spiffe://<id>/agent.
func (id ClusterID) AgentURI() string { return spiffeScheme + string(id) + agentPath }

// ParseAgentURI returns the cluster whose agent has this SPIFFE ID. Any other
// path than /agent is refused.
func ParseAgentURI(uri string) (ClusterID, error) {
	rest, ok := strings.CutPrefix(uri, spiffeScheme)
	if !ok {
		return "", errors.New("not a SPIFFE ID")
	}
	domain, ok := strings.CutSuffix(rest, agentPath)
	if !ok {
		return "", fmt.Errorf("not the SPIFFE ID of an agent: it does not end in %s", agentPath)
	}
	return ParseClusterID(domain)
}

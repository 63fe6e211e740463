package main

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/signerverifier"
)

// party is one side of a contract, as the payload has it.
type party struct {
	ID         string   `json:"id"`
	PublicKey  []byte   `json:"publicKey"`
	Succession [][]byte `json:"succession"`
}

// verify returns the terms of a contract that two clusters signed. It fails if
// they are not the two that are expected.
func verify(ctx context.Context, contract []byte, consumer, provider string) ([]byte, error) {
	var e dsse.Envelope
	if err := json.Unmarshal(contract, &e); err != nil {
		return nil, err
	}
	if e.PayloadType != "application/vnd.entente.contract.v1+json" {
		return nil, fmt.Errorf("this is a %q", e.PayloadType)
	}
	payload, err := e.DecodeB64Payload()
	if err != nil {
		return nil, err
	}
	var terms struct{ Consumer, Provider party }
	if err := json.Unmarshal(payload, &terms); err != nil {
		return nil, err
	}
	var keys []dsse.Verifier
	for id, p := range map[string]party{consumer: terms.Consumer, provider: terms.Provider} {
		key, err := p.key(id)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	both, err := dsse.NewMultiEnvelopeVerifier(2, keys...)
	if err != nil {
		return nil, err
	}
	_, err = both.Verify(ctx, &e)
	return payload, err
}

// key returns the key with which the cluster of this ID signs: the key whose hash
// is the ID, or, where the cluster changed it since, the last of a row of
// certificates of which each is signed by the key before.
func (p party) key(id string) (dsse.Verifier, error) {
	hash := sha256.Sum256(p.PublicKey)
	if got := strings.ToLower(base32.StdEncoding.EncodeToString(hash[:20])); got != id {
		return nil, fmt.Errorf("the key is that of %s, not of %s", got, id)
	}
	key, err := x509.ParsePKIXPublicKey(p.PublicKey)
	if err != nil {
		return nil, err
	}
	for _, der := range p.Succession {
		next, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		before := &x509.Certificate{PublicKeyAlgorithm: x509.ECDSA, PublicKey: key}
		if err := before.CheckSignature(next.SignatureAlgorithm, next.RawTBSCertificate, next.Signature); err != nil {
			return nil, fmt.Errorf("succession of %s: %w", id, err)
		}
		// The same key signs certificates of connections, which succeed nobody.
		if !next.IsCA || len(next.URIs) != 1 || next.URIs[0].String() != "spiffe://"+id {
			return nil, fmt.Errorf("succession of %s: this certificate is not the cluster's own", id)
		}
		key = next.PublicKey
	}
	spki, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})
	return signerverifier.NewECDSASignerVerifierFromSSLibKey(&signerverifier.SSLibKey{
		KeyID: id, KeyVal: signerverifier.KeyVal{Public: string(text)},
	})
}

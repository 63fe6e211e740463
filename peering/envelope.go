package peering

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// Envelope is a DSSE envelope, version 1 (https://github.com/secure-systems-lab/dsse): exact
// payload bytes, their type, and signatures over both.
type Envelope struct {
	Payload     []byte
	PayloadType string
	Signatures  []Signature
}

// Signature is one party's signature: ECDSA P-256 over the SHA-256 of the
// pre-authentication encoding, ASN.1 DER.
type Signature struct {
	// KeyID is the signer's cluster ID.
	KeyID ClusterID
	Sig   []byte
}

// badSignature is the error that an envelope is not signed correctly. signer is the cluster whose
// signature is wrong, empty if it is about the envelope.
func badSignature(signer ClusterID, problem string) *Error {
	if signer == "" {
		return Errorf(ReasonSignatureInvalid, "envelope: %s", problem)
	}
	return Errorf(ReasonSignatureInvalid, "signature of %s: %s", signer, problem)
}

// pae returns DSSE's pre-authentication encoding, the bytes that are signed.
func pae(payloadType string, payload []byte) []byte {
	b := []byte("DSSEv1 ")
	b = strconv.AppendInt(b, int64(len(payloadType)), 10)
	b = append(b, ' ')
	b = append(b, payloadType...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(payload)), 10)
	b = append(b, ' ')
	return append(b, payload...)
}

// NewEnvelope wraps terms, with no signature yet.
func NewEnvelope(t Terms) (Envelope, error) {
	payload, err := t.Marshal()
	if err != nil {
		return Envelope{}, err
	}
	return Envelope{Payload: payload, PayloadType: PayloadType}, nil
}

// Hash is the SHA-256 of the payload.
func (e Envelope) Hash() Hash { return payloadHash(e.Payload) }

// Sign returns the envelope with the signature of cluster id added, in place of an older one.
// signer is the cluster's newest key, ECDSA P-256; rand is passed to it.
func (e Envelope) Sign(rand io.Reader, id ClusterID, signer crypto.Signer) (Envelope, error) {
	digest := sha256.Sum256(pae(e.PayloadType, e.Payload))
	sig, err := signer.Sign(rand, digest[:], crypto.SHA256)
	if err != nil {
		return Envelope{}, fmt.Errorf("sign envelope: %w", err)
	}
	sigs := slices.DeleteFunc(slices.Clone(e.Signatures), func(s Signature) bool { return s.KeyID == id })
	e.Signatures = append(sigs, Signature{KeyID: id, Sig: sig})
	return e, nil
}

// Verify returns the terms of an envelope that both parties signed: payload type and terms are
// valid, both keys are those behind the IDs, and there is exactly one valid signature by each
// party, and no other. It needs only the envelope; the caller has to compare the two IDs with the
// expected ones. The error for a wrong signature is an *Error with ReasonSignatureInvalid.
func (e Envelope) Verify() (Terms, error) {
	return e.verify(Consumer, Provider)
}

// VerifyConsumer is Verify for an envelope that the provider has not signed yet: it requires
// exactly the consumer's signature.
func (e Envelope) VerifyConsumer() (Terms, error) {
	return e.verify(Consumer)
}

func (e Envelope) verify(signers ...Role) (Terms, error) {
	if e.PayloadType != PayloadType {
		return Terms{}, badSignature("", "unknown payload type")
	}
	t, err := ParseTerms(e.Payload)
	if err != nil {
		return Terms{}, err
	}
	if len(e.Signatures) > MaxSignatures {
		return Terms{}, badSignature("", "too many signatures")
	}
	seen := map[ClusterID]bool{}
	for _, s := range e.Signatures {
		role, ok := t.RoleOf(s.KeyID)
		if !ok || !slices.Contains(signers, role) {
			return Terms{}, badSignature(s.KeyID, "not asked for")
		}
		if seen[s.KeyID] {
			return Terms{}, badSignature(s.KeyID, "there are two")
		}
		seen[s.KeyID] = true
		key, err := t.Party(role).Key()
		if err != nil {
			return Terms{}, err
		}
		if !e.signedBy(s.Sig, key) {
			return Terms{}, badSignature(s.KeyID, wrongSignature)
		}
	}
	for _, role := range signers {
		if id := t.Party(role).ID; !seen[id] {
			return Terms{}, badSignature(id, "missing ("+role.String()+")")
		}
	}
	return t, nil
}

const wrongSignature = "wrong: payload or signature was changed, or another key made it"

// signedBy reports whether one of the keys made a signature of the envelope.
func (e Envelope) signedBy(sig []byte, keys ...*ecdsa.PublicKey) bool {
	if len(sig) > MaxSignatureLen {
		return false
	}
	digest := sha256.Sum256(pae(e.PayloadType, e.Payload))
	return slices.ContainsFunc(keys, func(key *ecdsa.PublicKey) bool { return ecdsa.VerifyASN1(key, digest[:], sig) })
}

type jsonEnvelope struct {
	Payload     string          `json:"payload"`
	PayloadType string          `json:"payloadType"`
	Signatures  []jsonSignature `json:"signatures"`
}

type jsonSignature struct {
	KeyID string `json:"keyid"`
	Sig   string `json:"sig"`
}

// Marshal writes DSSE's JSON form.
func (e Envelope) Marshal() ([]byte, error) {
	j := jsonEnvelope{
		Payload:     base64.StdEncoding.EncodeToString(e.Payload),
		PayloadType: e.PayloadType,
		Signatures:  []jsonSignature{},
	}
	for _, s := range e.Signatures {
		j.Signatures = append(j.Signatures, jsonSignature{
			KeyID: string(s.KeyID),
			Sig:   base64.StdEncoding.EncodeToString(s.Sig),
		})
	}
	b, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("encode envelope: %w", err)
	}
	return b, nil
}

// ParseEnvelope reads DSSE's JSON form. As DSSE requires, either alphabet of base64 is accepted
// and unknown names are ignored: only the payload is signed, so nothing outside it matters. It
// does not verify signatures.
func ParseEnvelope(b []byte) (Envelope, error) {
	if len(b) > MaxEnvelope {
		return Envelope{}, fmt.Errorf("envelope has %d bytes, more than %d", len(b), MaxEnvelope)
	}
	var j jsonEnvelope
	if err := json.Unmarshal(b, &j); err != nil {
		return Envelope{}, fmt.Errorf("envelope: %w", err)
	}
	e := Envelope{PayloadType: j.PayloadType}
	var err error
	if e.Payload, err = decodeBase64(j.Payload); err != nil {
		return Envelope{}, fmt.Errorf("envelope: payload: %w", err)
	}
	for _, s := range j.Signatures {
		if len(e.Signatures) == MaxSignatures {
			break
		}
		sig, err := decodeBase64(s.Sig)
		if err != nil {
			return Envelope{}, fmt.Errorf("envelope: signature: %w", err)
		}
		id, err := ParseClusterID(s.KeyID)
		if err != nil {
			return Envelope{}, fmt.Errorf("envelope: keyid: %w", err)
		}
		e.Signatures = append(e.Signatures, Signature{KeyID: id, Sig: sig})
	}
	if len(j.Signatures) > MaxSignatures {
		return Envelope{}, fmt.Errorf("envelope has %d signatures, more than %d", len(j.Signatures), MaxSignatures)
	}
	return e, e.check()
}

// check checks the limits of an envelope's parts.
func (e Envelope) check() error {
	switch {
	case len(e.Payload) == 0 || len(e.Payload) > MaxPayload:
		return fmt.Errorf("envelope: payload has %d bytes, want 1 to %d", len(e.Payload), MaxPayload)
	case e.PayloadType == "" || len(e.PayloadType) > MaxPayloadTypeLen:
		return fmt.Errorf("envelope: payload type has %d characters, want 1 to %d", len(e.PayloadType), MaxPayloadTypeLen)
	}
	for _, s := range e.Signatures {
		if len(s.Sig) == 0 || len(s.Sig) > MaxSignatureLen {
			return fmt.Errorf("envelope: a signature has %d bytes, want 1 to %d", len(s.Sig), MaxSignatureLen)
		}
	}
	return nil
}

// Equal reports whether two envelopes are the same, with signatures in any order.
func (e Envelope) Equal(o Envelope) bool {
	if e.PayloadType != o.PayloadType || !bytes.Equal(e.Payload, o.Payload) || len(e.Signatures) != len(o.Signatures) {
		return false
	}
	for _, s := range e.Signatures {
		if !slices.ContainsFunc(o.Signatures, func(t Signature) bool {
			return s.KeyID == t.KeyID && bytes.Equal(s.Sig, t.Sig)
		}) {
			return false
		}
	}
	return true
}

func decodeBase64(s string) ([]byte, error) {
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
		if b, err := enc.DecodeString(s); err == nil {
			return b, nil
		}
	}
	return nil, errors.New("not base64")
}

package plan

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
)

// keyLen is the length of all WireGuard keys, in bytes.
const keyLen = 32

// redacted is printed instead of a secret.
const redacted = "[redacted]"

var errKey = errors.New("not a WireGuard key: must be 32 bytes in base64")

// PublicKey identifies a node's device to others. It is not a secret.
type PublicKey [keyLen]byte

// PresharedKey is mixed into the handshakes of one peering, so that tunnels of
// two peerings never share all their secrets. It is never printed.
type PresharedKey [keyLen]byte

// ParsePublicKey reads the base64 form. Its error does not repeat the text, which may be a
// secret.
func ParsePublicKey(s string) (PublicKey, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != keyLen {
		return PublicKey{}, errKey
	}
	return PublicKey(b), nil
}

// String is the base64 form.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// MarshalText is the base64 form.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the base64 form.
func (k *PublicKey) UnmarshalText(b []byte) (err error) {
	*k, err = ParsePublicKey(string(b))
	return err
}

// IsZero reports whether the key is missing.
func (k PublicKey) IsZero() bool { return k == PublicKey{} }

// IsZero reports whether the key is missing.
func (k PresharedKey) IsZero() bool { return k == PresharedKey{} }

// Format hides the key from every verb of fmt.
func (PresharedKey) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(redacted)) }

// LogValue hides the key.
func (PresharedKey) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the key.
func (PresharedKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

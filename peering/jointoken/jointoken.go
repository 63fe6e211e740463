// Package jointoken has the one-time tokens by which two clusters come to trust each other: it
// makes, writes and reads them, and redacts them from what is shown.
package jointoken

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/entente-dev/entente/peering"
)

// Token is a one-time invitation: a cluster that presents its secret to the cluster that made it
// is trusted by that one, and trusts it. It is written as one line of text, by Encode, and read
// by Parse:
//
//	ent1.<body, base64url without padding>.<checksum, 8 characters>
//
// The body is, in this order: the length of the ID (1 byte) and the ID, the
// secret (32 bytes), the issuer's cluster ID (its 20 bytes), the expiry (8 bytes,
// big endian, seconds since 1970), the number of endpoints (1 byte), and for each
// its length (2 bytes, big endian) and its text.
type Token struct {
	// ID is public: it identifies the token in logs and lists. 1 to 32 characters of a-z and 0-9.
	ID string
	// Secret is the part that has to be presented to redeem the token.
	Secret Secret
	// Issuer is the cluster that made the token. It pins the key that the other end of the
	// connection must have.
	Issuer peering.ClusterID
	// Endpoints is where the issuer can be dialled, as host:port, best first.
	Endpoints []string
	// Expires is when the issuer no longer accepts it, in whole seconds, UTC.
	Expires time.Time
}

// Info is the part of a token that can be shown.
type Info struct {
	// ID is its public part.
	ID string
	// Created is when it was made, Expires until when it can be redeemed.
	Created, Expires time.Time
	// RedeemedBy is the cluster that redeemed it, if one did.
	RedeemedBy peering.ClusterID
}

// Secret is a token's secret part, 256 random bits. Every way of printing it prints "[redacted]".
// Convert it to read it.
type Secret [32]byte

// Errors of Parse; compare with errors.Is.
var (
	// ErrMalformed: this is not a token, or its content is not valid.
	ErrMalformed = errors.New("not an Entente token")
	// ErrTruncated: the end of the token is missing.
	ErrTruncated = errors.New("token is cut off: copy the whole line")
	// ErrChecksum: a character was changed.
	ErrChecksum = errors.New("token is damaged: its checksum does not match; copy it again")
	// ErrVersion: a newer version made it.
	ErrVersion = errors.New("token has a version that this program does not know; update it")
)

const (
	tokenScheme   = "ent"
	tokenVersion  = "1"
	tokenPrefix   = tokenScheme + tokenVersion + "."
	checksumBytes = 5
	checksumLen   = 8
	tokenIDBytes  = 10
	// issuerBytes is the length of a decoded cluster ID.
	issuerBytes = 20
	// maxUnix is the end of the year 9999, the last that RFC 3339 can write.
	maxUnix = 253402300799
)

const redacted = "[redacted]"

// encoding is that of cluster IDs.
var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding) //nolint:gochecknoglobals // a constant

const (
	digits = "0123456789"
	lower  = "abcdefghijklmnopqrstuvwxyz"
)

// only reports whether a text has no other characters than these.
func only(characters, s string) bool { return strings.Trim(s, characters) == "" }

// New makes a token with a random ID and secret. The expiry is cut to whole
// seconds. It fails if rand does, or if an argument is not well formed.
func New(rand io.Reader, issuer peering.ClusterID, endpoints []string, expires time.Time) (Token, error) {
	var id [tokenIDBytes]byte
	t := Token{Issuer: issuer, Endpoints: append([]string(nil), endpoints...), Expires: expires.UTC().Truncate(time.Second)}
	if _, err := io.ReadFull(rand, id[:]); err != nil {
		return Token{}, fmt.Errorf("read randomness: %w", err)
	}
	if _, err := io.ReadFull(rand, t.Secret[:]); err != nil {
		return Token{}, fmt.Errorf("read randomness: %w", err)
	}
	t.ID = encoding.EncodeToString(id[:])
	if err := t.check(); err != nil {
		return Token{}, err
	}
	return t, nil
}

func (t Token) check() error {
	if t.ID == "" || len(t.ID) > MaxIDLen {
		return fmt.Errorf("token ID has %d characters, want 1 to %d", len(t.ID), MaxIDLen)
	}
	if !only(lower+digits, t.ID) {
		return errors.New("token ID has other characters than a-z and 0-9")
	}
	if _, err := peering.ParseClusterID(string(t.Issuer)); err != nil {
		return fmt.Errorf("issuer: %w", err)
	}
	if len(t.Endpoints) == 0 {
		return errors.New("no endpoint")
	}
	if err := peering.CheckEndpoints(t.Endpoints); err != nil {
		return err
	}
	if s := t.Expires.Unix(); s < 0 || s > maxUnix {
		return errors.New("expiry is not between the years 1970 and 9999")
	}
	return nil
}

// Encode returns the token as text, secret included: show it once, to the administrator who asked
// for it. It fails if a field is not well formed.
func (t Token) Encode() (string, error) {
	if err := t.check(); err != nil {
		return "", fmt.Errorf("encode token: %w", err)
	}
	issuer, err := t.Issuer.Bytes()
	if err != nil {
		return "", fmt.Errorf("encode token: %w", err)
	}
	b := append([]byte{byte(len(t.ID))}, t.ID...)
	b = append(b, t.Secret[:]...)
	b = append(b, issuer[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(t.Expires.Unix()))
	b = append(b, byte(len(t.Endpoints)))
	for _, e := range t.Endpoints {
		b = binary.BigEndian.AppendUint16(b, uint16(len(e)))
		b = append(b, e...)
	}
	s := tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
	return s + "." + checksum(s), nil
}

// checksum finds mistakes of copying. It is not a protection.
func checksum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return encoding.EncodeToString(sum[:checksumBytes])
}

// Parse reads what Encode wrote. White space is ignored, since programs
// break long lines. Errors are ErrMalformed, ErrTruncated,
// ErrChecksum or ErrVersion, and never contain the token. Whether it
// has expired is not checked.
func Parse(text string) (Token, error) {
	if len(text) > 2*MaxLen {
		return Token{}, fmt.Errorf("%w: longer than %d characters", ErrMalformed, MaxLen)
	}
	s := strings.Join(strings.Fields(text), "")
	if len(s) > MaxLen {
		return Token{}, fmt.Errorf("%w: longer than %d characters", ErrMalformed, MaxLen)
	}
	version, rest, err := cutPrefix(s)
	if err != nil {
		return Token{}, err
	}
	if version != tokenVersion {
		return Token{}, fmt.Errorf("%w: version %s", ErrVersion, version)
	}
	body, sum, ok := strings.Cut(rest, ".")
	if !ok || len(sum) < checksumLen {
		return Token{}, ErrTruncated
	}
	if sum != checksum(tokenPrefix+body) {
		return Token{}, ErrChecksum
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return Token{}, fmt.Errorf("%w: body is not base64url", ErrMalformed)
	}
	t, err := decode(raw)
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return t, nil
}

// cutPrefix splits ent<digits>. from a token.
func cutPrefix(s string) (version, rest string, err error) {
	if s != "" && strings.HasPrefix(tokenPrefix, s) {
		return "", "", ErrTruncated
	}
	tail, ok := strings.CutPrefix(s, tokenScheme)
	if !ok {
		return "", "", fmt.Errorf("%w: it does not begin with %q", ErrMalformed, tokenPrefix)
	}
	version, rest, ok = strings.Cut(tail, ".")
	if !ok || version == "" || len(version) > 3 || !only(digits, version) {
		return "", "", fmt.Errorf("%w: it does not begin with %q", ErrMalformed, tokenPrefix)
	}
	return version, rest, nil
}

func decode(b []byte) (Token, error) {
	r := reader{rest: b}
	var t Token
	t.ID = string(r.take(int(r.byte())))
	copy(t.Secret[:], r.take(len(t.Secret)))
	t.Issuer = peering.ClusterID(encoding.EncodeToString(r.take(issuerBytes)))
	expires := r.uint(8)
	n := int(r.byte())
	if r.short || n > peering.MaxEndpoints || expires > maxUnix {
		return Token{}, errors.New("fields are missing or out of range")
	}
	t.Expires = time.Unix(int64(expires), 0).UTC()
	for range n {
		t.Endpoints = append(t.Endpoints, string(r.take(int(r.uint(2)))))
	}
	if r.short || len(r.rest) != 0 {
		return Token{}, errors.New("body is shorter or longer than its lengths")
	}
	return t, t.check()
}

// reader takes fields from the front of a slice. short stays true once the slice was too short
// for a field.
type reader struct {
	rest  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.rest) {
		r.short, r.rest = true, nil
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uint(n int) uint64 {
	var v uint64
	for _, c := range r.take(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

func (r *reader) byte() byte { return byte(r.uint(1)) }

// String describes the token without its secret. Encode returns the token itself.
func (t Token) String() string {
	return fmt.Sprintf("token %s of %s, expires %s", t.ID, t.Issuer, t.Expires.Format(time.RFC3339))
}

// GoString is String.
func (t Token) GoString() string { return t.String() }

// LogValue implements slog.LogValuer, without the secret.
func (t Token) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", t.ID),
		slog.String("issuer", string(t.Issuer)),
		slog.Time("expires", t.Expires),
	)
}

// Format implements fmt.Formatter: every verb prints "[redacted]".
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

func (Secret) String() string { return redacted }

// MarshalText returns "[redacted]", so that JSON, YAML and logs show no secret.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// secretDomain separates the hash of a secret from every other SHA-256.
const secretDomain = "entente token secret\x00"

// Hash returns the hash of the secret that the issuer keeps. It cannot be redeemed.
func (s Secret) Hash() peering.Hash {
	return peering.Hash(sha256.Sum256(append([]byte(secretDomain), s[:]...)))
}

// Matches reports whether h is the hash of the secret, in constant time.
func (s Secret) Matches(h peering.Hash) bool {
	own := s.Hash()
	return subtle.ConstantTimeCompare(own[:], h[:]) == 1
}

// ParseSecret takes the 32 bytes that came over the wire.
func ParseSecret(b []byte) (Secret, error) {
	if len(b) != len(Secret{}) {
		return Secret{}, fmt.Errorf("secret has %d bytes, want %d", len(b), len(Secret{}))
	}
	return Secret(b), nil
}

// Redact removes the secret from a text that may have a token in it: people paste tokens in place
// of names and other values, which are logged and shown.
func Redact(s string) string {
	for from := 0; ; {
		i := strings.Index(s[from:], tokenScheme)
		if i < 0 {
			return s
		}
		from += i + len(tokenScheme)
		version := from + len(s[from:]) - len(strings.TrimLeft(s[from:], digits))
		if version == from || !strings.HasPrefix(s[version:], ".") {
			continue
		}
		body := s[version+1:]
		end := len(body) - len(strings.TrimLeft(body, lower+strings.ToUpper(lower)+digits+"-_."))
		if end > 8 {
			s = s[:version+1] + "[redacted]" + body[end:]
		}
	}
}

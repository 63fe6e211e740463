package dnssd

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"regexp"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/peering"
)

// A Key signs updates (TSIG, RFC 8945). No way of printing it shows its secret.
type Key struct {
	name, algorithm string
	// It is a function, so that printing all fields of a struct with a Key prints a pointer.
	secret func() []byte
}

func hashOf(algorithm string) func() hash.Hash {
	switch algorithm {
	case dns.HmacSHA224:
		return sha256.New224
	case dns.HmacSHA256:
		return sha256.New
	case dns.HmacSHA384:
		return sha512.New384
	case dns.HmacSHA512:
		return sha512.New
	}
	return nil
}

// NewKey returns a key with a name, an algorithm such as "hmac-sha256" (the default of BIND's
// tsig-keygen) and a secret in base64. Errors do not contain the secret.
func NewKey(name, algorithm, secret string) (Key, error) {
	if _, ok := dns.IsDomainName(name); !ok || name == "" || peering.Text(name, 255) != name {
		return Key{}, errors.New("TSIG key: its name is not a DNS name")
	}
	k := Key{name: canonical(name), algorithm: canonical(algorithm)}
	if hashOf(k.algorithm) == nil {
		return Key{}, fmt.Errorf("TSIG key %s: algorithm %q is not hmac-sha224, hmac-sha256, hmac-sha384 or hmac-sha512: make a key with tsig-keygen",
			k.name, peering.Text(algorithm, 32))
	}
	raw, err := base64.StdEncoding.DecodeString(secret)
	if err != nil {
		return Key{}, fmt.Errorf("TSIG key %s: its secret is not base64", k.name)
	}
	if len(raw) < minSecret || len(raw) > maxSecret {
		return Key{}, fmt.Errorf("TSIG key %s: its secret has %d bytes, want %d to %d", k.name, len(raw), minSecret, maxSecret)
	}
	k.secret = func() []byte { return raw }
	return k, nil
}

// ParseKey parses a key in the form of tsig-keygen and BIND's key statement. Errors do not contain
// the secret.
func ParseKey(text []byte) (Key, error) {
	if len(text) > maxKeyFile {
		return Key{}, fmt.Errorf("TSIG key exceeds %d bytes", maxKeyFile)
	}
	field := func(pattern string) string {
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			return ""
		}
		return string(m[1])
	}
	name := field(`(?m)^\s*key\s+"?([^\s"{;]+)"?\s*\{`)
	algorithm := field(`[{;\s]algorithm\s+"?([A-Za-z0-9.-]+)"?\s*;`)
	secret := field(`[{;\s]secret\s+"?([A-Za-z0-9+/=]+)"?\s*;`)
	if name == "" || algorithm == "" || secret == "" {
		return Key{}, errors.New(`TSIG key: want key "NAME" { algorithm ALGORITHM; secret "BASE64"; }; as tsig-keygen prints it`)
	}
	return NewKey(name, algorithm, secret)
}

// Name is the key's name, which is not a secret.
func (k Key) Name() string { return k.name }

// Format prints the name and the algorithm, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "TSIG key %s (%s)", k.name, k.algorithm) }

// signer adapts a Key to the codec.
type signer struct{ Key }

func (s signer) Generate(msg []byte, t *dns.TSIG) ([]byte, error) {
	if canonical(t.Hdr.Name) != s.name {
		return nil, dns.ErrSecret
	}
	if canonical(t.Algorithm) != s.algorithm {
		return nil, dns.ErrKeyAlg
	}
	h := hmac.New(hashOf(s.algorithm), s.secret())
	h.Write(msg)
	return h.Sum(nil), nil
}

func (s signer) Verify(msg []byte, t *dns.TSIG) error {
	want, err := s.Generate(msg, t)
	if err != nil {
		return err
	}
	got, err := hex.DecodeString(t.MAC)
	if err != nil || !hmac.Equal(want, got) {
		return dns.ErrSig
	}
	return nil
}

// errChanged means that the prerequisites of an update do not hold: the zone changed since it was
// read.
var errChanged = errors.New("the zone changes while it is written")

// errRefused is the server's REFUSED.
var errRefused = errors.New("REFUSED")

// verdict returns the error in a server's response to a signed message, with what to do. verify is
// the result of verifying the response's signature.
func verdict(r *dns.Msg, verify error, k Key, now time.Time) error {
	t := r.IsTsig()
	name, algorithm := strings.TrimSuffix(k.name, "."), strings.TrimSuffix(k.algorithm, ".")
	if r.Rcode == dns.RcodeNotAuth && t != nil {
		switch int(t.Error) {
		case dns.RcodeBadKey:
			return fmt.Errorf("BADKEY: the server does not know key %s with algorithm %s: compare the key's name and algorithm with its configuration", name, algorithm)
		case dns.RcodeBadSig:
			return fmt.Errorf("BADSIG: the server has another secret for key %s: use the same secret on both sides", name)
		case dns.RcodeBadTime:
			return fmt.Errorf("BADTIME: the clocks differ by more than %d s%s: set them right", fudge, serverTime(t, now))
		case dns.RcodeBadTrunc:
			return fmt.Errorf("BADTRUNC: the server requires longer signatures than %s makes", algorithm)
		}
	}
	// A response without a valid signature may stop an update, but is never taken as its success.
	signed := t != nil && verify == nil
	switch r.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeYXDomain, dns.RcodeYXRrset, dns.RcodeNXRrset:
		if !signed {
			if errors.Is(verify, dns.ErrTime) {
				return fmt.Errorf("the server's response was signed at another time%s: set the clocks right", serverTime(t, now))
			}
			return fmt.Errorf("its response is not signed with key %s: check that it is the primary server, without a proxy in between", name)
		}
		if r.Opcode == dns.OpcodeUpdate && r.Rcode != dns.RcodeSuccess {
			return errChanged
		}
		return nil
	case dns.RcodeNotAuth:
		return errors.New("NOTAUTH: the server is not authoritative for the zone, or takes no signed messages: set the primary server and the zone")
	case dns.RcodeRefused:
		return fmt.Errorf("%w: the server's policy does not let key %s do this: see update-policy and allow-query", errRefused, name)
	case dns.RcodeNotImplemented:
		return errors.New("NOTIMP: the server takes no dynamic updates: publish the records by hand, as in the zone file fragment")
	case dns.RcodeNotZone:
		return errors.New("NOTZONE: a record is outside of the zone: set the zone to which the domain belongs")
	case dns.RcodeServerFailure:
		return errors.New("SERVFAIL: the server could not do it: see its log (a zone file that it may not write is common)")
	case dns.RcodeFormatError:
		return errors.New("FORMERR: the server does not understand the message")
	}
	return fmt.Errorf("the server returned %s", rcodeText(r.Rcode))
}

func serverTime(t *dns.TSIG, now time.Time) string {
	at := int64(t.TimeSigned)
	if b, err := hex.DecodeString(t.OtherData); err == nil && len(b) == 6 {
		at = 0
		for _, c := range b {
			at = at<<8 | int64(c)
		}
	}
	return fmt.Sprintf(" (the server's says %s, this one's %s)", time.Unix(at, 0).UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
}

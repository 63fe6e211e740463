// Package pake lets two clusters prove to each other that they know the same secret. An
// eavesdropper learns nothing about it. A cluster that responds with a guess, or an attacker in
// the middle, learns whether that one guess is right, and has to begin another run for the next
// one.
//
// It is CPace (draft-irtf-cfrg-cpace-21) with the cipher suite CPACE-RISTR255-SHA512
// (section 8.3), in the initiator-responder setting, followed by explicit key confirmation
// of both sides (section 10.4). Other packages transport the messages and limit the attempts.
package pake

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/gtank/ristretto255"
)

// Sizes of what is sent.
const (
	// ShareLen is how many bytes a share has.
	ShareLen = 32
	// ConfirmationLen is how many bytes a confirmation has.
	ConfirmationLen = sha512.Size
)

// Errors; compare with errors.Is.
var (
	// ErrSecret: the secret is too short or too long.
	ErrSecret = fmt.Errorf("a secret has %d to %d bytes", MinSecret, MaxSecret)
	// ErrShare: the other side's share is not valid, or would make the key known.
	ErrShare = errors.New("not a valid share")
	// ErrMismatch: the two sides have different secrets, or are not in the same run, as when the
	// connection was intercepted.
	ErrMismatch = errors.New("the secrets differ, or the connection was intercepted")
)

// Secret is the secret of both sides. Every way of printing it prints "[redacted]".
type Secret []byte

const redacted = "[redacted]"

// Format implements fmt.Formatter.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// trimmed returns the secret without the newline, LF or CRLF, that editors and echo put at
// the end of a file. It removes one newline; every other byte counts. The error is ErrSecret.
func (s Secret) trimmed() ([]byte, error) {
	b := []byte(s)
	if rest, ok := bytes.CutSuffix(b, []byte("\n")); ok {
		b = bytes.TrimSuffix(rest, []byte("\r"))
	}
	if len(b) < MinSecret || len(b) > MaxSecret {
		return nil, ErrSecret
	}
	return b, nil
}

// Check returns ErrSecret for a secret that cannot be used.
func (s Secret) Check() error {
	_, err := s.trimmed()
	return err
}

// Run is what both sides have to agree on, besides the secret. It may be known to an
// eavesdropper.
type Run struct {
	// Purpose is what the secret is used for: a protocol with its version, and which of
	// several secrets it is.
	Purpose []string
	// Initiator and Responder are the names of the two sides.
	Initiator, Responder string
	// Channel identifies this connection of the two. It is CPace's sid, and must not be empty.
	Channel []byte
}

// GroupRun is the run in which two clusters prove to each other that they know the secret of a
// group, over the connection with this channel.
func GroupRun(group, initiator, responder string, channel []byte) Run {
	return Run{Purpose: []string{"entente group 1", group}, Initiator: initiator, Responder: responder, Channel: channel}
}

// ci is the channel identifier CI. The initiator comes before the responder (section
// 10.1.1).
func (r Run) ci() []byte {
	var parts [][]byte
	for _, p := range append(slices.Clip(r.Purpose), r.Initiator, r.Responder) {
		parts = append(parts, []byte(p))
	}
	return lvCat(parts...)
}

// begin returns a fresh scalar and its share for a run (section 7.2).
func begin(secret Secret, run Run) (*ristretto255.Scalar, []byte, error) {
	prs, err := secret.trimmed()
	if err != nil {
		return nil, nil, err
	}
	if len(run.Channel) == 0 {
		return nil, nil, errors.New("a run is bound to a channel")
	}
	y := sampleScalar()
	return y, scalarMult(y, calculateGenerator(prs, run.ci(), run.Channel)), nil
}

// Initiator is the side that sends first. It can be used for one run.
type Initiator struct {
	scalar *ristretto255.Scalar
	share  []byte
	sid    []byte
}

// Initiate begins a run. Errors are ErrSecret, or that the run names no channel.
func Initiate(secret Secret, run Run) (*Initiator, error) {
	ya, share, err := begin(secret, run)
	if err != nil {
		return nil, err
	}
	return &Initiator{scalar: ya, share: share, sid: bytes.Clone(run.Channel)}, nil
}

// Share is what the responder needs, ShareLen bytes.
func (i *Initiator) Share() []byte { return bytes.Clone(i.share) }

// Finish takes the responder's share and confirmation. If both have the same secret it returns
// the confirmation that proves it to the responder, and otherwise ErrShare or ErrMismatch. After
// any call the run has ended.
func (i *Initiator) Finish(share, confirmation []byte) ([]byte, error) {
	ya := i.scalar
	if ya == nil {
		return nil, errors.New("the run has ended")
	}
	i.scalar = nil
	k, err := scalarMultVfy(ya, share)
	if err != nil {
		return nil, err
	}
	ours, theirs := confirmations(i.sid, k, i.share, share)
	if !hmac.Equal(theirs, confirmation) {
		return nil, ErrMismatch
	}
	return ours, nil
}

// Responder is the side that responds. The only secret that it keeps is the confirmation for
// which it waits.
type Responder struct {
	share, confirmation []byte
	expected            []byte
}

// Respond answers an initiator's share. Errors are ErrSecret, ErrShare, or that the run
// names no channel.
func Respond(secret Secret, run Run, share []byte) (*Responder, error) {
	yb, ours, err := begin(secret, run)
	if err != nil {
		return nil, err
	}
	k, err := scalarMultVfy(yb, share)
	if err != nil {
		return nil, err
	}
	expected, confirmation := confirmations(run.Channel, k, share, ours)
	return &Responder{share: ours, confirmation: confirmation, expected: expected}, nil
}

// Share is what the initiator needs, ShareLen bytes, with Confirmation, ConfirmationLen
// bytes. An initiator with a guess of the secret learns from it whether that is right: its
// attempt counts whether it responds or not.
func (r *Responder) Share() []byte { return bytes.Clone(r.share) }

// Confirmation proves to the initiator that this side knows the secret.
func (r *Responder) Confirmation() []byte { return bytes.Clone(r.confirmation) }

// Finish returns nil if the initiator's confirmation proves that it knows the same secret, and
// ErrMismatch otherwise. After any call the run has ended.
func (r *Responder) Finish(confirmation []byte) error {
	expected := r.expected
	r.expected = nil
	if len(expected) == 0 || !hmac.Equal(expected, confirmation) {
		return ErrMismatch
	}
	return nil
}

// confirmations returns the initiator's and the responder's confirmation for the secret
// point k and the shares of both. The key is that of section 10.4; what it authenticates is
// the whole transcript and the side that confirms, so that a confirmation cannot be reflected.
func confirmations(sid, k, ya, yb []byte) (initiator, responder []byte) {
	transcript := transcriptIR(ya, nil, yb, nil)
	key := sha512.Sum512(bytes.Join([][]byte{[]byte("CPaceMac"), sid, isk(sid, k, transcript)}, nil))
	tag := func(role string) []byte {
		h := hmac.New(sha512.New, key[:])
		h.Write(lvCat([]byte(role)))
		h.Write(transcript)
		return h.Sum(nil)
	}
	return tag("initiator"), tag("responder")
}

// sampleScalar is G.sample_scalar: 252 random bits, less than the order of the group
// (section 8.3).
func sampleScalar() *ristretto255.Scalar {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	b[31] &= 0x0f
	y, err := ristretto255.NewScalar().SetCanonicalBytes(b[:])
	if err != nil {
		panic(err) // it is less than the order
	}
	return y
}

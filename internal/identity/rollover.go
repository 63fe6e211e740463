package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/entente-dev/entente/peering"
)

// ErrNoSuccession says that a key cannot be rolled over any more.
var ErrNoSuccession = fmt.Errorf("the key was rolled over %d times, which is as often as it can be: make a new identity and join the peers again", peering.MaxSuccession)

// TooSoonError says that the rollover before is not over.
type TooSoonError struct {
	// Until is when it is.
	Until time.Time
}

func (e *TooSoonError) Error() string {
	return fmt.Sprintf("the rollover before overlaps until %s: roll over again after that", e.Until.UTC().Format(time.RFC3339))
}

// Rollover returns the same cluster with a new key: a new root, which the old key
// signed too. The old key is gone; its root is shown beside the new one for the
// time of overlap. While it is, that is a *TooSoonError; after as many rollovers
// as a succession can have it is ErrNoSuccession.
func (i *Identity) Rollover(now time.Time, overlap time.Duration) (*Identity, error) {
	if until, ok := i.Overlap(); ok && now.Before(until) {
		return nil, &TooSoonError{Until: until}
	}
	if len(i.succession) >= peering.MaxSuccession {
		return nil, ErrNoSuccession
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the next key: %w", err)
	}
	template, err := authority(i.id, len(i.succession)+1, now)
	if err != nil {
		return nil, err
	}
	root, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("root certificate: %w", err)
	}
	cross, err := sign(template, i.root, key.Public(), i.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the next key: %w", err)
	}
	next := &Identity{
		id: i.id, key: key, root: root, first: i.first,
		succession: append(slices.Clone(i.succession), cross),
	}
	if overlap > 0 {
		next.older, next.until = i.root, now.Add(overlap)
	}
	return next, nil
}

// Overlap says until when the root of the key before is shown beside the newest.
// It is false where it is not.
func (i *Identity) Overlap() (until time.Time, ok bool) { return i.until, i.older != nil }

// at returns the identity as it is at a time: without the older root once its
// overlap is over.
func (i *Identity) at(now time.Time) *Identity {
	if i.older == nil || now.Before(i.until) {
		return i
	}
	settled := *i
	settled.older, settled.until = nil, time.Time{}
	return &settled
}

// RollbackError says that a trust bundle would undo a rollover.
type RollbackError struct {
	// Problem is how.
	Problem string
}

func (e *RollbackError) Error() string {
	return "the trust bundle would undo a rollover: " + e.Problem
}

// Supersedes says whether a bundle may take the place of the one that is held of
// the same cluster: nil if it may, which an equal one does too. It may not have
// fewer successions or others in their place, nor bring back the root of a key
// that was succeeded; that is a *RollbackError. Both bundles have to be read by
// ReadBundle or ReadBundlePEM; a held one that is empty is superseded by each.
func Supersedes(held, next Bundle) error {
	if len(held.Roots) == 0 {
		return nil
	}
	if string(held.IdentityKey) != string(next.IdentityKey) {
		return errors.New("the trust bundle is that of another cluster")
	}
	if have, want := len(next.Succession), len(held.Succession); have < want {
		return &RollbackError{Problem: fmt.Sprintf("it has %d successions of the key, and %d are known", have, want)}
	}
	for n, der := range held.Succession {
		if string(der) != string(next.Succession[n]) {
			return &RollbackError{Problem: fmt.Sprintf("its succession %d is not the one that is known", n+1)}
		}
	}
	keys, err := next.keys()
	if err != nil {
		return err
	}
	retired := keys[:len(held.Succession)]
	for _, root := range next.Roots {
		if indexOf(retired, root) >= 0 && !slices.ContainsFunc(held.Roots, root.Equal) {
			return &RollbackError{Problem: "it brings back the root of a key that was succeeded"}
		}
	}
	return nil
}

// indexOf returns which of the keys a certificate is for, or -1.
func indexOf(keys []*ecdsa.PublicKey, c *x509.Certificate) int {
	return slices.IndexFunc(keys, func(k *ecdsa.PublicKey) bool { return k.Equal(c.PublicKey) })
}

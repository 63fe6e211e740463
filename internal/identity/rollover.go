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

// ErrNoSuccession is the error that a key can no longer be rolled over.
var ErrNoSuccession = fmt.Errorf("the key was rolled over %d times, which is as often as it can be: make a new identity and join the peers again", peering.MaxSuccession)

// TooSoonError is the error that the previous rollover has not ended.
type TooSoonError struct {
	// Until is when it ends.
	Until time.Time
}

func (e *TooSoonError) Error() string {
	return fmt.Sprintf("the previous rollover overlaps until %s: roll over again after that", e.Until.UTC().Format(time.RFC3339))
}

// Rollover returns the same cluster with a new key and a new root, which the old key signed too.
// The old key is gone; its root is presented beside the new one for the time of overlap. The
// error is a *TooSoonError during an overlap, and ErrNoSuccession after as many rollovers as a
// succession can have.
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

// Overlap returns until when the root of the previous key is presented beside the newest; false
// if it is not.
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

// RollbackError is the error that a trust bundle would undo a rollover.
type RollbackError struct {
	// Problem is how.
	Problem string
}

func (e *RollbackError) Error() string {
	return "the trust bundle would undo a rollover: " + e.Problem
}

// Supersedes returns nil if a bundle may replace the current one of the same cluster, or is equal
// to it. A bundle that has fewer or other successions, or brings back the root of a key that was
// succeeded, is a *RollbackError. Both bundles have to be read by ReadBundle or ReadBundlePEM.
// Any bundle supersedes an empty one.
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

// indexOf returns the index of a certificate's key in keys, or -1.
func indexOf(keys []*ecdsa.PublicKey, c *x509.Certificate) int {
	return slices.IndexFunc(keys, func(k *ecdsa.PublicKey) bool { return k.Equal(c.PublicKey) })
}

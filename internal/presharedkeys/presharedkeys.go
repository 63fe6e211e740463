// Package presharedkeys decides which preshared keys the tunnel to a peer has, and what of them the fabric's Secret
// stores.
package presharedkeys

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/peering"
)

// Ring is the preshared keys of the tunnel to a peer to be stored.
type Ring struct {
	// Number is the number of the key in use.
	Number uint64
	// Current and Next are the keys with that number and the one after it. A nil Current leaves the stored one as
	// it is, a nil Next removes it.
	Current, Next []byte
	// DropPrevious: no gateway uses another key than the current one any more.
	DropPrevious bool
}

// setter returns a function that sets an entry of data, or removes it if the value is empty, and notes whether that
// changed data.
func setter(data map[string][]byte, changed *bool) func(name string, value []byte) {
	return func(name string, value []byte) {
		if old, had := data[name]; len(value) == 0 && had {
			delete(data, name)
			*changed = true
		} else if len(value) > 0 && !bytes.Equal(old, value) {
			data[name] = value
			*changed = true
		}
	}
}

// Apply updates the data of the fabric's Secret to the ring, and reports whether that changed it. A key that is
// replaced is kept as the previous one: the peer's gateways may use it for a moment longer.
func (k Ring) Apply(data map[string][]byte, peer peering.ClusterID) (changed bool) {
	set, name := setter(data, &changed), string(peer)
	if before := data[name]; len(before) > 0 && numberOf(data, name) != k.Number {
		current := k.Current
		if current == nil && numberOf(data, name)+1 == k.Number {
			current = data[name+v1alpha1.FabricKeyNext]
		}
		if current == nil {
			return false // what is stored is used until the peer announces its share of the key
		}
		set(name, current)
		set(name+v1alpha1.FabricKeyPrevious, before)
	} else if k.Current != nil {
		set(name, k.Current)
	}
	set(name+v1alpha1.FabricKeyNumber, []byte(strconv.FormatUint(k.Number, 10)))
	set(name+v1alpha1.FabricKeyNext, k.Next)
	if k.DropPrevious {
		set(name+v1alpha1.FabricKeyPrevious, nil)
		set(name+v1alpha1.FabricKeyFirst, nil)
	}
	return changed
}

// Edit is a change of the keys of the tunnel to a peer. Applied again it changes nothing.
type Edit interface {
	Apply(data map[string][]byte, peer peering.ClusterID) (changed bool)
}

// IsStored reports whether data is as an edit leaves it.
func IsStored(edit Edit, data map[string][]byte, peer peering.ClusterID) bool {
	own := map[string][]byte{}
	for _, suffix := range suffixes() {
		if value, ok := data[string(peer)+suffix]; ok {
			own[string(peer)+suffix] = value
		}
	}
	return !edit.Apply(own, peer)
}

// suffixes returns the suffixes of the names of a peer's keys.
func suffixes() []string {
	return []string{"", v1alpha1.FabricKeyNumber, v1alpha1.FabricKeyNext, v1alpha1.FabricKeyPrevious, v1alpha1.FabricKeyFirst}
}

func numberOf(data map[string][]byte, peer string) uint64 {
	n, _ := strconv.ParseUint(string(data[peer+v1alpha1.FabricKeyNumber]), 10, 64)
	return n
}

// Drop removes all keys of the tunnel to a peer, and reports whether there were any.
func Drop(data map[string][]byte, peer string) (had bool) {
	for _, suffix := range suffixes() {
		if _, ok := data[peer+suffix]; ok {
			delete(data, peer+suffix)
			had = true
		}
	}
	return had
}

// Situation is everything that decides which preshared key the tunnel to a peer has.
type Situation struct {
	Self, Peer peering.ClusterID
	// Current is the key's status as it was; nil if there was no key.
	Current *v1alpha1.PresharedKeyStatus
	// Announced is the peer's network, with its share of the key that it uses.
	Announced *peering.Network
	// Rotate: this cluster wants another key.
	Rotate bool
	// Gateways is which keys the gateways of this cluster have.
	Gateways GatewayKeys
	// Share returns this cluster's share of the key with a number.
	Share func(number uint64) peering.PresharedKeyShare
	// First is the key with number 0 of an in-band tunnel; nil if it follows from the shares as all others.
	First []byte
	Now   time.Time
}

// Decide returns which key the tunnel has from now on, and what to store. It follows the peer to a higher number,
// and goes to the next number by itself once the gateways of both sides have that key.
func (s Situation) Decide() (v1alpha1.PresharedKeyStatus, Ring) {
	status := v1alpha1.PresharedKeyStatus{Since: metav1.NewTime(s.Now.Truncate(time.Second))}
	begun := status
	if s.Current != nil {
		status = *s.Current.DeepCopy()
	}
	status.Message = ""
	theirs := s.Announced.Rotation
	if theirs == nil { // the peer keeps the first key, and so does this cluster
		if status.Number != 0 {
			status = begun
		}
		status.RotationStartTime, status.NextStored = nil, false
		if s.Rotate {
			status.Message = "the peer's agent is of a version that does not replace the key: upgrade it"
		}
		// In-band, gateways of the peer that are late could not be reached to learn of it.
		return status, Ring{Current: s.key(0, s.Announced.PresharedKeyShare), DropPrevious: s.First == nil}
	}
	ring := Ring{}
	if theirs.Number > Number(status) {
		status = begun
		status.Number, s.Rotate = int64(theirs.Number), false // that was wanted of the key before
	}
	ring.Number = Number(status)
	if theirs.Number < ring.Number {
		status.NextStored, status.Message = false, replacing(status, "the peer to use the key that this cluster uses")
		return status, ring // this announcement does not have its share of that key
	}
	ring.Current = s.key(ring.Number, s.Announced.PresharedKeyShare)
	ring.DropPrevious = min(s.Gateways.inUse, theirs.OldestInUse) >= ring.Number
	offered := !theirs.NextKeyShare.IsZero()
	if status.RotationStartTime == nil && ring.Number < peering.MaxRevision &&
		(s.Rotate || offered && s.Now.Sub(status.Since.Time) >= keyLeast) {
		status.RotationStartTime = &begun.Since
	}
	if status.RotationStartTime == nil || !offered {
		status.NextStored = false
		status.Message = replacing(status, "the peer to offer its share of the next key")
		return status, ring
	}
	status.NextStored = true
	ring.Next = s.key(ring.Number+1, theirs.NextKeyShare)
	switch {
	case s.Gateways.newest <= ring.Number:
		status.Message = replacing(status, "all gateways of this cluster to have the next key")
	case theirs.NewestInstalled <= ring.Number:
		status.Message = replacing(status, "all gateways of the peer to have the next key")
	default:
		status = begun
		status.Number = int64(ring.Number + 1)
		ring = Ring{Number: ring.Number + 1, Current: ring.Next}
	}
	return status, ring
}

// TooYoung returns after which time a key is old enough to be replaced because the peer offers its share of the next
// one; 0 if it does not, or the key is.
func TooYoung(status v1alpha1.PresharedKeyStatus, theirs *peering.KeyRotation, now time.Time) time.Duration {
	if theirs == nil || theirs.NextKeyShare.IsZero() || theirs.Number != Number(status) || status.RotationStartTime != nil {
		return 0
	}
	return max(keyLeast-now.Sub(status.Since.Time), 0)
}

// key returns the preshared key with a number, from both sides' shares.
func (s Situation) key(number uint64, share peering.PresharedKeyShare) []byte {
	if number == 0 && s.First != nil {
		return s.First
	}
	return Derive(s.Self, s.Share(number), s.Peer, share)
}

func replacing(status v1alpha1.PresharedKeyStatus, waits string) string {
	if status.RotationStartTime == nil {
		return ""
	}
	return "the next key waits for " + waits
}

// Number is the number of the key in use.
func Number(status v1alpha1.PresharedKeyStatus) uint64 { return uint64(max(status.Number, 0)) }

// Announce returns what this cluster announces about the key of a tunnel.
func Announce(status *v1alpha1.PresharedKeyStatus, gateways GatewayKeys, share func(number uint64) peering.PresharedKeyShare) (peering.PresharedKeyShare, *peering.KeyRotation) {
	out := &peering.KeyRotation{NewestInstalled: gateways.newest, OldestInUse: gateways.inUse}
	if status == nil {
		return share(0), out
	}
	out.Number = Number(*status)
	if status.RotationStartTime != nil {
		out.NextKeyShare = share(out.Number + 1)
	}
	return share(out.Number), out
}

// GatewayKeys is which keys of the tunnel to a peer all gateways of a cluster have: the number of the newest that
// all store, and the least number that one of them uses.
type GatewayKeys struct{ newest, inUse uint64 }

// OfGateways returns which keys of the tunnel to a peer the gateways have. A gateway whose fabric is silent
// counts, too, since it may carry traffic without the API server, but not forever.
func OfGateways(nodes []v1alpha1.FabricNode, peer peering.ClusterID, status *v1alpha1.PresharedKeyStatus, now time.Time) (out GatewayKeys) {
	found := false
	for i := range nodes {
		n := &nodes[i]
		if !n.Spec.Gateway || gateways.Silent(n, now) && !waitedFor(n, status, now) {
			continue
		}
		var has GatewayKeys
		for _, p := range n.Status.Paths {
			if p.PeerID == string(peer) {
				has = GatewayKeys{uint64(max(p.PresharedKeyNumber, 0)), uint64(max(p.PresharedKeyNumber, 0))}
				if p.NextPresharedKeyStored {
					has.newest++
				}
			}
		}
		if found {
			has.newest, has.inUse = min(has.newest, out.newest), min(has.inUse, out.inUse)
		}
		out, found = has, true
	}
	return out
}

// waitedFor reports whether the replacement of a key waits for a silent gateway: for keyPatience after it began, or
// after the gateway became silent. A peer that was away may have made the replacement last longer than that.
func waitedFor(n *v1alpha1.FabricNode, status *v1alpha1.PresharedKeyStatus, now time.Time) bool {
	if status == nil {
		return true
	}
	began := ptr.Deref(status.RotationStartTime, status.Since).Time
	return now.Sub(began) < keyPatience || now.Sub(n.Status.ObservedAt.Time) < keyPatience
}

// Due is when the key of the tunnel to a peer should be replaced: when an administrator asks, or when it is
// old. The zero time means never. Keys do not all get old at once: their time is shortened by up to a tenth,
// derived from peer and number.
func Due(fc *v1alpha1.ForeignCluster, every time.Duration) time.Time {
	status := fc.Status.PresharedKey
	if status == nil {
		return time.Time{}
	}
	due := time.Time{}
	if every > 0 {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", fc.Spec.ClusterID, status.Number))
		less := time.Duration(uint64(every) / 10 * uint64(binary.BigEndian.Uint16(sum[:])) >> 16)
		due = status.Since.Add(every - less)
	}
	asked, err := time.Parse(time.RFC3339, fc.Annotations[v1alpha1.AnnotationRotateKey])
	if err == nil && asked.After(status.Since.Time) && (due.IsZero() || asked.Before(due)) {
		due = asked
	}
	return due
}

// First is the first preshared key of the tunnel to an in-band peer, which each side can derive at any time, as an
// edit of the fabric's Secret.
type First struct {
	Key []byte
	// Agreed: there is a session, over which both agreed on a later key. If none is stored here, that one will be.
	Agreed bool
	// Offer: the tunnel has been down for so long that a side may have lost its later keys.
	Offer bool
	// Again: the first key is to be used again, whatever was agreed.
	Again bool
}

// Apply stores the first key where no later one is stored, and as the one to look for a common key by where that is
// needed. The key in use is never dropped: the peer may use it still.
func (f First) Apply(data map[string][]byte, peer peering.ClusterID) (changed bool) {
	set, name := setter(data, &changed), string(peer)
	current, later := data[name], numberOf(data, name) > 0
	switch {
	case len(current) == 0 && f.Agreed:
		return false
	case len(current) == 0, !later:
		set(name, f.Key)
		set(name+v1alpha1.FabricKeyNumber, []byte("0"))
	case f.Again:
		set(name, f.Key)
		set(name+v1alpha1.FabricKeyNumber, []byte("0"))
		set(name+v1alpha1.FabricKeyNext, nil)
		set(name+v1alpha1.FabricKeyPrevious, current)
		set(name+v1alpha1.FabricKeyFirst, f.Key)
	case f.Offer:
		set(name+v1alpha1.FabricKeyFirst, f.Key)
	}
	return changed
}

// Derive returns a tunnel's preshared key from both sides' shares: their
// SHA-256, the share of the lower cluster ID first.
func Derive(a peering.ClusterID, shareA peering.PresharedKeyShare, b peering.ClusterID, shareB peering.PresharedKeyShare) []byte {
	if a > b {
		shareA, shareB = shareB, shareA
	}
	sum := sha256.Sum256(slices.Concat(shareA[:], shareB[:]))
	return sum[:]
}

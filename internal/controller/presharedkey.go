package controller

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/peering"
)

// keyRing is the preshared keys of the tunnel to a peer to be stored.
type keyRing struct {
	// number is the number of the key in use.
	number uint64
	// current and next are the keys with that number and the one after it. A nil current leaves the stored one as
	// it is, a nil next removes it.
	current, next []byte
	// dropPrevious: no gateway uses another key than the current one any more.
	dropPrevious bool
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

// apply updates the data of the fabric's Secret to the ring, and reports whether that changed it. A key that is
// replaced is kept as the previous one: the peer's gateways may use it for a moment longer.
func (k keyRing) apply(data map[string][]byte, peer peering.ClusterID) (changed bool) {
	set, name := setter(data, &changed), string(peer)
	if before := data[name]; len(before) > 0 && numberOf(data, name) != k.number {
		current := k.current
		if current == nil && numberOf(data, name)+1 == k.number {
			current = data[name+v1alpha1.FabricKeyNext]
		}
		if current == nil {
			return false // what is stored is used until the peer announces its share of the key
		}
		set(name, current)
		set(name+v1alpha1.FabricKeyPrevious, before)
	} else if k.current != nil {
		set(name, k.current)
	}
	set(name+v1alpha1.FabricKeyNumber, []byte(strconv.FormatUint(k.number, 10)))
	set(name+v1alpha1.FabricKeyNext, k.next)
	if k.dropPrevious {
		set(name+v1alpha1.FabricKeyPrevious, nil)
		set(name+v1alpha1.FabricKeyFirst, nil)
	}
	return changed
}

// keyEdit is a change of the keys of the tunnel to a peer. Applied again it changes nothing.
type keyEdit interface {
	apply(data map[string][]byte, peer peering.ClusterID) (changed bool)
}

// isStored reports whether data is as an edit leaves it.
func isStored(edit keyEdit, data map[string][]byte, peer peering.ClusterID) bool {
	own := map[string][]byte{}
	for _, suffix := range keySuffixes() {
		if value, ok := data[string(peer)+suffix]; ok {
			own[string(peer)+suffix] = value
		}
	}
	return !edit.apply(own, peer)
}

// keySuffixes returns the suffixes of the names of a peer's keys.
func keySuffixes() []string {
	return []string{"", v1alpha1.FabricKeyNumber, v1alpha1.FabricKeyNext, v1alpha1.FabricKeyPrevious, v1alpha1.FabricKeyFirst}
}

func numberOf(data map[string][]byte, peer string) uint64 {
	n, _ := strconv.ParseUint(string(data[peer+v1alpha1.FabricKeyNumber]), 10, 64)
	return n
}

// dropKeys removes all keys of the tunnel to a peer, and reports whether there were any.
func dropKeys(data map[string][]byte, peer string) (had bool) {
	for _, suffix := range keySuffixes() {
		if _, ok := data[peer+suffix]; ok {
			delete(data, peer+suffix)
			had = true
		}
	}
	return had
}

// keySituation is everything that decides which preshared key the tunnel to a peer has.
type keySituation struct {
	self, peer peering.ClusterID
	// current is the key's status as it was; nil if there was no key.
	current *v1alpha1.PresharedKeyStatus
	// announced is the peer's network, with its share of the key that it uses.
	announced *peering.Network
	// rotate: this cluster wants another key.
	rotate bool
	// gateways is which keys the gateways of this cluster have.
	gateways gatewayKeys
	// share returns this cluster's share of the key with a number.
	share func(number uint64) peering.PresharedKeyShare
	// first is the key with number 0 of an in-band tunnel; nil if it follows from the shares as all others.
	first []byte
	now   time.Time
}

// decide returns which key the tunnel has from now on, and what to store. It follows the peer to a higher number,
// and goes to the next number by itself once the gateways of both sides have that key.
func (s keySituation) decide() (v1alpha1.PresharedKeyStatus, keyRing) {
	status := v1alpha1.PresharedKeyStatus{Since: metav1.NewTime(s.now.Truncate(time.Second))}
	begun := status
	if s.current != nil {
		status = *s.current.DeepCopy()
	}
	status.Message = ""
	theirs := s.announced.Rotation
	if theirs == nil { // the peer keeps the first key, and so does this cluster
		if status.Number != 0 {
			status = begun
		}
		status.RotationStartTime, status.NextStored = nil, false
		if s.rotate {
			status.Message = "the peer's agent is of a version that does not replace the key: upgrade it"
		}
		// In-band, gateways of the peer that are late could not be reached to learn of it.
		return status, keyRing{current: s.key(0, s.announced.PresharedKeyShare), dropPrevious: s.first == nil}
	}
	ring := keyRing{}
	if theirs.Number > number(status) {
		status = begun
		status.Number, s.rotate = int64(theirs.Number), false // that was wanted of the key before
	}
	ring.number = number(status)
	if theirs.Number < ring.number {
		status.NextStored, status.Message = false, replacing(status, "the peer to use the key that this cluster uses")
		return status, ring // this announcement does not have its share of that key
	}
	ring.current = s.key(ring.number, s.announced.PresharedKeyShare)
	ring.dropPrevious = min(s.gateways.inUse, theirs.OldestInUse) >= ring.number
	offered := !theirs.NextKeyShare.IsZero()
	if status.RotationStartTime == nil && ring.number < peering.MaxRevision &&
		(s.rotate || offered && s.now.Sub(status.Since.Time) >= keyLeast) {
		status.RotationStartTime = &begun.Since
	}
	if status.RotationStartTime == nil || !offered {
		status.NextStored = false
		status.Message = replacing(status, "the peer to offer its share of the next key")
		return status, ring
	}
	status.NextStored = true
	ring.next = s.key(ring.number+1, theirs.NextKeyShare)
	switch {
	case s.gateways.newest <= ring.number:
		status.Message = replacing(status, "all gateways of this cluster to have the next key")
	case theirs.NewestInstalled <= ring.number:
		status.Message = replacing(status, "all gateways of the peer to have the next key")
	default:
		status = begun
		status.Number = int64(ring.number + 1)
		ring = keyRing{number: ring.number + 1, current: ring.next}
	}
	return status, ring
}

// tooYoung returns after which time a key is old enough to be replaced because the peer offers its share of the next
// one; 0 if it does not, or the key is.
func tooYoung(status v1alpha1.PresharedKeyStatus, theirs *peering.KeyRotation, now time.Time) time.Duration {
	if theirs == nil || theirs.NextKeyShare.IsZero() || theirs.Number != number(status) || status.RotationStartTime != nil {
		return 0
	}
	return max(keyLeast-now.Sub(status.Since.Time), 0)
}

// key returns the preshared key with a number, from both sides' shares.
func (s keySituation) key(number uint64, share peering.PresharedKeyShare) []byte {
	if number == 0 && s.first != nil {
		return s.first
	}
	return PresharedKey(s.self, s.share(number), s.peer, share)
}

func replacing(status v1alpha1.PresharedKeyStatus, waits string) string {
	if status.RotationStartTime == nil {
		return ""
	}
	return "the next key waits for " + waits
}

func number(status v1alpha1.PresharedKeyStatus) uint64 { return uint64(max(status.Number, 0)) }

// rotation returns what this cluster announces about the key of a tunnel.
func rotation(status *v1alpha1.PresharedKeyStatus, gateways gatewayKeys, share func(number uint64) peering.PresharedKeyShare) (peering.PresharedKeyShare, *peering.KeyRotation) {
	out := &peering.KeyRotation{NewestInstalled: gateways.newest, OldestInUse: gateways.inUse}
	if status == nil {
		return share(0), out
	}
	out.Number = number(*status)
	if status.RotationStartTime != nil {
		out.NextKeyShare = share(out.Number + 1)
	}
	return share(out.Number), out
}

// gatewayKeys is which keys of the tunnel to a peer all gateways of a cluster have: the number of the newest that
// all store, and the least number that one of them uses.
type gatewayKeys struct{ newest, inUse uint64 }

// keysOfGateways returns which keys of the tunnel to a peer the gateways have. A gateway whose fabric is silent
// counts, too, since it may carry traffic without the API server, but not forever.
func keysOfGateways(nodes []v1alpha1.FabricNode, peer peering.ClusterID, status *v1alpha1.PresharedKeyStatus, now time.Time) (out gatewayKeys) {
	found, patient := false, true
	if status != nil {
		patient = now.Sub(ptr.Deref(status.RotationStartTime, status.Since).Time) < keyPatience
	}
	for i := range nodes {
		n := &nodes[i]
		if !n.Spec.Gateway || gateways.Silent(n, now) && !patient {
			continue
		}
		var has gatewayKeys
		for _, p := range n.Status.Paths {
			if p.PeerID == string(peer) {
				has = gatewayKeys{uint64(max(p.PresharedKeyNumber, 0)), uint64(max(p.PresharedKeyNumber, 0))}
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

// RotationDue is when the key of the tunnel to a peer should be replaced: when an administrator asks, or when it is
// old. The zero time means never. Keys do not all get old at once: their time is shortened by up to a tenth,
// derived from peer and number.
func RotationDue(fc *v1alpha1.ForeignCluster, every time.Duration) time.Time {
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

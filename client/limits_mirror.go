package client

import (
	"cmp"
	"fmt"
	"time"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Limits of a Mirror.
const (
	// mirrorMaxObjects is how many objects one contract may have, wanted here and held by the
	// provider, and of how many more the refusals are kept.
	mirrorMaxObjects = 20_000
	// mirrorMaxRecords is how many objects are recorded in all: wanted and held ones, those that
	// are to be deleted, and, until home is ready, those that were held on earlier streams.
	mirrorMaxRecords = 3 * mirrorMaxObjects
	// mirrorMaxBytes is the size of all wanted objects of a contract.
	mirrorMaxBytes = 256 << 20
	// mirrorReserve and mirrorReserveBytes are how much of that only namespaces take that have less than
	// is free: one namespace cannot leave the others without room.
	mirrorReserve      = mirrorMaxObjects / 8
	mirrorReserveBytes = mirrorMaxBytes / 8
	// mirrorMaxInFlight is how many objects are sent and not acknowledged.
	mirrorMaxInFlight = 128
	// mirrorMaxApplies and mirrorMaxApplyBytes bound how many of these are applies, unless it is a
	// single object: a provider stops reading at twice as many bytes, and a delete must not wait
	// for that.
	mirrorMaxApplies    = 96
	mirrorMaxApplyBytes = 8 << 20
	// mirrorAckTimeout is how long an acknowledgement may take before the stream counts as dead. A
	// provider may wait some seconds for its own cluster.
	mirrorAckTimeout = 2 * time.Minute
	// mirrorSyncTimeout is how long a provider may take to list what it holds.
	mirrorSyncTimeout = 2 * time.Minute
	// mirrorRetryMin and mirrorRetryMax bound the pause before a refused object is
	// tried again.
	mirrorRetryMin = time.Second
	mirrorRetryMax = time.Minute
	// mirrorLastWait is for how long, after a provider listed what it holds, it may send how pods
	// ended that it no longer holds.
	mirrorLastWait = 5 * time.Second
	// mirrorNameWait is how long a pod waits for another one of its name that ends at the
	// provider. Then it is sent anyway, and the provider's refusal says why the other is still
	// there.
	mirrorNameWait = 30 * time.Second
	// mirrorLateWait is after how long the handler is asked whether a pod that the provider holds,
	// and did not list, may be deleted; mirrorMaxLate is how many such pods are recorded at a
	// time.
	mirrorLateWait = 30 * time.Second
	mirrorMaxLate  = 128
	// mirrorOrphanInterval is the pause before the handler is asked again whether an orphan may be
	// deleted.
	mirrorOrphanInterval = time.Minute
	// mirrorMaxMessage is the largest message read from a provider. A larger one ends the stream, so it
	// has room for a whole pod: a provider of an earlier version sends its status as it is.
	mirrorMaxMessage = wire.MaxOffloadMessage
	// mirrorMaxComplaints is how many lines are logged at once about statuses that cannot be read, and
	// mirrorComplainAgain how often one more is.
	mirrorMaxComplaints = 20
	mirrorComplainAgain = time.Minute
)

// admits returns why an object may not be wanted, if so.
func (s *mirrorState) admits(o peering.Object) *peering.Refusal {
	if err := wire.CheckObjectRef(o.Ref); err != nil {
		return &peering.Refusal{Reason: peering.RefusedInvalid, Message: err.Error()}
	}
	if len(o.JSON) < 2 || len(o.JSON) > wire.MaxObjectBytes {
		return &peering.Refusal{Reason: peering.RefusedInvalid, Message: fmt.Sprintf(
			"%s has %d bytes; the limit of an object is %d", o.Ref, len(o.JSON), wire.MaxObjectBytes)}
	}
	refuse := func(format string, args ...any) *peering.Refusal {
		return &peering.Refusal{Reason: peering.RefusedQuota, Retryable: true, Message: fmt.Sprintf(format, args...)}
	}
	old, known := s.records[keyOf(o.Ref)]
	space := spaceOf(o.Ref)
	use := s.uses[space]
	if !known || !old.want {
		switch free := mirrorMaxObjects - s.wanted; {
		case free <= 0:
			return refuse("a contract has at most %d objects; offload fewer namespaces under it", mirrorMaxObjects)
		case free <= mirrorReserve && use.objects >= free:
			return refuse("a contract has at most %d objects, and the rest of them is for others than namespace %s; have fewer in it", mirrorMaxObjects, space)
		}
	}
	more := len(o.JSON)
	if known {
		more -= len(old.object.JSON)
	}
	switch free := mirrorMaxBytes - s.bytes; {
	case more > free:
		return refuse("the objects of a contract have at most %d bytes in all; offload fewer namespaces under it", mirrorMaxBytes)
	case more > 0 && free-more < mirrorReserveBytes && use.bytes+more > free:
		return refuse("the objects of a contract have at most %d bytes in all, and the rest of them is for others than namespace %s; "+
			"have fewer or smaller ones in it", mirrorMaxBytes, space)
	}
	return nil
}

// mirrorUse is the number and size of a namespace's wanted objects.
type mirrorUse struct{ objects, bytes int }

// spaceOf returns the namespace to which an object counts.
func spaceOf(ref peering.ObjectRef) string { return cmp.Or(ref.Namespace, ref.Name) }

// count adds to the number and size of wanted objects, in all and of one's namespace.
func (s *mirrorState) count(ref peering.ObjectRef, objects, bytes int) {
	s.wanted, s.bytes = s.wanted+objects, s.bytes+bytes
	use := s.uses[spaceOf(ref)]
	use.objects, use.bytes = use.objects+objects, use.bytes+bytes
	s.uses[spaceOf(ref)] = use
	if use.objects == 0 {
		delete(s.uses, spaceOf(ref))
	}
}

// bar records that there is no room for a wanted object, or that it must not be sent. The refusal
// is reported once, however often Want is called for the object.
func (s *mirrorState) bar(o peering.Object, refusal *peering.Refusal) {
	k, ack := keyOf(o.Ref), peering.Ack{Ref: o.Ref, Hash: o.Hash(), Refusal: refusal}
	before, is := s.barred[k]
	if !is && len(s.barred) >= mirrorMaxObjects {
		return
	}
	s.barred[k] = ack
	if !is || before.Hash != ack.Hash || *before.Refusal != *refusal {
		s.unreported[k] = struct{}{}
	}
}

func (s *mirrorState) unbar(k mirrorKey) {
	delete(s.barred, k)
	delete(s.unreported, k)
}

// takeUnreported returns the refusals that were not reported yet.
func (s *mirrorState) takeUnreported() (refusals []peering.Ack) {
	for k := range s.unreported {
		refusals = append(refusals, s.barred[k])
	}
	clear(s.unreported)
	return refusals
}

// excess returns why there is no room for some wanted objects. It is empty if there is room for
// all. Of several reasons it is always the same one, since a change is written to the node.
func (s *mirrorState) excess() (why string) {
	for _, ack := range s.barred {
		if r := ack.Refusal; r.Reason == peering.RefusedQuota && (why == "" || r.Message < why) {
			why = r.Message
		}
	}
	return why
}

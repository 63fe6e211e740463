package client

import (
	"fmt"
	"time"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Limits of a Mirror.
const (
	// mirrorMaxObjects is how many objects one contract may have, wanted and held, and of how many more
	// it is remembered that they are refused.
	mirrorMaxObjects = 20_000
	// mirrorMaxRecords is how many objects are remembered for any reason: wanted and held ones, those that are to
	// be deleted, and, until home said all that it wants, those that were held on streams before.
	mirrorMaxRecords = 3 * mirrorMaxObjects
	// mirrorMaxBytes is the size of all wanted objects of a contract.
	mirrorMaxBytes = 256 << 20
	// mirrorMaxInFlight is how many objects are on their way without an answer.
	mirrorMaxInFlight = 128
	// mirrorMaxApplies and mirrorMaxApplyBytes bound what of that is to be applied, unless
	// it is a single object: a provider reads no more when it has twice as many bytes to
	// do, and a delete does not wait for what else is on its way.
	mirrorMaxApplies    = 96
	mirrorMaxApplyBytes = 8 << 20
	// mirrorAckTimeout is how long an answer may take before the stream is taken
	// for dead. A provider may wait some seconds for its own cluster.
	mirrorAckTimeout = 2 * time.Minute
	// mirrorSyncTimeout is how long a provider may take to say what it holds.
	mirrorSyncTimeout = 2 * time.Minute
	// mirrorRetryMin and mirrorRetryMax bound the pause before a refused object is
	// tried again.
	mirrorRetryMin = time.Second
	mirrorRetryMax = time.Minute
	// mirrorLastWait is for how long, once a provider said what it holds, it may say how pods ended that it
	// holds no longer.
	mirrorLastWait = 5 * time.Second
	// mirrorNameWait is how long a pod waits for one of its name that ends at the
	// provider, before the provider is asked and says why it still has that.
	mirrorNameWait = 30 * time.Second
	// mirrorLateWait is how long a pod that the provider holds, and did not say so, is left before it is
	// asked whether it may go; mirrorMaxLate is how many such are known at a time.
	mirrorLateWait = 30 * time.Second
	mirrorMaxLate  = 128
	// mirrorOrphanInterval is the pause before it is asked again whether an orphan
	// may be deleted.
	mirrorOrphanInterval = time.Minute
	// mirrorMaxMessage is the largest message taken from a provider.
	mirrorMaxMessage = wire.MaxStatusBytes + 64<<10
)

// admits says whether an object may be wanted, and if not, why.
func (s *mirrorState) admits(o peering.Object) *peering.Refusal {
	if err := wire.CheckObjectRef(o.Ref); err != nil {
		return &peering.Refusal{Reason: peering.RefusedInvalid, Message: err.Error()}
	}
	if len(o.JSON) < 2 || len(o.JSON) > wire.MaxObjectBytes {
		return &peering.Refusal{Reason: peering.RefusedInvalid, Message: fmt.Sprintf(
			"%s has %d bytes; what crosses has at most %d", o.Ref, len(o.JSON), wire.MaxObjectBytes)}
	}
	old, known := s.records[keyOf(o.Ref)]
	if (!known || !old.want) && s.wanted >= mirrorMaxObjects {
		return &peering.Refusal{Reason: peering.RefusedQuota, Retryable: true, Message: fmt.Sprintf(
			"a contract has at most %d objects; offload fewer namespaces by it", mirrorMaxObjects)}
	}
	grown := s.bytes + len(o.JSON)
	if known {
		grown -= len(old.object.JSON)
	}
	if grown > mirrorMaxBytes {
		return &peering.Refusal{Reason: peering.RefusedQuota, Retryable: true, Message: fmt.Sprintf(
			"the objects of a contract have at most %d bytes in all; offload fewer namespaces by it", mirrorMaxBytes)}
	}
	return nil
}

// bar notes that there is no room for a wanted object, or that it must not cross. It is said once, however often
// the object is wanted: who wants it does so again.
func (s *mirrorState) bar(o peering.Object, refusal *peering.Refusal) {
	k, ack := keyOf(o.Ref), peering.Ack{Ref: o.Ref, Hash: o.Hash(), Refusal: refusal}
	before, is := s.barred[k]
	if !is && len(s.barred) >= mirrorMaxObjects {
		return
	}
	s.barred[k] = ack
	if !is || before.Hash != ack.Hash || *before.Refusal != *refusal {
		s.unsaid[k] = struct{}{}
	}
}

func (s *mirrorState) unbar(k mirrorKey) {
	delete(s.barred, k)
	delete(s.unsaid, k)
}

// sayBarred returns the refusals that were not said yet.
func (s *mirrorState) sayBarred() (said []peering.Ack) {
	for k := range s.unsaid {
		said = append(said, s.barred[k])
	}
	clear(s.unsaid)
	return said
}

// excess says why there is no room for something that is wanted; empty if there is for all.
func (s *mirrorState) excess() string {
	for _, ack := range s.barred {
		if ack.Refusal.Reason == peering.RefusedQuota {
			return ack.Refusal.Message
		}
	}
	return ""
}

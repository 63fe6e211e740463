package client

import (
	"fmt"
	"time"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Limits of a Mirror.
const (
	// mirrorMaxObjects is how many objects one contract may have, wanted, held or
	// to be deleted.
	mirrorMaxObjects = 20_000
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
	if !known && len(s.records) >= mirrorMaxObjects {
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

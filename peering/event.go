package peering

import "time"

// Event is something that happened to a contract.
//
//sumtype:decl
type Event interface{ event() }

// Countersigned is an envelope with both signatures, verified: the first that this side sees of a
// contract, or the next revision of one in force. Role is this side's. Only a consumer can begin
// with a later revision than the first, if it lost its copy. The signer has to check before that
// the terms are the offered ones, and in time.
type Countersigned struct {
	Role  Role
	Terms Terms
	Hash  Hash
	Now   time.Time
}

// Tick is the passing of time.
type Tick struct{ Now time.Time }

// Mode is how a contract ends.
type Mode uint8

// The modes.
const (
	// Drain lets what runs leave first.
	Drain Mode = iota + 1
	// Now ends it at once.
	Now
)

// Terminate ends the contract.
type Terminate struct {
	// By is the side that ends it.
	By   Role
	Mode Mode
	Now  time.Time
	// Grace is how long draining may take. Zero means DefaultDrain, and MaxDrain is the limit. If
	// the provider ends the contract, draining takes at least its notice.
	Grace time.Duration
}

// PeerReported is the other side's report on the contract. It may be old.
type PeerReported struct {
	Revision uint64
	Phase    Phase
	// DrainUntil is when the other side stops draining, by this side's clock as far as the
	// difference is known. It is zero if it was not reported.
	DrainUntil time.Time
	Now        time.Time
}

// Drained means that this side saw that nothing runs under the contract any more.
type Drained struct{ Now time.Time }

func (Countersigned) event() {}
func (Tick) event()          {}
func (Terminate) event()     {}
func (PeerReported) event()  {}
func (Drained) event()       {}

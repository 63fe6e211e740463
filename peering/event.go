package peering

import "time"

// Event is something that happened to a contract.
//
//sumtype:decl
type Event interface{ event() }

// Countersigned is an envelope with both signatures, verified: the first that this
// side sees of a contract, or the next revision of one in force. Role is this side's.
// Only a consumer can begin with a later revision than the first: it lost its copy.
// It is for whoever signs to see that it is what was offered, and in time.
type Countersigned struct {
	Role  Role
	Terms Terms
	Hash  Hash
	Now   time.Time
}

// Tick is the time.
type Tick struct{ Now time.Time }

// Mode is how a contract ends.
type Mode uint8

// The modes.
const (
	// Drain lets what runs leave first.
	Drain Mode = iota + 1
	// Now does not.
	Now
)

// Terminate ends the contract.
type Terminate struct {
	// By is the side that wants it.
	By   Role
	Mode Mode
	Now  time.Time
	// Grace is how long draining may take; zero is DefaultDrain, more than MaxDrain
	// is MaxDrain. If the provider ends it, it takes at least the contract's notice.
	Grace time.Duration
}

// PeerSaid is the other side's word on the contract. It may be old.
type PeerSaid struct {
	Revision uint64
	Phase    Phase
	// DrainUntil is when it stops draining, by this side's clock as far as the
	// difference is known; zero if it did not say.
	DrainUntil time.Time
	Now        time.Time
}

// Drained says that this side saw that nothing runs under the contract any more.
type Drained struct{ Now time.Time }

func (Countersigned) event() {}
func (Tick) event()          {}
func (Terminate) event()     {}
func (PeerSaid) event()      {}
func (Drained) event()       {}

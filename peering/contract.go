package peering

import (
	"time"
)

// State is the state of a contract. The zero State is that of a contract that does not exist yet.
type State uint8

// The states, in the only order in which a contract goes through them.
const (
	// Nothing: not signed by both, as far as this side knows.
	Nothing State = iota
	// Active: both signed, and it is in force.
	Active
	// Draining: what runs goes on, and nothing new begins.
	Draining
	// Closed: it has ended for good.
	Closed
)

func (s State) String() string {
	return nameOf(s, []string{Nothing: "Nothing", Active: "Active", Draining: "Draining", Closed: "Closed"})
}

// Phase is the state of a contract that one side reports to the other.
type Phase uint8

// The phases, each that of a state. They are those of the protocol and of the Contract resource.
const (
	// PhaseUnspecified: not in force yet, or not known to the reader.
	PhaseUnspecified = Phase(Nothing)
	PhaseActive      = Phase(Active)
	PhaseDraining    = Phase(Draining)
	PhaseClosed      = Phase(Closed)
)

// String returns Active, Draining, Closed or, for PhaseUnspecified, the empty string.
func (p Phase) String() string {
	if p == PhaseUnspecified || p > PhaseClosed {
		return ""
	}
	return State(p).String()
}

// ParsePhase reads what String wrote; anything else is PhaseUnspecified.
func ParsePhase(s string) Phase {
	for _, p := range []Phase{PhaseActive, PhaseDraining, PhaseClosed} {
		if p.String() == s {
			return p
		}
	}
	return PhaseUnspecified
}

// EndReason is why a contract drains or closed.
type EndReason uint8

// The reasons.
const (
	NotEnded EndReason = iota
	// EndedByExpiry: it reached its end.
	EndedByExpiry
	// EndedHere: this side ended it.
	EndedHere
	// EndedByPeer: the other side ended it.
	EndedByPeer
)

// words is the name of a reason in the Contract resource, and why, for people.
func (r EndReason) words() (name, why string) {
	switch r {
	case EndedByExpiry:
		return "Expired", "the contract reached its end"
	case EndedHere:
		return "EndedHere", "this cluster ended the contract"
	case EndedByPeer:
		return "EndedByPeer", "the peer ended the contract"
	case NotEnded:
	}
	return "", ""
}

// String returns the reason for people, empty for NotEnded.
func (r EndReason) String() string {
	_, why := r.words()
	return why
}

// Name returns the reason's name in the Contract resource, empty for NotEnded.
func (r EndReason) Name() string {
	name, _ := r.words()
	return name
}

// ParseEndReason reads what Name wrote; anything else is NotEnded.
func ParseEndReason(s string) EndReason {
	for _, r := range []EndReason{EndedByExpiry, EndedHere, EndedByPeer} {
		if r.Name() == s {
			return r
		}
	}
	return NotEnded
}

// Contract is one side's copy of a contract. It is a comparable value; times are
// UTC, in whole seconds.
type Contract struct {
	ID    string
	Role  Role
	State State
	// Revision and Hash are of the newest payload that both signed.
	Revision uint64
	Hash     Hash
	// NotBefore and NotAfter bound its term. It is in force as soon as both signed: a NotBefore in
	// the future only means that the consumer's clock is ahead.
	NotBefore time.Time
	NotAfter  time.Time
	// Network means that the contract includes a tunnel.
	Network bool
	// Notice is how long draining takes at least when the provider ends it early.
	Notice time.Duration
	// DrainUntil is when draining ends even if something still runs. It is zero in a Draining
	// contract that was restored, until the next Tick.
	DrainUntil time.Time
	// Reason is why it drains or closed.
	Reason EndReason
	// ClosedAt is when it closed.
	ClosedAt time.Time
}

// Phase returns the phase to report to the other side.
func (c Contract) Phase() Phase { return Phase(c.State) }

// State returns the state of a stored contract by its phase. A contract that was just signed has
// no phase, and is in force.
func (p Phase) State() State {
	if p == PhaseDraining || p == PhaseClosed {
		return State(p)
	}
	return Active
}

// Deadline returns when time changes something next: when to apply a Tick, or when Evicts
// changes. The zero time means never.
func (c Contract) Deadline(now time.Time) time.Time {
	switch c.State {
	case Active:
		return c.NotAfter
	case Draining:
		if at := c.evictAt(); now.Before(at) {
			return at
		}
		return c.DrainUntil
	case Nothing, Closed:
	}
	return time.Time{}
}

// Desired is what should exist because of a contract, whatever its state before. Evicts decides
// when pods of a consumer have to leave.
type Desired struct {
	// Capacity: the provider reserves the amounts for this consumer, and what was offloaded exists
	// within them.
	Capacity bool
	// Node: at the consumer, the virtual node exists.
	Node bool
	// Tunnel: a tunnel joins the two clusters' pods.
	Tunnel bool
	// AcceptNew: at the consumer the node is schedulable, at the provider new pods are accepted.
	AcceptNew bool
}

// Desired returns what should exist because of the contract.
func (c Contract) Desired() Desired {
	if c.State != Active && c.State != Draining {
		return Desired{}
	}
	return Desired{
		Capacity:  c.Role == Provider,
		Node:      c.Role == Consumer,
		Tunnel:    c.Network,
		AcceptNew: c.State == Active,
	}
}

// Evicts reports whether a consumer evicts the pods of the virtual node.
func (c Contract) Evicts(now time.Time) bool {
	return c.State == Draining && c.Role == Consumer && !now.Before(c.evictAt())
}

// evictAt is from when a draining contract of a consumer evicts: the zero time, at once, if it
// reached its end or this side ended it. During the first half of a provider's notice nothing is
// evicted; the second half is left for disruption budgets.
func (c Contract) evictAt() time.Time {
	if c.Role != Consumer || c.Reason != EndedByPeer || c.Notice <= 0 {
		return time.Time{}
	}
	return c.DrainUntil.Add(-c.Notice / 2)
}

// Stored is what is kept of a contract besides its envelope. The next Tick sets fields that are
// zero.
type Stored struct {
	// Phase counts as Active if it is unspecified.
	Phase      Phase
	Reason     EndReason
	DrainUntil time.Time
	ClosedAt   time.Time
}

// Restore returns a stored contract, which both signed.
func Restore(t Terms, hash Hash, role Role, s Stored) Contract {
	c := Contract{ID: t.ContractID, Role: role, State: s.Phase.State()}.adopt(t, hash)
	switch c.State {
	case Draining:
		c.Reason, c.DrainUntil = s.Reason, normTime(s.DrainUntil)
	case Closed:
		c.Reason, c.DrainUntil, c.ClosedAt = s.Reason, normTime(s.DrainUntil), normTime(s.ClosedAt)
	case Nothing, Active:
	}
	return c
}

const (
	// renewPart is the part of a contract's term after which it is renewed, in
	// quarters.
	renewPart = 3
	// renewMargin is how long before the end that is at least.
	renewMargin = 30 * time.Second
)

// RenewAt returns when to ask for the next revision of a contract that is to be renewed: after
// three quarters of its term, but at least 30 seconds before the end, or half the term of one
// that lasts less than a minute. The zero time means never: the contract is not in force.
func RenewAt(c Contract) time.Time {
	if c.State != Active {
		return time.Time{}
	}
	term := c.NotAfter.Sub(c.NotBefore)
	return c.NotAfter.Add(-max(term-term/4*renewPart, min(renewMargin, term/2)))
}

// normTime makes equal instants equal values.
func normTime(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.Round(0).UTC().Truncate(time.Second)
}

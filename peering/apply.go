package peering

import (
	"fmt"
	"time"
)

// reject leaves the contract as it is, and says why: ReasonContractClosed where it is
// over, ReasonRevisionStale where the revision is not the one that comes next, and
// ReasonContractMismatch for all else.
func (c Contract) reject(why Reason, format string, args ...any) (Contract, error) {
	return c, Errorf(why, "contract %s, %s: %s", c.ID, c.State, fmt.Sprintf(format, args...))
}

// Apply returns the contract after an event. Every state has an answer to every
// event; an event that cannot apply is an *Error and changes nothing;
// applying one again changes nothing more. A closed contract stays closed.
func (c Contract) Apply(e Event) (Contract, error) {
	switch e := e.(type) {
	case Countersigned:
		return c.countersigned(e)
	case Tick:
		return c.tick(normTime(e.Now)), nil
	case Terminate:
		return c.terminate(e)
	case PeerSaid:
		return c.peerSaid(e), nil
	case Drained:
		return c.drained(e)
	}
	return c.reject(ReasonContractMismatch, "unknown event %T", e)
}

func (c Contract) countersigned(e Countersigned) (Contract, error) {
	if e.Role != Consumer && e.Role != Provider {
		return c.reject(ReasonContractMismatch, "a contract needs a role")
	}
	if err := CheckContractID(e.Terms.ContractID); err != nil {
		return c.reject(ReasonContractMismatch, "%v", err)
	}
	if c.State == Nothing {
		if e.Terms.Revision == 0 {
			return c.reject(ReasonRevisionStale, "the first revision is 1")
		}
		// A provider keeps every contract until it is over, and then nothing of it.
		if e.Role == Provider && e.Terms.Revision > 1 {
			return c.reject(ReasonContractClosed, "this cluster holds no contract %s of which revision %d could be the next: it is over", e.Terms.ContractID, e.Terms.Revision)
		}
		c = Contract{ID: e.Terms.ContractID, Role: e.Role, State: Active}
		return c.adopt(e.Terms, e.Hash).tick(normTime(e.Now)), nil
	}
	if e.Terms.ContractID != c.ID || e.Role != c.Role {
		return c.reject(ReasonContractMismatch, "the payload is of contract %s, in which this side is the %s", e.Terms.ContractID, e.Role)
	}
	if c.State == Closed {
		return c.reject(ReasonContractClosed, "it is over")
	}
	if e.Hash == c.Hash {
		return c, nil
	}
	// Both signatures prove that both agreed, so a side that missed a revision takes
	// the one after it; what follows directly has to follow what is held here.
	if e.Terms.Revision <= c.Revision {
		return c.reject(ReasonRevisionStale, "revision %d does not follow revision %d", e.Terms.Revision, c.Revision)
	}
	if e.Terms.Revision == c.Revision+1 && e.Terms.Previous != c.Hash {
		return c.reject(ReasonContractMismatch, "revision %d does not follow the revision %d that is held: its previous hash is another", e.Terms.Revision, c.Revision)
	}
	// A contract that drains goes on draining: that the other side signed before it
	// knew changes what was agreed, not that it ends.
	return c.adopt(e.Terms, e.Hash).tick(normTime(e.Now)), nil
}

// adopt takes over a payload.
func (c Contract) adopt(t Terms, hash Hash) Contract {
	c.Revision, c.Hash = t.Revision, hash
	c.NotBefore, c.NotAfter = normTime(t.NotBefore), normTime(t.NotAfter)
	c.Network, c.Notice = t.Network, t.Notice
	return c
}

// tick lets time pass. Several deadlines may have passed since the last.
func (c Contract) tick(now time.Time) Contract {
	switch c.State {
	case Active:
		if !now.Before(c.NotAfter) {
			return c.drain(EndedByExpiry, c.NotAfter.Add(ExpiryGrace)).tick(now)
		}
	case Draining:
		if c.DrainUntil.IsZero() {
			c.DrainUntil = c.drainLimit(now, c.grace(Provider, 0))
		}
		if !now.Before(c.DrainUntil) {
			return c.close(c.Reason, c.DrainUntil)
		}
	case Nothing, Closed:
	}
	return c
}

func (c Contract) terminate(e Terminate) (Contract, error) {
	if e.By != Consumer && e.By != Provider || e.Mode != Drain && e.Mode != Now {
		return c.reject(ReasonContractMismatch, "a termination needs a side and a mode")
	}
	now, reason := normTime(e.Now), c.reasonBy(e.By)
	switch c.State {
	case Nothing:
		return c.reject(ReasonContractMismatch, "there is nothing to end")
	case Active:
		if e.Mode == Now {
			return c.close(reason, now), nil
		}
		return c.drain(reason, c.drainLimit(now, c.grace(e.By, e.Grace))), nil
	case Draining:
		if e.Mode == Now {
			return c.close(reason, now), nil
		}
	case Closed:
	}
	return c, nil
}

// peerSaid takes the other side's word. That it drains or closed stays true
// whenever it was said and of whatever revision; that it is active says nothing
// that both signatures do not say better.
func (c Contract) peerSaid(e PeerSaid) Contract {
	now := normTime(e.Now)
	switch c.State {
	case Active:
		switch e.Phase {
		case PhaseDraining:
			return c.drain(c.reasonTold(now), c.toldDrain(now, e.DrainUntil))
		case PhaseClosed:
			return c.close(c.reasonTold(now), now)
		case PhaseActive, PhaseUnspecified:
		}
	case Draining:
		if e.Phase == PhaseClosed {
			return c.close(c.Reason, now)
		}
		// Whichever side stops first, then it is over for both.
		if until := c.toldDrain(now, e.DrainUntil); e.Phase == PhaseDraining && !e.DrainUntil.IsZero() && until.Before(c.DrainUntil) {
			c.DrainUntil = until
		}
	case Nothing, Closed:
	}
	return c
}

// reasonTold is why the other side ended a contract that is in force here. Close
// to its end, that side's clock may only be ahead of this one's.
func (c Contract) reasonTold(now time.Time) EndReason {
	if skew := min(ExpirySkew, c.NotAfter.Sub(c.NotBefore)/4); now.Before(c.NotAfter.Add(-skew)) {
		return EndedByPeer
	}
	return EndedByExpiry
}

// toldDrain is when draining ends of which the other side said so.
func (c Contract) toldDrain(now, told time.Time) time.Time {
	limit := c.drainLimit(now, max(MaxDrain, c.Notice))
	if told.IsZero() || limit.Before(told) {
		return limit
	}
	return normTime(told)
}

func (c Contract) drained(e Drained) (Contract, error) {
	switch c.State {
	case Draining:
		return c.close(c.Reason, normTime(e.Now)), nil
	case Closed:
		return c, nil
	case Nothing, Active:
	}
	return c.reject(ReasonContractMismatch, "it is not draining")
}

func (c Contract) reasonBy(by Role) EndReason {
	if by == c.Role {
		return EndedHere
	}
	return EndedByPeer
}

// grace is how long draining takes that a side wanted to take that long.
func (c Contract) grace(by Role, wanted time.Duration) time.Duration {
	if wanted <= 0 {
		wanted = DefaultDrain
	}
	wanted = min(wanted, MaxDrain)
	if by == Provider {
		return max(wanted, c.Notice)
	}
	return wanted
}

// drainLimit is when draining that begins now has to end: after grace, but not
// after the contract itself is over.
func (c Contract) drainLimit(now time.Time, grace time.Duration) time.Time {
	until := now.Add(grace)
	if end := c.NotAfter.Add(ExpiryGrace); end.Before(until) {
		return normTime(end)
	}
	return normTime(until)
}

func (c Contract) drain(r EndReason, until time.Time) Contract {
	c.State, c.Reason, c.DrainUntil = Draining, r, normTime(until)
	return c
}

func (c Contract) close(r EndReason, at time.Time) Contract {
	if r != NotEnded {
		c.Reason = r
	}
	c.State, c.ClosedAt = Closed, normTime(at)
	return c
}

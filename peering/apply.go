package peering

import (
	"fmt"
	"time"
)

// reject returns the contract unchanged, and an error: ReasonContractClosed if it has ended,
// ReasonRevisionStale if the revision is not the next one, and ReasonContractMismatch otherwise.
func (c Contract) reject(why Reason, format string, args ...any) (Contract, error) {
	return c, Errorf(why, "contract %s, %s: %s", c.ID, c.State, fmt.Sprintf(format, args...))
}

// Apply returns the contract after an event. It handles every event in every state: an event that
// cannot apply is an *Error and changes nothing, and applying an event again changes nothing
// more. A closed contract stays closed.
func (c Contract) Apply(e Event) (Contract, error) {
	switch e := e.(type) {
	case Countersigned:
		return c.countersigned(e)
	case Tick:
		return c.tick(normTime(e.Now)), nil
	case Terminate:
		return c.terminate(e)
	case PeerReported:
		return c.peerReported(e), nil
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
		// A provider keeps a contract until it has ended, and then forgets it.
		if e.Role == Provider && e.Terms.Revision > 1 {
			return c.reject(ReasonContractClosed, "this cluster has no contract %s to which revision %d could be the next: it has ended", e.Terms.ContractID, e.Terms.Revision)
		}
		c = Contract{ID: e.Terms.ContractID, Role: e.Role, State: Active}
		return c.adopt(e.Terms, e.Hash).tick(normTime(e.Now)), nil
	}
	if e.Terms.ContractID != c.ID || e.Role != c.Role {
		return c.reject(ReasonContractMismatch, "the payload is of contract %s, in which this side is the %s", e.Terms.ContractID, e.Role)
	}
	if c.State == Closed {
		return c.reject(ReasonContractClosed, "it has ended")
	}
	if e.Hash == c.Hash {
		return c, nil
	}
	// Both signatures prove that both agreed, so a side that missed a revision accepts a later
	// one. The next revision has to follow the one that is known here.
	if e.Terms.Revision <= c.Revision {
		return c.reject(ReasonRevisionStale, "revision %d does not follow revision %d", e.Terms.Revision, c.Revision)
	}
	if e.Terms.Revision == c.Revision+1 && e.Terms.Previous != c.Hash {
		return c.reject(ReasonContractMismatch, "revision %d does not follow revision %d as it is known here: its previous hash differs", e.Terms.Revision, c.Revision)
	}
	// A contract that drains goes on draining: the other side may have signed before it knew,
	// which changes what was agreed, but not that the contract ends.
	return c.adopt(e.Terms, e.Hash).tick(normTime(e.Now)), nil
}

// adopt sets what a payload agrees on.
func (c Contract) adopt(t Terms, hash Hash) Contract {
	c.Revision, c.Hash = t.Revision, hash
	c.NotBefore, c.NotAfter = normTime(t.NotBefore), normTime(t.NotAfter)
	c.Network, c.Notice = t.Network, t.Notice
	return c
}

// tick applies the time. Several deadlines may have passed since the last tick.
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

// peerReported applies the other side's report. A report that the contract drains or closed is
// true even if it is old or about another revision. A report that it is active has no effect,
// since both signatures prove more.
func (c Contract) peerReported(e PeerReported) Contract {
	now := normTime(e.Now)
	switch c.State {
	case Active:
		switch e.Phase {
		case PhaseDraining:
			return c.drain(c.reportedReason(now), c.reportedDrain(now, e.DrainUntil))
		case PhaseClosed:
			return c.close(c.reportedReason(now), now)
		case PhaseActive, PhaseUnspecified:
		}
	case Draining:
		if e.Phase == PhaseClosed {
			return c.close(c.Reason, now)
		}
		// The contract ends for both when the first side stops.
		if until := c.reportedDrain(now, e.DrainUntil); e.Phase == PhaseDraining && !e.DrainUntil.IsZero() && until.Before(c.DrainUntil) {
			c.DrainUntil = until
		}
	case Nothing, Closed:
	}
	return c
}

// reportedReason is why the other side ended a contract that is in force here. Close to its end,
// that side's clock may only be ahead of this one's.
func (c Contract) reportedReason(now time.Time) EndReason {
	if skew := min(ExpirySkew, c.NotAfter.Sub(c.NotBefore)/4); now.Before(c.NotAfter.Add(-skew)) {
		return EndedByPeer
	}
	return EndedByExpiry
}

// reportedDrain is when draining ends that the other side reported.
func (c Contract) reportedDrain(now, reported time.Time) time.Time {
	limit := c.drainLimit(now, max(MaxDrain, c.Notice))
	if reported.IsZero() || limit.Before(reported) {
		return limit
	}
	return normTime(reported)
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

// grace is how long draining takes for which a side asked for wanted.
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
// after the contract itself has ended.
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

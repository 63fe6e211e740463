package peering

import "time"

// Advertisement is what a provider offers for an ask.
type Advertisement struct {
	// ContractID names the advertisement and the contract that may follow. It is
	// empty in a preview, which cannot be signed.
	ContractID string
	// RequestID is that of the ask.
	RequestID string
	// Revision is the revision of the contract that signing this makes, from 1, and
	// PreviousHash that of the one before; zero for the first.
	Revision     uint64
	PreviousHash Hash
	// ValidUntil is when the offer lapses unless it was signed.
	ValidUntil time.Time
	// Grant is what is offered.
	Grant
	// NotAfter is the latest end of the contract, whatever the clocks say; zero for
	// none.
	NotAfter time.Time
	// NeedsApproval says that an administrator has to approve the request before it
	// is offered so. Only a preview says that.
	NeedsApproval bool
}

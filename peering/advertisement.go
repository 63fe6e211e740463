package peering

import "time"

// Advertisement is what a provider offers for an ask.
type Advertisement struct {
	// ContractID names the advertisement and the contract that may follow. It is
	// empty in a preview, which cannot be signed.
	ContractID string
	// RequestID is that of the ask.
	RequestID string
	// Revision is the revision of the contract that signing this makes, from 1, and PreviousHash
	// the hash of the revision before, zero for the first.
	Revision     uint64
	PreviousHash Hash
	// ValidUntil is when the offer expires unless it was signed.
	ValidUntil time.Time
	// Grant is what is offered.
	Grant
	// NotAfter is the latest end of the contract, whatever the clocks say. It is zero without a
	// limit.
	NotAfter time.Time
	// NeedsApproval means that an administrator has to approve the request before this is offered.
	// It is only set in a preview.
	NeedsApproval bool
}

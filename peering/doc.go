// Package peering is the core: cluster IDs and how keys are succeeded, the formats of tokens,
// contracts and statements of use, who may sign what, the states of a contract, how much is
// granted, and what its use costs. It is values and functions of values: no clock (time is an
// argument or an event), no input or output, no floating point, only the standard library. Both
// sides of a peering run the same code on their own copy.
//
// A contract goes this way and never back:
//
//	          Countersigned
//	(nothing) ─────────────► Active ◄─┐ Countersigned
//	                          │ │ │   │ (next revision)
//	     Terminate Now,       │ │ └───┘
//	     PeerReported Closed  │ │ Tick past NotAfter, Terminate Drain,
//	     ┌────────────────────┘ ▼ PeerReported Draining
//	     │                   Draining
//	     ▼                      │ Drained, Tick past DrainUntil,
//	  Closed ◄──────────────────┘ Terminate Now, PeerReported Closed
//
// An offer is not a state of a contract: the provider keeps it in memory until it is signed or
// expires, and a consumer's signature alone binds neither side. A draining contract accepts a
// next revision that was signed before both sides knew, and goes on draining. Both sides drain
// until the earlier of the ends that they reported.
package peering

// Package peering is the core: what a cluster is called and how its key changes,
// how a token, a contract and a statement of use are written down, who may sign
// what, how a contract lives and ends, how much is granted, and what its use costs.
// It is values and functions of values: no clock (time is an argument or an
// event), no input or output, no floating point, nothing but the standard
// library. Both sides of a peering run the same code on their own copy.
//
// A contract goes this way and never back:
//
//	          Countersigned
//	(nothing) ─────────────► Active ◄─┐ Countersigned
//	                          │ │ │   │ (next revision)
//	     Terminate Now,       │ │ └───┘
//	     PeerSaid Closed      │ │ Tick past NotAfter, Terminate Drain,
//	     ┌────────────────────┘ ▼ PeerSaid Draining
//	     │                   Draining
//	     ▼                      │ Drained, Tick past DrainUntil,
//	  Closed ◄──────────────────┘ Terminate Now, PeerSaid Closed
//
// An offer is no state of a contract: the provider keeps it in memory, until it is
// signed or lapses, and a consumer's signature alone binds nobody. Draining takes the
// next revision too, and goes on draining: of what was signed before both knew. Both
// sides drain until the earlier of what each of them said.
package peering

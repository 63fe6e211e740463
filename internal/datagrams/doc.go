// Package datagrams carries WireGuard's datagrams over the session between two agents, where
// UDP does not pass between their clusters.
//
//	gateway ── UDP, loopback ── [Gateway] ── TCP ── [Hub] ── gRPC, session ── the peer's Hub ── …
//
// A [Gateway] runs in the fabric of a node. To the node's WireGuard each gateway of a peer is an
// address on loopback, to be used when no other works. What WireGuard sends there goes to the
// agent, whose [Hub] passes it on to the agent of the peer, whose hub knows the gateway that it
// is for.
//
// All of it is WireGuard's ciphertext: whoever is on the way can lose datagrams and see when
// they come and how long they are. Like UDP this loses what it has no room for, the oldest first:
// nothing waits behind it, and nobody is slowed down but by what he is sent himself.
//
// A peer can have its datagrams delivered to this cluster's gateways, on loopback, and nowhere
// else; and only such as WireGuard may have written.
package datagrams

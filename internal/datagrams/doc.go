// Package datagrams carries WireGuard's datagrams over the session between two agents, where
// UDP does not pass between their clusters.
//
//	gateway ── UDP, loopback ── [Gateway] ── TCP ── [Hub] ── gRPC, session ── the peer's Hub ── …
//
// A [Gateway] runs in the fabric of a node. To the node's WireGuard each gateway of a peer is an
// address on loopback, used when no other endpoint works. The gateway sends the datagrams that
// arrive there to the agent, whose [Hub] passes them on to the hub of the peer's agent, which sends them
// to the gateway that they are for.
//
// All datagrams are WireGuard's ciphertext: those on the way can lose datagrams and see their times
// and lengths. Like UDP this loses datagrams for which there is no room, the oldest first: a peer's
// datagrams wait only behind others of the same peer.
//
// Datagrams of a peer are delivered only to this cluster's gateways, on loopback, and only if
// WireGuard may have written them.
package datagrams

// Package relay carries the peer API through tunnels: TCP between an agent, which is a pod,
// and the overlay address of a peer's gateway, which only gateways reach. A gateway has two
// relays. The inbound one listens on the gateway's own overlay address for the gateways of
// peers, and dials the agent. The outbound one listens for the agent, and dials the gateways
// of a peer. The agent accepts the connections of inbound relays by a Listener.
//
// The connection is a session, which both agents encrypt and authenticate: a relay cannot read
// it, and does not authenticate peers. It does protect its cluster's agent from those
// that could not reach it otherwise, so it accepts only connections that its Config admits, and bounds
// the connections, time and memory of each sender.
package relay

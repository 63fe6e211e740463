// Package relay carries the peer API through tunnels: TCP between an agent, which is a pod,
// and the overlay address of a peer's gateway, which only gateways reach. A gateway has two
// relays. The inbound one listens on the gateway's own overlay address for the gateways of
// peers, and dials the agent. The outbound one listens for the agent, and dials the gateways
// of a peer. The agent takes what comes from inbound relays by a Listener.
//
// What passes is a session, which both agents encrypt and authenticate: a relay reads none of
// it, and vouches for nobody. It does keep its cluster's agent from being reached by those
// that could not reach it otherwise, so it lets in only whom its Config admits, and it bounds
// what each can take: connections, time, memory.
package relay

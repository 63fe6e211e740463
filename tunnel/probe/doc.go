// Package probe finds out, by small datagrams inside the tunnels, which ways to other nodes work
// ([Path]), and how large the packets are that pass them ([Search]): as values, which the
// [Prober] keeps while it sends and answers. What gateways of one cluster tell each other of
// the peers ([Claim]) goes the same way.
package probe

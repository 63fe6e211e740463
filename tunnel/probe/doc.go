// Package probe sends small datagrams inside the tunnels to find out which paths to other nodes work
// ([Path]) and how large the packets are that pass them ([Search]). Both are values; the
// [Prober] keeps them while it sends and answers. The gateways of a cluster announce to each other
// in the same way how well they reach the peers ([Claim]).
package probe

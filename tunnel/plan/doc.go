// Package plan decides what a node's tunnels, routes, translation and firewall should be: values
// in, values out, the standard library only.
//
// [Plan] makes a [Layout] of what is wanted ([Desired]) and of what the node observes itself
// ([Observed]). Beside it stand the decisions that others ask for as well: which prefixes a
// node's pods are in ([PodsOf]), what an address is called elsewhere ([Remap]), and which gateway
// is the best ([Rank]).
package plan

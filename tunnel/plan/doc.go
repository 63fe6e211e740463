// Package plan decides what a node's tunnels, routes, translation and firewall should be: values
// in, values out, the standard library only.
//
// [Plan] makes a [Layout] from the desired state ([Desired]) and from what the node observes itself
// ([Observed]). The package also has the decisions that other packages share: the prefixes of a
// node's pods ([PodsOf]), the alias of an address ([Remap]), and the best gateway ([Rank]).
package plan

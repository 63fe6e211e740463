// Package matrix tries what reaches what between three clusters of two nodes that all peer:
// each kind of source and destination, on nodes that are gateways and on others, in each of
// several setups of the clusters' networks. The cells are a function of their dimensions; the
// tests try them, and docs/reachability.md is written from them.
package matrix

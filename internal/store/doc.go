// Package store keeps what the agent has to remember, in the home cluster's own
// objects: its identity and the tokens that it issued in Secrets, foreign
// clusters and contracts in custom resources. It converts between those and the
// values of package peering. Each write is a compare-and-swap by
// resourceVersion; the package holds no state of its own.
package store

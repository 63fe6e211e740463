// Package store keeps the agent's state in objects of its own cluster: its identity and the tokens that it issued
// in Secrets, foreign clusters and contracts in custom resources. It converts between those and the values of
// package peering. Objects are written by the patches of write.go; docs/design/0021 says which of them use
// optimistic locking. The package has no state of its own except caches.
package store

// Package identity has a cluster's key and root certificate, replaces them by signed succession,
// mints the short-lived certificates that its agent presents, and keeps the bundles of the peers
// that it trusts, one per peer and never merged. It makes the TLS configurations of the peer API
// out of these; go-spiffe verifies the chains.
//
// AuthInfo is the cluster at the other end. Other packages decide what it may do.
package identity

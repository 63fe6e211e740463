// Package identity holds a cluster's key and root certificate, replaces them by
// signed succession, mints the short-lived certificates with which its agent shows
// itself, and keeps the bundles of the peers that it trusts, one a peer and never
// merged. It makes the TLS configurations of the peer API out of these; go-spiffe
// verifies the chains.
//
// Who is at the other end is AuthInfo. What it may do is for others to decide.
package identity

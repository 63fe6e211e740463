// Package paths runs Entente between three whole clusters, of both IP families, among which something
// is in the way: two that cannot dial each other and have a peer in common, two that do not peer
// and run pods of a third, and two between which nothing but UDP passes, behind NAT or over IPv6 alone.
package paths

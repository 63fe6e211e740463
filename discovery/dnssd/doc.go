// Package dnssd finds clusters in domains, and publishes one in a domain, by DNS-SD
// (RFC 6763) over unicast DNS.
//
// Browsing is decided by a plan (plan.go), which has the answers and the next questions, but
// neither clock nor socket; [Browser] asks its questions. Publishing compares the records of a zone
// with the desired ones (update.go), and [Publisher] sends the difference as a dynamic update (RFC
// 2136) with a transaction signature (RFC 8945).
//
// DNS without DNSSEC proves nothing of what it says, and with DNSSEC only who wrote
// the zone: what is found is a hint either way.
package dnssd

// Package dnssd finds clusters in domains, and publishes one in a domain, by DNS-SD
// (RFC 6763) over unicast DNS.
//
// Finding is a plan (plan.go), which knows what was answered and what to ask next and
// has neither clock nor socket; [Browser] asks for it. Publishing compares what a zone
// has with what it should have (update.go), and [Publisher] sends the difference as a
// dynamic update (RFC 2136) with a transaction signature (RFC 8945).
//
// DNS without DNSSEC proves nothing of what it says, and with DNSSEC only who wrote
// the zone: what is found is a hint either way.
package dnssd

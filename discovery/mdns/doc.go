// Package mdns publishes and finds clusters on a LAN: a responder, a browser and
// a cache of Multicast DNS (RFC 6762) for services of DNS-SD (RFC 6763).
//
// The decisions are in link, which is all that there is to one network interface:
// packets, the time and what shall be published go in, packets, what was found and
// the time to look again come out. It has no clock, no sockets and no goroutines.
// [Responder] has those.
//
// Each rule of the RFCs, with where it is and its test, is in docs/discovery.md.
package mdns

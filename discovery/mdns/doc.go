// Package mdns publishes and finds clusters on a LAN: a responder, a browser and
// a cache of Multicast DNS (RFC 6762) for services of DNS-SD (RFC 6763).
//
// A link decides everything about one network interface: packets, the time and the services to
// publish go in; packets, the found instances and the time of the next tick come out. It has no
// clock, no sockets and no goroutines. [Responder] has those.
//
// docs/discovery.md lists each rule of the RFCs, with its code and its test.
package mdns

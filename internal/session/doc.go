// Package session keeps one connection to each peer, whoever could dial it, and
// carries gRPC over it in both directions.
//
// One TCP port answers two application protocols of TLS 1.3:
//
//	entente/1  a session: yamux over TLS. Each side opens streams, and answers
//	           gRPC on those that the other opened. Only for trusted peers.
//	h2         gRPC as usual: joining, and calls of trusted peers by other tools.
//
// After the handshake of entente/1 the side that was dialled sends 16 bytes: the
// letters ENT1, a verdict, three zero bytes, and its clock (milliseconds since
// 1970, 8 bytes, big endian). Without them a client of TLS 1.3 would not know
// whether it was let in, since the server judges it last. The dialling side is
// the yamux client. The first stream that it opens is the control stream, on
// which both sides prove their identity anew with each new leaf certificate; all
// others carry gRPC. On it each side also asks whether the other is there when it
// has not heard of it for a while; a session that does not answer is cut, and so
// is one soon after the certificate ended that the peer showed last. Why:
// docs/design/0006-identity-outlives-keys-and-certificates.md.
//
// Of two sessions between the same clusters, as when both dial at once, the one
// that the lower cluster ID dialled stays. A session that does not answer a ping
// counts as gone in that comparison.
//
// What is said over the sessions is for others; so is who is trusted.
package session

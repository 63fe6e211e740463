// Package session keeps one connection to each peer, whichever side could dial it, and carries
// gRPC over it in both directions.
//
// One TCP port serves two application protocols of TLS 1.3:
//
//	entente/1  a session: yamux over TLS. Each side opens streams, and answers
//	           gRPC on those that the other opened. Only for trusted peers.
//	h2         gRPC as usual: joining, and calls of trusted peers by other tools.
//
// After the handshake of entente/1 the side that was dialled sends 16 bytes: the
// letters ENT1, a verdict, three zero bytes, and its clock (milliseconds since
// 1970, 8 bytes, big endian). Without them a client of TLS 1.3 would not know
// whether it was let in, since the server checks its certificate last. The dialling side is
// the yamux client. The first stream that it opens is the control stream, on
// which both sides prove their identity again with each new leaf certificate; all
// others carry gRPC. It also carries the keepalive: a side that received no message for
// a while sends a probe, and a session whose probe is not answered ends. So does a session whose
// peer showed no new certificate shortly after the last one expired. Why: docs/design/0006 and
// 0011.
//
// Of two sessions between the same clusters, as when both dial at once, the one
// that the lower cluster ID dialled stays. A session that does not answer a ping
// counts as gone in that comparison.
//
// Other packages decide what the sessions carry and which peers are trusted.
package session

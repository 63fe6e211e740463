// Package intake meters unread messages: it bounds the memory that grpc-go's server spends
// on messages that no handler has read. A server needs all of Meter.Credentials, Meter.Begin
// in its tap, the Meter as its stats.Handler, and no read buffer of its own; see
// server/peer.go.
//
// No option of grpc-go 1.85 does that. It returns the connection's window as soon as a frame
// arrives, read or not, and opens the stream's window to the size that a message announces,
// so what a caller may leave unread is, for each call, the largest message and a window of
// the stream. Each frame has a buffer of its own, of 4 or 16 KiB where the frame is a little
// larger than 1 or 4 KiB. No interceptor sees the call until its message is complete, and
// nothing ends a call whose message never is. With all options set, 64 calls of a peer took 511
// MiB; with a Meter 63 at most (docs/design/0020).
//
// A Meter therefore reads the frames of each connection (RFC 9113, section 4.1) as they pass,
// and counts what each call was sent. A message of a stream counts until its handler has
// received it, that of a unary call until the call has ended. When a call, a sender, or all
// senders together exceed their limit, the Meter ends the calls with the most unread bytes, and
// stops reading from the connection until gRPC has released them.
package intake

package carry

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/entente-dev/entente/peering"
)

// Stream is a call that carries a connection. Send and Recv are called from one goroutine each.
type Stream interface {
	// Send sends bytes, at most MaxData. It does not keep them.
	Send(data []byte) error
	// Recv returns the next bytes, and io.EOF after the last.
	Recv() ([]byte, error)
	// End ends the call, with an error or with nil. Send and Recv then return an error. Any goroutine
	// may call it, more than once; the first call counts.
	End(why error)
}

// Conn is a connection that a third peer carries.
type Conn struct {
	net.Conn
	third peering.ClusterID
	addr  net.Addr
}

// Through returns the peer that carries the connection.
func (c *Conn) Through() string { return string(c.third) }

// RemoteAddr returns the address from which connections that the peer carries count as coming.
func (c *Conn) RemoteAddr() net.Addr { return c.addr }

// Join returns a connection over a stream through a third peer, and a function that passes its
// bytes until either ends. addr counts as its remote address.
func Join(s Stream, third peering.ClusterID, addr net.Addr) (conn *Conn, pass func()) {
	// In a pipe a write waits for its reader. So the flow control of the stream is that of
	// the connection, and nothing is kept in between.
	near, far := net.Pipe()
	return &Conn{Conn: near, third: third, addr: addr}, func() {
		end := func() {
			_ = far.Close()
			s.End(nil)
		}
		var sending sync.WaitGroup
		sending.Go(func() {
			defer end()
			buffer := make([]byte, MaxData)
			for {
				n, err := far.Read(buffer)
				if err != nil || s.Send(buffer[:n]) != nil {
					return
				}
			}
		})
		for {
			data, err := s.Recv()
			if err != nil {
				break
			}
			if len(data) == 0 {
				continue // a reader would count it as progress
			}
			if _, err := far.Write(data); err != nil {
				break
			}
		}
		end()
		sending.Wait()
	}
}

// splice passes the bytes of each of two streams to the other, until one ends, and returns
// why. Before it passes bytes it calls pace with the number of the stream that they came from.
func splice(parent context.Context, streams [2]Stream, pace func(ctx context.Context, from, n int) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var both sync.WaitGroup
	for from := range streams {
		in, out := streams[from], streams[1-from]
		both.Go(func() {
			for {
				data, err := in.Recv()
				if err == nil {
					err = pace(ctx, from, len(data))
				}
				if err == nil {
					err = out.Send(data)
				}
				if err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	<-ctx.Done()
	why := context.Cause(ctx)
	switch {
	case parent.Err() != nil:
		why = context.Cause(parent) // the streams may have ended by it first
	case errors.Is(why, io.EOF):
		why = nil
	}
	for _, s := range streams {
		s.End(why)
	}
	both.Wait()
	return why
}

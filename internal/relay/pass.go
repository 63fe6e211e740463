package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// pass copies both ways until both directions have ended, or one has failed, or both were idle
// for too long. The end of a direction is passed on.
func pass(a, b net.Conn) {
	var last atomic.Int64 // when something passed, in nanoseconds since began
	began := time.Now()
	moved := func() { last.Store(int64(time.Since(began))) }
	idle := func() time.Duration { return time.Since(began) - time.Duration(last.Load()) }
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			if err := copyOneWay(way[1], way[0], moved, idle); err != nil {
				_ = errors.Join(a.Close(), b.Close())
			}
		})
	}
	both.Wait()
}

// copyOneWay copies until the source ends, which it passes on.
func copyOneWay(to, from net.Conn, moved func(), idle func() time.Duration) error {
	buffer := make([]byte, bufferSize)
	for {
		if err := from.SetReadDeadline(time.Now().Add(idleTimeout - idle())); err != nil {
			return err
		}
		n, err := from.Read(buffer)
		if n > 0 {
			moved()
			// A receiver that does not read for so long is gone, or keeps the relay's memory in use.
			if err := to.SetWriteDeadline(time.Now().Add(idleTimeout)); err != nil {
				return err
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
			moved()
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && idle() < idleTimeout:
			// Something passed the other way meanwhile.
		case errors.Is(err, io.EOF):
			return closeWrite(to)
		case err != nil:
			return err
		}
	}
}

// closeWrite ends the sending direction.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.New("relay: the connection cannot be closed in one direction")
}

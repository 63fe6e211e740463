// Package accept takes the connections of listeners, hands them over, and counts them.
package accept

import (
	"context"
	"errors"
	"net"
	"time"
)

// pause is the pause after a connection could not be accepted.
const pause = 100 * time.Millisecond

// Each calls take with each connection that a listener accepts, until ctx ends, and then returns nil.
// If the listener is closed it returns that error. Any other is reported to failed, such as that
// there are too many open files: what is open goes on, and the next one is waited for. The listener is
// closed when Each returns.
func Each(ctx context.Context, l net.Listener, failed func(error), take func(net.Conn)) error {
	defer func() { _ = l.Close() }()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if conn != nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			failed(err)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		default:
			take(conn)
		}
	}
}

package accept_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"github.com/entente-dev/entente/internal/accept"
)

// listener accepts what it is given: a connection, or an error.
type listener struct {
	net.Listener
	next   chan any
	closed chan struct{}
}

func newListener() *listener { return &listener{next: make(chan any), closed: make(chan struct{})} }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case x := <-l.next:
		if err, ok := x.(error); ok {
			return nil, err
		}
		return x.(net.Conn), nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func TestAFailedAcceptDoesNotEndTheListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l, conn := newListener(), &net.TCPConn{}
		var taken []net.Conn
		var failed []error
		done := make(chan error, 1)
		go func() {
			done <- accept.Each(ctx, l, func(err error) { failed = append(failed, err) }, func(c net.Conn) { taken = append(taken, c) })
		}()
		many := errors.New("too many open files")
		for _, x := range []any{conn, many, many, conn} {
			l.next <- x
		}
		synctest.Wait()
		if len(taken) != 2 || len(failed) != 2 || !errors.Is(failed[0], many) {
			t.Errorf("%d connections were taken, and failed is %v", len(taken), failed)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		<-l.closed
	})
}

func TestAClosedListenerIsAnError(t *testing.T) {
	l := newListener()
	_ = l.Close()
	if err := accept.Each(t.Context(), l, func(error) {}, func(net.Conn) {}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

package admin

import (
	"net"
	"testing"
	"time"

	"github.com/entente-dev/entente/server/internal/servertest"
)

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := atMost(l, 3, 8, 3)
	kept := make(chan net.Conn, 16)
	go func() {
		defer close(kept)
		for {
			c, err := bounded.Accept()
			if err != nil {
				return
			}
			kept <- c
		}
	}()
	defer func() { _ = l.Close() }()
	// One is either handed out or closed.
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		closed := make(chan struct{})
		go func() {
			_, _ = c.Read(make([]byte, 1))
			close(closed)
		}()
		select {
		case one := <-kept:
			t.Cleanup(func() { _ = one.Close() })
			return one
		case <-closed:
		case <-time.After(servertest.Patience):
			t.Error("a connection is neither handed out nor closed")
		}
		return nil
	}
	var first net.Conn
	for i := range 3 {
		if first = dial(); first == nil {
			t.Fatalf("connection %d is not kept", i)
		}
	}
	for i := range 2 {
		if dial() != nil {
			t.Errorf("connection %d is kept", i+3)
		}
	}
	_ = first.Close()
	_ = first.Close()
	if dial() == nil || dial() != nil {
		t.Error("a place that was freed is not one place")
	}
}

// strangerConn is a connection from an address that a test says.
type strangerConn struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (c *strangerConn) RemoteAddr() net.Addr { return c.from }

func (c *strangerConn) Close() error {
	c.closed = true
	return nil
}

func TestConnectionsOfAFewLeaveOthersTheirPlaces(t *testing.T) {
	l := atMost(nil, 4, 6, 3).(*countedListener)
	dial := func(ip string) (c *strangerConn, kept, instead *countedConn) {
		c = &strangerConn{from: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
		kept, instead = l.keep(c)
		return c, kept, instead
	}
	// Two pods take all that they get.
	var first *countedConn
	for i := range 4 {
		for _, ip := range []string{"10.0.0.1", "10.0.0.2"} {
			_, kept, instead := dial(ip)
			if (kept != nil) != (i < 3) || instead != nil {
				t.Fatalf("connection %d of %s: %v, %v", i, ip, kept, instead)
			}
			if first == nil {
				first = kept
			}
		}
	}
	for i := range 5 {
		if _, kept, instead := dial("127.0.0.1"); (kept != nil) != (i < 4) || instead != nil {
			t.Errorf("connection %d from loopback: %v, %v", i, kept, instead)
		}
	}
	_, third, instead := dial("10.0.0.3")
	if third == nil || instead == nil || instead.address == "10.0.0.3" {
		t.Fatalf("a newcomer: %v, %v", third, instead)
	}
	_, fourth, second := dial("10.0.0.4")
	if fourth == nil || second == nil || second.address == instead.address || first != instead && first != second {
		t.Fatalf("another one: %v, %v after %v", fourth, second, instead)
	}
	// Each address has one or two now: none has more than the two of a newcomer.
	if _, kept, _ := dial("10.0.0.3"); kept != nil {
		t.Error("one that would have as many as any other takes a place")
	}
	for _, c := range []*countedConn{first, third, third} {
		_ = c.Close()
	}
	if l.others.total != 5 || !third.Conn.(*strangerConn).closed {
		t.Errorf("%d are open after one of 6 was closed, twice", l.others.total)
	}
	if _, kept, instead := dial("10.0.0.5"); kept == nil || instead != nil {
		t.Errorf("the place that is free: %v, %v", kept, instead)
	}
}

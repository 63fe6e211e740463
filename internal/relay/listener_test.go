package relay

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"
)

func listenTest(t *testing.T) *Listener {
	t.Helper()
	l, err := Listen(ListenerConfig{
		Listener: listen(t), Keys: known, Log: slog.New(slog.DiscardHandler),
		Address: func(peer string) net.Addr { return &net.UnixAddr{Name: peer} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestAnAgentLearnsFromWhichPeerAConnectionComes(t *testing.T) {
	l := listenTest(t)
	go func() {
		conn, err := dialTest(t.Context(), l)
		if err != nil || Ask(conn, testPeer, testKey, patience) != nil {
			return
		}
		_, _ = io.WriteString(conn, "hello")
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if got := conn.(*Conn).Peer(); got != testPeer || conn.RemoteAddr().String() != testPeer {
		t.Errorf("the connection is from %s at %s", got, conn.RemoteAddr())
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestAnAgentRefusesAClientThatIsNotARelay(t *testing.T) {
	l := listenTest(t)
	for name, c := range map[string]struct {
		peer string
		key  Key
	}{
		"another key":        {testPeer, Key{9}},
		"a peer not in-band": {"peer-b", testKey},
	} {
		conn := connect(t, l)
		if err := Ask(conn, c.peer, c.key, patience); !errors.Is(err, errRefused) {
			t.Errorf("%s: %v", name, err)
		}
		if !ended(conn) {
			t.Errorf("%s: the connection is open", name)
		}
	}
	if len(l.out) != 0 {
		t.Error("a connection was handed out")
	}
}

func TestUnprovenConnectionsAreBounded(t *testing.T) {
	l := listenTest(t)
	for range maxUnprovenOfAddress {
		// Each is counted once it has been greeted.
		if _, err := io.ReadFull(connect(t, l), make([]byte, len(magic)+nonceLen)); err != nil {
			t.Fatal(err)
		}
	}
	if !ended(connect(t, l)) {
		t.Fatal("one more connection was taken")
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := other.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	go func() { _ = Ask(conn, testPeer, testKey, patience) }()
	if c, err := l.Accept(); err != nil || c.(*Conn).Peer() != testPeer {
		t.Fatalf("another address is turned away: %v", err)
	}
}

func TestAClosedListenerLeavesNothingOpen(t *testing.T) {
	l := listenTest(t)
	waiting := connect(t, l)
	if _, err := io.ReadFull(waiting, make([]byte, len(magic)+nonceLen)); err != nil {
		t.Fatal(err)
	}
	proven := connect(t, l) // that Accept does not return yet
	if err := Ask(proven, testPeer, testKey, patience); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if !ended(waiting) || !ended(proven) {
		t.Error("a connection is open")
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept returned %v", err)
	}
	if conn, err := dialTest(t.Context(), l); err == nil {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if !ended(conn) {
			t.Error("it listens still")
		}
	}
}

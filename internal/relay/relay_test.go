package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/waittest"
)

const (
	testPeer = "peer-a"
	patience = 5 * time.Second
)

var (
	testKey = Key{1, 2, 3}
	testWay = Way{Peer: testPeer, Gateway: netip.MustParseAddr("fd00::1")}
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dialTest(ctx context.Context, l net.Listener) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
}

func connect(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	conn, err := dialTest(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// open returns how many connections there are.
func open(r *Relay) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

// start runs a relay on loopback until the test ends, and fails if that takes long.
func start(t *testing.T, cfg Config) (*Relay, net.Listener) {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil || open(r) != 0 || len(r.accounts) != 0 {
				t.Errorf("the relay ended with %v, %d connections, accounts %v", err, open(r), r.accounts)
			}
		case <-time.After(patience):
			t.Error("the relay does not end")
		}
	})
	return r, l
}

func anyone(netip.Addr) (string, bool) { return testPeer, true }

func to(l net.Listener) func(context.Context, net.Conn) (End, error) {
	return func(ctx context.Context, _ net.Conn) (End, error) {
		conn, err := dialTest(ctx, l)
		return End{Conn: conn, Way: testWay}, err
	}
}

// echo sends its input back, once that has ended.
func echo(t *testing.T) net.Listener {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				all, err := io.ReadAll(conn)
				if err == nil {
					_, _ = conn.Write(all)
				}
			}()
		}
	}()
	return l
}

// sink accepts connections and leaves them open.
func sink(t *testing.T) net.Listener {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	return l
}

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

// ended reports whether the other side closes a connection.
func ended(conn net.Conn) bool {
	_, err := conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestBytesPassBothWaysAndTheEndOfOneDirectionIsPassedOn(t *testing.T) {
	_, l := start(t, Config{Admit: anyone, Open: to(echo(t))})
	conn := connect(t, l)
	sent := make([]byte, 10*bufferSize+1)
	_, _ = rand.Read(sent)
	if _, err := conn.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes came back of %d, err %v", len(got), len(sent), err)
	}
}

func TestAConnectionThatIsNotAdmittedIsClosedUnread(t *testing.T) {
	opened := false
	_, l := start(t, Config{
		Admit: func(from netip.Addr) (string, bool) { return "", from != netip.MustParseAddr("127.0.0.1") },
		Open: func(context.Context, net.Conn) (End, error) {
			opened = true
			return End{}, io.EOF
		},
	})
	if conn := connect(t, l); !ended(conn) || opened {
		t.Fatalf("the connection is open, or led somewhere: %v", opened)
	}
}

func TestOneSenderHasAFewConnectionsAndOthersHaveTheirs(t *testing.T) {
	far := sink(t)
	_, l := start(t, Config{Admit: func(from netip.Addr) (string, bool) { return from.String(), true }, Open: func(ctx context.Context, conn net.Conn) (End, error) {
		other, err := dialTest(ctx, far)
		return End{Conn: other, Way: Way{Peer: conn.RemoteAddr().(*net.TCPAddr).IP.String()}}, err
	}})
	for range maxAccountConns {
		connect(t, l)
	}
	if !ended(connect(t, l)) {
		t.Fatal("one more connection was let in")
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := other.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !isTimeout(err) {
		t.Fatalf("another sender is turned away: %v", err)
	}
}

func TestCutEndsTheConnectionsOfWaysThatAreGone(t *testing.T) {
	for name, keep := range map[string]func(Way) bool{
		"of a peer":    func(w Way) bool { return w.Peer != testPeer },
		"of a gateway": func(w Way) bool { return w.Gateway != testWay.Gateway },
	} {
		t.Run(name, func(t *testing.T) {
			r, l := start(t, Config{Admit: anyone, Open: to(sink(t))})
			conn := connect(t, l)
			eventually(t, "the connection is open", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				for p := range r.conns {
					return p.way == testWay
				}
				return false
			})
			r.Cut(func(w Way) bool { return w == testWay })
			if open(r) != 1 {
				t.Fatal("a connection that is to be kept was cut")
			}
			r.Cut(keep)
			if !ended(conn) {
				t.Fatal("the connection was not cut")
			}
			if !ended(connect(t, l)) {
				t.Fatal("a connection was made after it was cut")
			}
		})
	}
}

func TestAnOpenThatFailsEndsTheConnection(t *testing.T) {
	_, l := start(t, Config{Admit: anyone, Open: func(context.Context, net.Conn) (End, error) { return End{}, io.ErrUnexpectedEOF }})
	if !ended(connect(t, l)) {
		t.Fatal("the connection is open")
	}
}

// asked runs one request against an outbound relay.
func asked(t *testing.T, peer string, key Key, dial func(string) (net.Conn, error)) (net.Conn, error) {
	t.Helper()
	_, l := start(t, Config{Admit: anyone, Open: func(_ context.Context, conn net.Conn) (End, error) {
		return Serve(conn, known, func(peer string) (net.Conn, netip.Addr, error) {
			other, err := dial(peer)
			return other, testWay.Gateway, err
		})
	}})
	conn := connect(t, l)
	return conn, Ask(conn, peer, key, patience)
}

func TestAnAgentReachesAPeerByItsKey(t *testing.T) {
	far := echo(t)
	conn, err := asked(t, testPeer, testKey, func(string) (net.Conn, error) { return dialTest(t.Context(), far) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
}

// TestKeysAreAcceptedWhileOneReplacesAnother: the side that dials uses the newest key that it has read, and the other
// may have read it as the next one, as the one in use or as the previous one.
func TestKeysAreAcceptedWhileOneReplacesAnother(t *testing.T) {
	t.Parallel()
	nonce, request := make([]byte, nonceLen), append([]byte{byte(len(testPeer))}, testPeer...)
	used, next, previous, older := [32]byte{1}, [32]byte{2}, [32]byte{3}, [32]byte{4}
	accepted, err := KeysFrom(ToPeer, used, next, previous)
	if err != nil || len(accepted) != 3 {
		t.Fatal(accepted, err)
	}
	for name, tc := range map[string]struct {
		preshared [32]byte
		direction Direction
		keys      []Key
		want      bool
	}{
		"the one in use":            {used, ToPeer, accepted, true},
		"the next one":              {next, ToPeer, accepted, true},
		"the previous one":          {previous, ToPeer, accepted, true},
		"the one before that":       {older, ToPeer, accepted, false},
		"that of another direction": {used, ToAgent, accepted, false},
		"of an unknown peer":        {used, ToPeer, nil, false},
		"of zeros, which are unset": {[32]byte{}, ToPeer, accepted[:1], false},
	} {
		key, err := KeyFrom(tc.preshared, tc.direction)
		if err != nil {
			t.Fatal(err)
		}
		if got := proves(proof(key, nonce, request), tc.keys, nonce, request); got != tc.want {
			t.Errorf("%s: accepted is %t", name, got)
		}
	}
	if proves(proof(Key{}, nonce, request), accepted[:1], nonce, request) {
		t.Error("a key of zeros is accepted in place of keys that do not exist")
	}
	if one, err := KeysFrom(ToPeer, used, [32]byte{}, [32]byte{}); err != nil || len(one) != 1 {
		t.Errorf("of one preshared key there are %d keys, %v", len(one), err)
	}
}

func TestRequestsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		peer string
		key  Key
		want error
	}{
		"a peer that is not known":                  {"peer-b", testKey, errRefused},
		"a key that is another's":                   {testPeer, Key{9}, errRefused},
		"a peer none of whose gateways can be seen": {testPeer, testKey, errDown},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := asked(t, c.peer, c.key, func(string) (net.Conn, error) { return nil, errors.New("down") })
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
	if _, err := asked(t, strings.Repeat("x", maxPeerLen+1), testKey, nil); err == nil {
		t.Fatal("an ID that is too long was sent")
	}
}

func TestAProofIsInvalidForAnotherConnection(t *testing.T) {
	request := append([]byte{byte(len(testPeer))}, testPeer...)
	sent := append(slices.Clone(request), proof(testKey, make([]byte, nonceLen), request)...)
	if _, err := readRequest(&stream{in: bytes.NewReader(sent)}, known); !errors.Is(err, errRequest) {
		t.Fatalf("a proof over another nonce was accepted: %v", err)
	}
}

func TestAskRefusesAServerThatIsNotARelay(t *testing.T) {
	for name, says := range map[string]string{
		"nothing":            "",
		"something else":     "SSH-2.0-OpenSSH_9.6 and more than a nonce of it",
		"another version":    "entr\x02" + strings.Repeat("n", nonceLen),
		"an answer unknown":  magic + strings.Repeat("n", nonceLen) + "\x07",
		"a nonce that stops": magic + "n",
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, says)
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
			if err := Ask(connect(t, l), testPeer, testKey, patience); err == nil {
				t.Fatal("accepted")
			}
		})
	}
}

func TestTheKeyDependsOnThePresharedKeyAndTheDirectionAndDoesNotShowIt(t *testing.T) {
	a, err := KeyFrom([32]byte{1}, ToPeer)
	b, errB := KeyFrom([32]byte{2}, ToPeer)
	c, errC := KeyFrom([32]byte{1}, ToAgent)
	if err != nil || errB != nil || errC != nil || a == b || a == c || a == (Key{1}) {
		t.Fatalf("%v %v %v: keys are equal, or as they were", err, errB, errC)
	}
	if a.String() != "Key(hidden)" || a.GoString() != "Key(hidden)" {
		t.Fatal("a key prints itself")
	}
}

func known(peer string) []Key {
	if peer != testPeer {
		return nil
	}
	return []Key{testKey}
}

// stream is a connection with fixed input.
type stream struct {
	in  io.Reader
	out bytes.Buffer
}

func (s *stream) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s *stream) Write(b []byte) (int, error) { return s.out.Write(b) }

func FuzzARequestNeedsTheKey(f *testing.F) {
	request := append([]byte{byte(len(testPeer))}, testPeer...)
	f.Add([]byte{})
	f.Add([]byte{0})
	f.Add([]byte{255, 1})
	f.Add(append(request, make([]byte, macLen)...))
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := &stream{in: bytes.NewReader(sent)}
		if peer, err := readRequest(s, known); err == nil {
			t.Fatalf("let in to %q", peer)
		}
		if len(sent) > 0 && s.out.Len() != len(magic)+nonceLen {
			t.Fatalf("%d bytes were written", s.out.Len())
		}
	})
}

package datagrams

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

var (
	testKey = Key{1, 2, 3}
	testOwn = [32]byte{7, 7, 7}
)

const testPeer = "peer-a"

func known(peer string) []Key {
	if peer != testPeer {
		return nil
	}
	return []Key{testKey, {4}, {5}, {6}}
}

func ours(key [32]byte) bool { return key == testOwn }

// shake runs both ends of a link's handshake over TCP: unlike a net.Pipe, a connection
// whose other end has closed still takes a deadline.
func shake(t *testing.T, r request, key Key, agent func(net.Conn)) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer b.Close()
		agent(b)
	}()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	err = ask(a, r, key)
	a.Close()
	<-done
	return err
}

func TestALinkBeginsByTheKeyOfThePeer(t *testing.T) {
	for name, row := range map[string]struct {
		request request
		key     Key
		want    error
	}{
		"a gateway of this cluster":         {request{testOwn, testPeer}, testKey, nil},
		"which has the next key in use":     {request{testOwn, testPeer}, Key{4}, nil},
		"which has the previous one in use": {request{testOwn, testPeer}, Key{5}, nil},
		"a key beyond these":                {request{testOwn, testPeer}, Key{6}, errRefused},
		"another key":                       {request{testOwn, testPeer}, Key{9}, errRefused},
		"a key of zeros":                    {request{testOwn, testPeer}, Key{}, errRefused},
		"of zeros, and for no peer":         {request{testOwn, "peer-b"}, Key{}, errRefused},
		"a peer that nothing is carried of": {request{testOwn, "peer-b"}, testKey, errRefused},
		"a node that is not a gateway":      {request{[32]byte{8}, testPeer}, testKey, errRefused},
	} {
		t.Run(name, func(t *testing.T) {
			var got request
			var agentErr error
			err := shake(t, row.request, row.key, func(c net.Conn) { got, agentErr = respond(c, known, ours) })
			if !errors.Is(err, row.want) || (row.want == nil) != (err == nil) || (agentErr == nil) != (err == nil) {
				t.Fatalf("gateway: %v, agent: %v, want %v", err, agentErr, row.want)
			}
			if err == nil && got != row.request {
				t.Errorf("the agent read %v", got)
			}
		})
	}
}

func TestAGatewayRefusesAServerThatIsNotItsAgent(t *testing.T) {
	for name, agent := range map[string]func(net.Conn){
		"nothing":        func(c net.Conn) {},
		"something else": func(c net.Conn) { _, _ = io.WriteString(c, strings.Repeat("SSH-2.0-OpenSSH", 9)) },
		"one that does not know the key": func(c net.Conn) {
			_, _ = c.Write(append([]byte(linkMagic), make([]byte, nonceLen)...))
			_, _ = io.ReadFull(c, make([]byte, 32+nonceLen+1+len(testPeer)+macLen))
			_, _ = c.Write(make([]byte, 1+macLen))
		},
		"an echo of the gateway's own proof": func(c net.Conn) {
			_, _ = c.Write(append([]byte(linkMagic), make([]byte, nonceLen)...))
			message := make([]byte, 32+nonceLen+1+len(testPeer)+macLen)
			_, _ = io.ReadFull(c, message)
			_, _ = c.Write(append([]byte{responseOK}, message[len(message)-macLen:]...))
		},
		"an answer unknown": func(c net.Conn) {
			_, _ = c.Write(append([]byte(linkMagic), make([]byte, nonceLen)...))
			_, _ = io.ReadFull(c, make([]byte, 32+nonceLen+1+len(testPeer)+macLen))
			_, _ = c.Write([]byte{9})
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := shake(t, request{testOwn, testPeer}, testKey, agent); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestAProofIsGoodForOneConnection(t *testing.T) {
	message := append(append(append([]byte(nil), testOwn[:]...), make([]byte, nonceLen)...), byte(len(testPeer)))
	message = append(message, testPeer...)
	nonce := make([]byte, nonceLen)
	whole := append(message, mac(testKey, []byte("gateway"), nonce, message)...)
	if _, _, _, err := readRequest(bytes.NewReader(whole), nonce, known); err != nil {
		t.Fatalf("a proof: %v", err)
	}
	if _, _, _, err := readRequest(bytes.NewReader(whole), bytes.Repeat([]byte{1}, nonceLen), known); err == nil {
		t.Error("a proof over another nonce was accepted")
	}
}

func TestKeysHideThemselves(t *testing.T) {
	a, err := KeyFrom([32]byte{1})
	b, errB := KeyFrom([32]byte{2})
	if err != nil || errB != nil || a == b || a == (Key{1}) || a.String() != "Key(hidden)" || a.GoString() != "Key(hidden)" {
		t.Fatalf("%v %v", err, errB)
	}
}

func FuzzALinkNeedsTheKey(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(append(make([]byte, 64), byte(len(testPeer))), testPeer...))
	f.Add(append(append(append(make([]byte, 64), byte(len(testPeer))), testPeer...), make([]byte, macLen)...))
	f.Add(bytes.Repeat([]byte{255}, 300))
	f.Fuzz(func(t *testing.T, message []byte) {
		conn := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(message), io.Discard}
		if r, err := respond(conn, known, func([32]byte) bool { return true }); err == nil {
			t.Fatalf("let in: %v", r)
		}
	})
}

// readConn is a link with fixed input.
type readConn struct {
	net.Conn
	in io.Reader
}

func (c readConn) Read(b []byte) (int, error)    { return c.in.Read(b) }
func (readConn) SetReadDeadline(time.Time) error { return nil }

func FuzzFramesOfALink(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 9})
	f.Add(make([]byte, 3*linkHead))
	f.Add(bytes.Repeat([]byte{255}, 100))
	f.Fuzz(func(t *testing.T, message []byte) {
		got := 0
		err := readLink(readConn{in: bytes.NewReader(message)}, func(_ Tag, d []byte) {
			if got += linkHead + len(d); len(d) == 0 || len(d) > MaxDatagram {
				t.Fatalf("a datagram of %d bytes", len(d))
			}
		})
		if err == nil || got > len(message) {
			t.Fatalf("%d bytes of %d, %v", got, len(message), err)
		}
	})
}

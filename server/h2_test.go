package server

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/identity"
)

// Frames of HTTP/2 (RFC 9113, section 6), as far as attacks take them.
const (
	h2Data         = 0
	h2Headers      = 1
	h2Reset        = 3
	h2Settings     = 4
	h2Ping         = 6
	h2GoAway       = 7
	h2WindowUpdate = 8
	h2Continuation = 9

	h2EndHeaders = 4

	// h2Calm is what HTTP/2 calls ENHANCE_YOUR_CALM.
	h2Calm = 0xb
)

// rawH2 is a client that says what it wants and not what HTTP/2 wants.
type rawH2 struct {
	conn *tls.Conn
	// told is closed when the server has said its last; goAway is the code with
	// which it ended the connection.
	told   chan struct{}
	goAway atomic.Uint32
	resets atomic.Int64
	// windows counts the streams that got more room, ends the calls that were answered.
	windows, ends atomic.Int64
}

// raw connects as a cluster and says no more than the preface.
func (p *peerTest) raw(t *testing.T, as *identity.Source) *rawH2 {
	t.Helper()
	r := p.rawSilent(t, as)
	go r.read()
	return r
}

// rawSilent connects and never reads.
func (p *peerTest) rawSilent(t *testing.T, as *identity.Source) *rawH2 {
	t.Helper()
	conn, err := tls.Dial("tcp", p.address, as.ClientTLS(p.self.ID(), nil, "", "h2"))
	if err != nil {
		t.Fatal(err)
	}
	return greet(t, conn)
}

// greet says the preface and no more.
func greet(t *testing.T, conn *tls.Conn) *rawH2 {
	t.Helper()
	r := &rawH2{conn: conn, told: make(chan struct{})}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := r.frame(h2Settings, 0, 0, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rawH2) read() {
	defer close(r.told)
	for {
		var head [9]byte
		if _, err := io.ReadFull(r.conn, head[:]); err != nil {
			return
		}
		body := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(r.conn, body); err != nil {
			return
		}
		switch head[3] {
		case h2GoAway:
			if len(body) >= 8 {
				r.goAway.Store(binary.BigEndian.Uint32(body[4:]))
			}
		case h2Reset:
			r.resets.Add(1)
		case h2Headers:
			if head[4]&1 != 0 {
				r.ends.Add(1)
			}
		case h2WindowUpdate:
			if binary.BigEndian.Uint32(head[5:]) != 0 {
				r.windows.Add(1)
			}
		}
	}
}

func (r *rawH2) frame(kind, flags byte, stream uint32, body []byte) error {
	_, err := r.conn.Write(h2Frame(nil, kind, flags, stream, body))
	return err
}

// h2Frame appends a frame.
func h2Frame(b []byte, kind, flags byte, stream uint32, body []byte) []byte {
	b = append(b, byte(len(body)>>16), byte(len(body)>>8), byte(len(body)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), body...)
}

// h2Message is the beginning of a message of gRPC, not compressed, that has so many
// bytes, and as many of them as there are.
func h2Message(size int, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), body...)
}

// call begins a call and sends nothing of its message. Headers are written
// literally (RFC 7541, section 6.2.2), short ones.
func (r *rawH2) call(stream uint32, method string) error { return r.callWith(stream, method) }

func (r *rawH2) callWith(stream uint32, method string, more ...[2]string) error {
	var block []byte
	for _, h := range append([][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "x"}, {"te", "trailers"}, {"content-type", "application/grpc"},
	}, more...) {
		block = append(append(append(append(block, 0, byte(len(h[0]))), h[0]...), byte(len(h[1]))), h[1]...)
	}
	return r.frame(h2Headers, h2EndHeaders, stream, block)
}

// announce begins a call and a message of the largest size, and waits for the room
// for it. False: the connection ended.
func (r *rawH2) announce(t *testing.T, stream uint32, method string) bool {
	t.Helper()
	return r.announced(t, stream, method, r.windows.Load)
}

// announced waits until there are more answers of a kind than before.
func (r *rawH2) announced(t *testing.T, stream uint32, method string, answers func() int64) bool {
	t.Helper()
	had := answers()
	if r.call(stream, method) != nil || r.frame(h2Data, 0, stream, h2Message(MaxMessage)) != nil {
		return false
	}
	for end := time.Now().Add(patience); answers() == had; time.Sleep(time.Millisecond) {
		select {
		case <-r.told:
			return false
		default:
		}
		if time.Now().After(end) {
			t.Fatal("no room was made for the message")
		}
	}
	return true
}

func (r *rawH2) cut() bool {
	select {
	case <-r.told:
		return true
	case <-time.After(patience):
		return false
	}
}

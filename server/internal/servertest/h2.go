package servertest

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"
)

// Frames of HTTP/2 (RFC 9113, section 6) that attacks use.
const (
	FrameData         = 0
	FrameHeaders      = 1
	FrameReset        = 3
	FrameSettings     = 4
	FramePing         = 6
	FrameGoAway       = 7
	FrameWindowUpdate = 8
	FrameContinuation = 9

	FlagEndHeaders = 4

	// EnhanceYourCalm is what HTTP/2 calls ENHANCE_YOUR_CALM.
	EnhanceYourCalm = 0xb
)

// H2 is a client that sends any frames, whether HTTP/2 allows them or not.
type H2 struct {
	Conn *tls.Conn
	// Closed is closed when the server closed the connection; GoAway is the code with which it
	// did.
	Closed chan struct{}
	GoAway atomic.Uint32
	Resets atomic.Int64
	// Windows counts the streams that got more room, ends the calls that were answered.
	Windows, Ends atomic.Int64
	pongs         atomic.Int64
}

// Greet sends the preface and nothing else.
func Greet(t *testing.T, conn *tls.Conn) *H2 {
	t.Helper()
	r := &H2{Conn: conn, Closed: make(chan struct{})}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := r.Frame(FrameSettings, 0, 0, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *H2) Read() {
	defer close(r.Closed)
	for {
		var head [9]byte
		if _, err := io.ReadFull(r.Conn, head[:]); err != nil {
			return
		}
		body := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(r.Conn, body); err != nil {
			return
		}
		switch head[3] {
		case FrameGoAway:
			if len(body) >= 8 {
				r.GoAway.Store(binary.BigEndian.Uint32(body[4:]))
			}
		case FramePing:
			r.pongs.Add(int64(head[4] & 1))
		case FrameReset:
			r.Resets.Add(1)
		case FrameHeaders:
			if head[4]&1 != 0 {
				r.Ends.Add(1)
			}
		case FrameWindowUpdate:
			if binary.BigEndian.Uint32(head[5:]) != 0 {
				r.Windows.Add(1)
			}
		}
	}
}

// Frame sends a frame.
func (r *H2) Frame(kind, flags byte, stream uint32, body []byte) error {
	_, err := r.Conn.Write(Frame(nil, kind, flags, stream, body))
	return err
}

// Frame appends a frame.
func Frame(b []byte, kind, flags byte, stream uint32, body []byte) []byte {
	b = append(b, byte(len(body)>>16), byte(len(body)>>8), byte(len(body)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), body...)
}

// Message is the prefix of an uncompressed gRPC message of size bytes, and the bytes of body,
// which may be fewer.
func Message(size int, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), body...)
}

// Call begins a call and sends no part of its message. Headers are written literally (RFC 7541,
// section 6.2.2) and have to be short.
func (r *H2) Call(stream uint32, method string) error { return r.CallWith(stream, method) }

// CallWith is Call with more headers.
func (r *H2) CallWith(stream uint32, method string, more ...[2]string) error {
	var block []byte
	for _, h := range append([][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", "x"}, {"te", "trailers"}, {"content-type", "application/grpc"},
	}, more...) {
		block = append(append(append(append(block, 0, byte(len(h[0]))), h[0]...), byte(len(h[1]))), h[1]...)
	}
	return r.Frame(FrameHeaders, FlagEndHeaders, stream, block)
}

// Announce begins a call and a message of size bytes, and waits until the server made room for it
// or refused the call. It returns false if the connection ended.
func (r *H2) Announce(t *testing.T, stream uint32, method string, size int) bool {
	t.Helper()
	return r.answered(t, func() int64 { return r.Windows.Load() + r.Resets.Load() }, func() error {
		return errors.Join(r.Call(stream, method), r.Frame(FrameData, 0, stream, Message(size)))
	})
}

// Reached waits until the server has read all that was sent: a ping that is sent last is
// acknowledged. It returns false if the connection ended.
func (r *H2) Reached(t *testing.T) bool {
	t.Helper()
	return r.answered(t, r.pongs.Load, func() error { return r.Frame(FramePing, 0, 0, make([]byte, 8)) })
}

// answered sends and waits until answers counts one more. It returns false if the connection ended.
func (r *H2) answered(t *testing.T, answers func() int64, send func() error) bool {
	t.Helper()
	had := answers()
	if send() != nil {
		return false
	}
	for end := time.Now().Add(Patience); answers() == had; time.Sleep(time.Millisecond) {
		select {
		case <-r.Closed:
			return false
		default:
		}
		if time.Now().After(end) {
			t.Fatal("the server does not answer")
		}
	}
	return true
}

// Cut waits until the connection ended, and reports whether it did.
func (r *H2) Cut() bool {
	select {
	case <-r.Closed:
		return true
	case <-time.After(Patience):
		return false
	}
}

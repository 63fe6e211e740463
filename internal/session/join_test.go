package session

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/entente-dev/entente/internal/identity"
)

// sink counts what is written to it.
type sink struct {
	net.Conn
	got    bytes.Buffer
	writes int
	err    error
}

func (s *sink) Write(b []byte) (int, error) {
	s.writes++
	if s.err != nil {
		return 0, s.err
	}
	return s.got.Write(b)
}

func joining(s *sink) *joiningConn { return &joiningConn{Conn: s, spare: new(sync.Pool)} }

func TestAFrameIsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	body := func(n uint32) []byte { return bytes.Repeat([]byte{7}, int(n)) }
	data := func(n uint32) []byte { return frame(yamuxData, 0, 1, n) }
	for _, tt := range []struct {
		name   string
		writes [][]byte
		want   int
	}{
		{"data", [][]byte{data(5), body(5)}, 1},
		{"the most that is joined", [][]byte{data(joinMost - yamuxHeader), body(joinMost - yamuxHeader)}, 1},
		{"more than that", [][]byte{data(joinMost), body(joinMost)}, 2},
		{"data without a body", [][]byte{data(0)}, 1},
		{"the opening of a stream with data", [][]byte{frame(yamuxData, yamuxSYN, 1, 5), body(5)}, 1},
		{"a window, whose length is not that of a body", [][]byte{frame(yamuxWindow, 0, 1, 5)}, 1},
		{"a ping, whose length is not that of a body", [][]byte{frame(yamuxPing, yamuxSYN, 0, 5)}, 1},
		{"the end", [][]byte{frame(yamuxGoAway, 0, 0, 1)}, 1},
		{"all of them", [][]byte{frame(yamuxPing, 0, 0, 9), data(5), body(5), frame(yamuxWindow, 0, 1, 9), data(0), data(9), body(9)}, 5},
		{"a body in pieces", [][]byte{data(9), body(4), body(5), data(1), body(1)}, 3},
		{"a body that looks like a header", [][]byte{data(24), data(5), data(5), data(1), body(1)}, 3},
		{"a header in pieces", [][]byte{data(5)[:3], data(5)[3:], body(5), data(1), body(1)}, 4},
		{"a header with the body in it", [][]byte{append(data(5), body(5)...), data(1), body(1)}, 2},
		{"nothing", [][]byte{data(5), nil, body(5)}, 2},
	} {
		var s sink
		c := joining(&s)
		for _, b := range tt.writes {
			if n, err := c.Write(b); n != len(b) || err != nil {
				t.Errorf("%s: %d, %v", tt.name, n, err)
			}
		}
		if want := bytes.Join(tt.writes, nil); !bytes.Equal(s.got.Bytes(), want) {
			t.Errorf("%s: %x, want %x", tt.name, s.got.Bytes(), want)
		}
		if s.writes != tt.want {
			t.Errorf("%s: %d writes, want %d", tt.name, s.writes, tt.want)
		}
	}
}

func TestAWriteThatFailsReturnsItsError(t *testing.T) {
	t.Parallel()
	for _, size := range []int{5, joinMost} {
		s := sink{err: io.ErrClosedPipe}
		c := joining(&s)
		if _, err := c.Write(frame(yamuxData, 0, 1, uint32(size))); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Write(make([]byte, size)); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%d bytes: %d, %v", size, n, err)
		}
	}
}

// Whatever the frames and the pieces they are written in, the same bytes arrive.
func FuzzJoining(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, seed1, seed2 uint64) {
		r := rand.New(rand.NewPCG(seed1, seed2))
		var s sink
		c := joining(&s)
		var want []byte
		for range 40 {
			kind := byte(r.IntN(4))
			size := uint32(0)
			if r.IntN(4) > 0 {
				size = uint32(r.IntN(1 << (1 + r.IntN(13))))
			}
			b := frame(kind, uint16(r.IntN(16)), uint32(r.IntN(9)), size)
			if kind == yamuxData {
				for range size {
					b = append(b, byte(r.IntN(3)))
				}
			}
			want = append(want, b...)
			cut := min(yamuxHeader, len(b)) // as yamux does
			for len(b) > 0 {
				if r.IntN(3) == 0 {
					cut = r.IntN(len(b) + 1)
				}
				if n, err := c.Write(b[:cut]); n != cut || err != nil {
					t.Fatalf("%d of %d, %v", n, cut, err)
				}
				b = b[cut:]
				cut = len(b)
			}
			if !bytes.Equal(s.got.Bytes(), want) {
				t.Fatalf("after a frame of kind %d and %d bytes: %x, want %x", kind, size, s.got.Bytes(), want)
			}
		}
	})
}

// countingConn counts the writes below TLS.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// BenchmarkStreamWrite writes on a stream over TLS and loopback, frame by frame or as
// yamux does by itself.
func BenchmarkStreamWrite(b *testing.B) {
	id, err := identity.Generate(time.Now())
	if err != nil {
		b.Fatal(err)
	}
	source, err := identity.NewSource(identity.SourceConfig{Identity: id})
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{64, 1 << 10, 16 << 10} {
		for _, joined := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/joined=%t", size, joined), func(b *testing.B) {
				l, err := tls.Listen("tcp", "127.0.0.1:0", source.ServerTLS(nil, protoSession))
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				read := make(chan error, 1)
				cfg := yamux.DefaultConfig()
				cfg.LogOutput, cfg.MaxStreamWindowSize = io.Discard, streamWindow
				go func() {
					read <- func() error {
						conn, err := l.Accept()
						if err != nil {
							return err
						}
						mux, err := yamux.Server(conn, cfg)
						if err != nil {
							return err
						}
						defer mux.Close()
						stream, err := mux.AcceptStreamWithContext(b.Context())
						if err != nil {
							return err
						}
						_, err = io.Copy(io.Discard, stream)
						return err
					}()
				}()
				raw, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				var writes atomic.Int64
				var conn net.Conn = tls.Client(countingConn{raw, &writes}, source.ClientTLS(id.ID(), nil, "", protoSession))
				if joined {
					conn = &joiningConn{Conn: conn, spare: new(sync.Pool)}
				}
				mux, err := yamux.Client(conn, cfg)
				if err != nil {
					b.Fatal(err)
				}
				stream, err := mux.OpenStream()
				if err != nil {
					b.Fatal(err)
				}
				body := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				before := writes.Load()
				for b.Loop() {
					if _, err := stream.Write(body); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(writes.Load()-before)/float64(b.N), "writes/op")
				_ = stream.Close()
				if err := <-read; err != nil {
					b.Error(err)
				}
				_ = mux.Close()
			})
		}
	}
}

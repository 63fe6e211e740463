package server

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/internal/wire"
)

// adminIntake bounds what callers of the admin API can make this process keep before
// anybody knows who they are. gRPC over net/http reads a call's body to its end,
// whether or not anybody takes it, and REST decodes it. So a body is let through a
// message at a time, each of which has to come as a whole in time, and those of one
// address, and of all, are bounded in bytes until their calls are over.
type adminIntake struct {
	// address, all and patience are AdminUnread, AdminAllUnread and AdminBodyTimeout.
	address, all int64
	patience     time.Duration

	mu    sync.Mutex
	total int64
	held  map[string]int64
}

func newAdminIntake() *adminIntake {
	return &adminIntake{address: AdminUnread, all: AdminAllUnread, patience: AdminBodyTimeout, held: make(map[string]int64)}
}

var (
	errBodyTooLong  = errors.New("server: the body is too long")
	errBodiesTooBig = &wire.Error{Reason: wire.ReasonTooManyCalls, Message: "too much is being read from this address", RetryAfter: time.Second}
)

// bounded is a handler whose requests' bodies are bounded.
func (in *adminIntake) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &boundedBody{
			in: in, below: r.Body, address: addressKey(r.RemoteAddr), framed: r.ProtoMajor == 2 && isGRPC(r.Header.Get("Content-Type")),
			deadline: http.NewResponseController(w).SetReadDeadline,
		}
		defer b.release()
		// Not a byte of it is read for a call that has no room for the smallest one.
		if err := b.reserve(adminBodyLeast); err != nil {
			tooMuch(w, b.framed, err)
			return
		}
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// tooMuch answers a call that is not begun.
func tooMuch(w http.ResponseWriter, framed bool, err error) {
	st := wire.FromStatus(err).GRPCStatus()
	h := w.Header()
	h.Set("Retry-After", "1")
	if framed {
		// An answer of trailers alone (gRPC over HTTP/2).
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", strconv.Itoa(int(st.Code())))
		h.Set("Grpc-Message", st.Message())
		if details, err := proto.Marshal(st.Proto()); err == nil {
			h.Set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details))
		}
		w.WriteHeader(http.StatusOK)
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusTooManyRequests)
	if body, err := protojson.Marshal(st.Proto()); err == nil {
		_, _ = w.Write(body)
	}
}

// boundedBody is the body of one request.
type boundedBody struct {
	in       *adminIntake
	below    io.ReadCloser
	address  string
	framed   bool
	deadline func(time.Time) error

	mu       sync.Mutex
	reserved int64
	over     bool

	// Of the reader alone.
	read     bytes.Buffer
	messages int
	all      int64
	err      error
}

// reserve takes bytes of what the address, and all, may hold.
func (b *boundedBody) reserve(n int64) error {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over || b.in.held[b.address]+n > b.in.address || b.in.total+n > b.in.all {
		return errBodiesTooBig
	}
	b.in.held[b.address] += n
	b.in.total += n
	b.reserved += n
	return nil
}

// release gives back all that was taken.
func (b *boundedBody) release() {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.in.total -= b.reserved
	if b.in.held[b.address] -= b.reserved; b.in.held[b.address] <= 0 {
		delete(b.in.held, b.address)
	}
	b.reserved, b.over = 0, true
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.read.Len() == 0 && b.err == nil {
		b.read.Reset()
		b.err = b.next()
	}
	if b.read.Len() > 0 {
		return b.read.Read(p) //nolint:wrapcheck // it has bytes
	}
	return 0, b.err
}

// next reads the next message, or all of a body that has no messages, as a whole: gRPC
// takes 16 KiB for whatever a read brings, if that is one byte.
func (b *boundedBody) next() error {
	if !b.framed {
		err := b.piece(MaxAdminBody + 1)
		if b.read.Len() > MaxAdminBody {
			b.read.Reset()
			return &http.MaxBytesError{Limit: MaxAdminBody}
		}
		// HTTP/1 would take a late deadline for a client that went away.
		if late := b.deadline(time.Time{}); late != nil {
			return late
		}
		return err
	}
	// A stream may wait for its next message as long as it likes.
	var head [5]byte
	if b.messages == 0 {
		if err := b.deadline(time.Now().Add(b.in.patience)); err != nil {
			return err
		}
	}
	if n, err := io.ReadFull(b.below, head[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return io.EOF
		}
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if size > MaxAdminBody || b.messages >= MaxAdminBodyMessages {
		return errBodyTooLong
	}
	b.messages++
	b.read.Write(head[:])
	err := b.piece(size)
	if err == nil {
		return b.deadline(time.Time{})
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	b.read.Reset()
	return err
}

// piece reads so many bytes, in time, into what was reserved for them.
func (b *boundedBody) piece(size int64) error {
	if err := b.deadline(time.Now().Add(b.in.patience)); err != nil {
		return err
	}
	// Room is made as bytes come, not as they are announced.
	var block [4 << 10]byte
	for size > 0 {
		n, err := b.below.Read(block[:min(size, int64(len(block)))])
		size -= int64(n)
		// What it grows to by being decoded counts too, from a small call's size on.
		if b.all += int64(n); b.all*adminGrowth > b.reservedNow() {
			if err := b.reserve(b.all*adminGrowth - b.reservedNow()); err != nil {
				return err
			}
		}
		b.read.Write(block[:n])
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *boundedBody) reservedNow() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reserved
}

// Close implements io.Closer.
func (b *boundedBody) Close() error {
	return b.below.Close() //nolint:wrapcheck // as it was
}

// atMost is a listener that keeps so many connections, so many of them from one
// address, and closes those beyond unread.
func atMost(l net.Listener, all, perAddress int) net.Listener {
	return &countedListener{Listener: l, all: all, perAddress: perAddress, open: make(map[string]int)}
}

type countedListener struct {
	net.Listener
	all, perAddress int

	mu    sync.Mutex
	total int
	open  map[string]int
}

// Accept implements net.Listener.
func (l *countedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http looks at what it is
		}
		address := addressKey(c.RemoteAddr().String())
		l.mu.Lock()
		full := l.total >= l.all || l.open[address] >= l.perAddress
		if !full {
			l.total++
			l.open[address]++
		}
		l.mu.Unlock()
		if full {
			_ = c.Close()
			continue
		}
		return &countedConn{Conn: c, closed: sync.OnceFunc(func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.total--
			if l.open[address]--; l.open[address] == 0 {
				delete(l.open, address)
			}
		})}, nil
	}
}

type countedConn struct {
	net.Conn
	closed func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close() //nolint:wrapcheck // as it was
}

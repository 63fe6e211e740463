package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// adminIntake bounds what callers of the admin API can make this process keep before
// anybody knows who they are. gRPC over net/http reads a call's body to its end,
// whether or not anybody takes it, and REST decodes it. So a body is let through a
// message at a time, each of which has to come as a whole in time, and those of one
// address, and of all, are bounded in bytes until they are taken: by a handler whose
// caller is known, or one that takes next to nothing. A call that goes on then counts
// as little.
type adminIntake struct {
	// address, all and patience are AdminUnread, AdminAllUnread and AdminBodyTimeout.
	address, all int64
	patience     time.Duration

	mu    sync.Mutex
	total int64
	held  map[string]*addressHeld
}

// addressHeld is what one address holds, and by which bodies.
type addressHeld struct {
	bytes  int64
	bodies map[*boundedBody]struct{}
}

func newAdminIntake() *adminIntake {
	return &adminIntake{address: AdminUnread, all: AdminAllUnread, patience: AdminBodyTimeout, held: make(map[string]*addressHeld)}
}

var (
	errBodyTooLong  = errors.New("server: the body is too long")
	errBodyOver     = errors.New("server: the body is over")
	errBodiesTooBig = &peering.Error{Reason: peering.ReasonTooManyCalls, Message: "too much is being read from this address", RetryAfter: time.Second}
	errAllTooBig    = &peering.Error{Reason: peering.ReasonTooManyCalls, Message: "too much is being read from all addresses together", RetryAfter: time.Second}
)

// bodyKey is where a gRPC call's context has its boundedBody.
type bodyKey struct{}

// bounded is a handler whose requests' bodies are bounded.
func (in *adminIntake) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		b := &boundedBody{
			in: in, below: r.Body, remote: r.RemoteAddr, address: middleware.AddressKey(r.RemoteAddr), cancel: cancel, framed: r.ProtoMajor == 2 && isGRPC(r.Header.Get("Content-Type")),
			deadline: http.NewResponseController(w).SetReadDeadline,
		}
		defer b.release()
		// Not a byte of it is read for a call that has no room for the smallest one.
		if err := b.reserve(adminBodyLeast); err != nil {
			tooMuch(w, b.framed, err)
			return
		}
		r = r.WithContext(context.WithValue(ctx, bodyKey{}, b))
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// tooMuch answers a call that is not begun.
func tooMuch(w http.ResponseWriter, framed bool, err error) {
	st := wire.Status(wire.FromStatus(err))
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

// received gives back what was kept for a message once somebody takes it. It belongs
// behind the middleware that finds out who calls.
func (in *adminIntake) received(ctx context.Context, c *middleware.Call, next func(context.Context) error) error {
	b, _ := ctx.Value(bodyKey{}).(*boundedBody)
	if b == nil {
		// The gateway's: REST decoded it before it called.
		p, _ := ctx.Value(presentedKey{}).(presented)
		in.decoded(p.address)
		return next(ctx)
	}
	if c.Request != nil {
		b.taken()
		return next(ctx)
	}
	check := c.Check
	c.Check = func(message any) error {
		if check != nil {
			if err := check(message); err != nil {
				return err
			}
		}
		b.taken()
		return nil
	}
	return next(ctx)
}

// decoded gives back what REST kept for bodies that came as a whole on a connection
// whose caller is known by now.
func (in *adminIntake) decoded(remote string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	h := in.held[middleware.AddressKey(remote)]
	if h == nil {
		return
	}
	for b := range h.bodies {
		if b.remote == remote && b.whole {
			b.unread, b.settled = 0, true
			b.shrink()
		}
	}
}

// makeRoom cuts off bodies that nobody took of whoever holds the most, for one that
// would hold less than that, and no more than its share. It is called with the lock.
func (in *adminIntake) makeRoom(b *boundedBody, n int64) error {
	would, holders := n, len(in.held)
	if h := in.held[b.address]; h != nil {
		would += h.bytes
	} else {
		holders++
	}
	if would > max(in.all/int64(holders), adminGrowth*MaxBody) {
		return errAllTooBig
	}
	for in.total+n > in.all {
		var most *boundedBody
		least := would
		for address, h := range in.held {
			var bytes int64
			var largest *boundedBody
			for o := range h.bodies {
				if o.settled {
					continue
				}
				if bytes += o.reserved; largest == nil || o.reserved > largest.reserved {
					largest = o
				}
			}
			if address != b.address && bytes > least {
				most, least = largest, bytes
			}
		}
		if most == nil {
			return errAllTooBig
		}
		most.end()
		most.cancel(errAllTooBig)
	}
	return nil
}

// boundedBody is the body of one request.
type boundedBody struct {
	in       *adminIntake
	below    io.ReadCloser
	remote   string
	address  string
	framed   bool
	deadline func(time.Time) error
	cancel   context.CancelCauseFunc

	// using is held while the deadline is set, which waits for the connection, and
	// before the intake's lock.
	using sync.Mutex
	// Under the intake's lock. unread is how many bytes were read that nobody took,
	// waiting how many of them each message has that came as a whole, and piecing says
	// that one is coming. settled says that nobody unknown has anything to do with it
	// any more, whole that REST has it all, and over that nothing is to be read.
	reserved, unread              int64
	waiting                       []int64
	piecing, settled, whole, over bool

	// Of the reader alone.
	read     bytes.Buffer
	messages int
	err      error
}

// reserve takes bytes of what the address, and all, may hold.
func (b *boundedBody) reserve(n int64) error {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	return b.reserveLocked(n)
}

func (b *boundedBody) reserveLocked(n int64) error {
	if b.over {
		return errBodyOver
	}
	h := b.in.held[b.address]
	if h != nil && h.bytes+n > b.in.address || n > b.in.address {
		return errBodiesTooBig
	}
	if b.in.total+n > b.in.all {
		if err := b.in.makeRoom(b, n); err != nil {
			return err
		}
	}
	if h == nil {
		h = &addressHeld{bodies: make(map[*boundedBody]struct{})}
		b.in.held[b.address] = h
	}
	h.bodies[b] = struct{}{}
	h.bytes += n
	b.in.total += n
	b.reserved += n
	return nil
}

// grow counts bytes that came. What they grow to by being decoded counts too, from a
// small call's size on.
func (b *boundedBody) grow(n int64) error {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	if b.over {
		return errBodyOver
	}
	b.unread += n
	b.settled = false
	if more := b.unread*adminGrowth - b.reserved; more > 0 {
		return b.reserveLocked(more)
	}
	return nil
}

// shrink gives back what is not needed for what is unread. It is called with the lock.
func (b *boundedBody) shrink() {
	least := max(b.unread*adminGrowth, adminBodyTaken)
	if back := b.reserved - least; back > 0 && !b.over {
		b.reserved -= back
		b.in.held[b.address].bytes -= back
		b.in.total -= back
	}
}

// end gives back all that was taken; nothing more is read. It is called with the lock.
func (b *boundedBody) end() {
	if h := b.in.held[b.address]; h != nil && b.reserved > 0 {
		b.in.total -= b.reserved
		h.bytes -= b.reserved
		if delete(h.bodies, b); len(h.bodies) == 0 {
			delete(b.in.held, b.address)
		}
	}
	b.reserved, b.over = 0, true
}

// release is end for the handler: after it, nothing of the request may be used.
func (b *boundedBody) release() {
	b.using.Lock()
	defer b.using.Unlock()
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	b.end()
}

// taken says that somebody has the next message.
func (b *boundedBody) taken() {
	b.using.Lock()
	defer b.using.Unlock()
	if b.forget() {
		// A stream may wait for its next message as long as it likes.
		_ = b.deadline(time.Time{})
	}
}

// forget counts the oldest message no longer, and says whether no other one came, or is
// coming.
func (b *boundedBody) forget() bool {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	// gRPC's handlers may outlive their request.
	if b.over || len(b.waiting) == 0 {
		return false
	}
	b.unread -= b.waiting[0]
	b.waiting = b.waiting[1:]
	b.settled = b.unread == 0
	b.shrink()
	return len(b.waiting) == 0 && !b.piecing
}

// begin gives what is about to be read its time.
func (b *boundedBody) begin() error {
	b.using.Lock()
	defer b.using.Unlock()
	b.in.mu.Lock()
	b.piecing = true
	b.in.mu.Unlock()
	return b.deadline(time.Now().Add(b.in.patience))
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
		err := b.piece(MaxBody + 1)
		if b.read.Len() > MaxBody {
			b.read.Reset()
			return &http.MaxBytesError{Limit: MaxBody}
		}
		// HTTP/1 would take a late deadline for a client that went away.
		if late := b.deadline(time.Time{}); late != nil {
			return late
		}
		b.in.mu.Lock()
		b.whole = errors.Is(err, io.EOF)
		b.in.mu.Unlock()
		return err
	}
	var head [5]byte
	if b.messages == 0 {
		if err := b.deadline(time.Now().Add(b.in.patience)); err != nil {
			return err
		}
	}
	if n, err := io.ReadFull(b.below, head[:]); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			_ = b.deadline(time.Time{})
			return io.EOF
		}
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if size > MaxBody || b.messages >= MaxBodyMessages {
		return errBodyTooLong
	}
	b.messages++
	b.read.Write(head[:])
	err := b.piece(size)
	if err == nil {
		// The deadline stays until it is taken: gRPC hands out the one message of a
		// call only when it knows that there is no other.
		b.in.mu.Lock()
		defer b.in.mu.Unlock()
		b.piecing = false
		b.waiting = append(b.waiting, size)
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	b.read.Reset()
	return err
}

// piece reads so many bytes, in time, into what was reserved for them.
func (b *boundedBody) piece(size int64) error {
	if err := b.begin(); err != nil {
		return err
	}
	// Room is made as bytes come, not as they are announced.
	var block [4 << 10]byte
	for size > 0 {
		n, err := b.below.Read(block[:min(size, int64(len(block)))])
		size -= int64(n)
		if err := b.grow(int64(n)); err != nil {
			return err
		}
		b.read.Write(block[:n])
		if err != nil {
			return err
		}
	}
	return nil
}

// Close implements io.Closer.
func (b *boundedBody) Close() error {
	return b.below.Close() //nolint:wrapcheck // as it was
}

// atMost is a listener that keeps so many connections from loopback, and so many from
// other addresses, no more than perAddress of them from one. It closes those beyond
// unread, but a newcomer from an address that has few takes the place of the oldest one
// of the address that has the most.
func atMost(l net.Listener, loopback, others, perAddress int) net.Listener {
	return &countedListener{
		Listener: l, perAddress: perAddress,
		loopback: connections{limit: loopback, open: make(map[string][]*countedConn)},
		others:   connections{limit: others, open: make(map[string][]*countedConn)},
	}
}

type countedListener struct {
	net.Listener
	perAddress int

	mu               sync.Mutex
	loopback, others connections
}

// connections is those that share a limit, by address, the oldest first.
type connections struct {
	limit, total int
	open         map[string][]*countedConn
}

// Accept implements net.Listener.
func (l *countedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http looks at what it is
		}
		kept, instead := l.keep(c)
		if instead != nil {
			_ = instead.Close()
		}
		if kept == nil {
			_ = c.Close()
			continue
		}
		return kept, nil
	}
}

// keep counts a connection, unless there is no place for it, and returns the one whose
// place it took.
func (l *countedListener) keep(c net.Conn) (kept, instead *countedConn) {
	remote := c.RemoteAddr().String()
	kept = &countedConn{Conn: c, l: l, address: middleware.AddressKey(remote), among: &l.others}
	perAddress := l.perAddress
	if at, err := netip.ParseAddrPort(remote); err == nil && at.Addr().Unmap().IsLoopback() {
		// The API server's port-forwarding: nobody else can have these addresses.
		kept.among, kept.address, perAddress = &l.loopback, "loopback", l.loopback.limit
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	has := len(kept.among.open[kept.address])
	if has >= perAddress {
		return nil, nil
	}
	if kept.among.total >= kept.among.limit {
		most := has + 1
		for _, open := range kept.among.open {
			if len(open) > most {
				most, instead = len(open), open[0]
			}
		}
		if instead == nil {
			return nil, nil
		}
		instead.forget()
	}
	kept.among.total++
	kept.among.open[kept.address] = append(kept.among.open[kept.address], kept)
	return kept, instead
}

type countedConn struct {
	net.Conn
	l       *countedListener
	address string
	among   *connections
}

// forget gives its place back, once. It is called with the lock.
func (c *countedConn) forget() {
	open := c.among.open[c.address]
	i := slices.Index(open, c)
	if i < 0 {
		return
	}
	c.among.total--
	if open = slices.Delete(open, i, i+1); len(open) == 0 {
		delete(c.among.open, c.address)
		return
	}
	c.among.open[c.address] = open
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.l.mu.Lock()
	c.forget()
	c.l.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // as it was
}

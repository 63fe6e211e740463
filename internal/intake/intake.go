package intake

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
)

// Config configures a Meter. All of it is required.
type Config struct {
	// Log takes a line when a connection is cut off, at most one a minute.
	Log *slog.Logger
	// Sender returns the name under which a connection's bytes are counted, and whether that is a
	// trusted peer. Stranger is the limit of all others, whose calls are ended first.
	Sender func(remote net.Addr, auth credentials.AuthInfo) (name string, trusted bool)
	// Call, Peer, Stranger and All are the limits of unread bytes of one call, one trusted peer,
	// one other sender, and all senders together.
	Call, Peer, Stranger, All int64
	// EndTimeout is how long gRPC may take to release a call that was ended, before the call's
	// connection is closed, and WriteTimeout how long a caller may take to read what is sent to
	// it.
	EndTimeout, WriteTimeout time.Duration
	// ReadBuffer is how many bytes are read at once if gRPC asks for fewer.
	ReadBuffer int
}

// Meter counts the bytes of messages that no handler has read. It is a stats.Handler, and
// needs to be the server's. The server's own read buffer has to be off
// (grpc.ReadBufferSize(0)), so that a call's headers are the last thing that was read when
// Begin is called.
type Meter struct {
	cfg  Config
	warn rate.Sometimes

	mu      sync.Mutex
	unread  int64
	senders map[string]*sender
}

// sender is a client with one or more connections. The Meter's lock guards it.
type sender struct {
	conns   map[*conn]struct{}
	limit   int64
	trusted bool
	unread  int64
}

// call is what was received for one call. The Meter's lock guards all but conn and gone.
type call struct {
	conn *conn
	// gone is closed when gRPC has released the call.
	gone chan struct{}
	// end ends the call. It must not block.
	end   func()
	ended bool
	// stream means that messages are released one by one.
	stream bool
	// frames has the frames with unread bytes of messages, the oldest first, and unread is their
	// cost.
	frames []frame
	unread int64
}

// frame is a DATA frame: how many of its bytes are unread, and its cost.
type frame struct{ unread, cost uint32 }

// ErrUnreadLimit is the reason for which the Meter ends a call.
var ErrUnreadLimit = errors.New("the call was sent more than its handler reads")

var errRefusedTooOften = errors.New("intake: the caller goes on calling although it is refused")

// New returns a Meter without connections.
func New(cfg Config) *Meter {
	return &Meter{cfg: cfg, senders: make(map[string]*sender), warn: rate.Sometimes{Interval: time.Minute}}
}

// Unread returns the cost of all unread bytes.
func (m *Meter) Unread() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unread
}

// Conns returns how many connections are open.
func (m *Meter) Conns() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.senders {
		n += len(s.conns)
	}
	return n
}

type callKey struct{}

// Begin counts what is sent to a call, from its headers on. It returns the call's context, and is
// for gRPC's tap (grpc.InTapHandle).
func (m *Meter) Begin(ctx context.Context) context.Context {
	c := connOf(ctx)
	if c == nil {
		return ctx
	}
	// gRPC ends its own context when it releases the call. The returned one ends when the call has
	// to end.
	own, cancel := context.WithCancelCause(ctx)
	one := &call{conn: c, gone: make(chan struct{}), end: func() { cancel(ErrUnreadLimit) }}
	m.mu.Lock()
	defer m.mu.Unlock()
	id := c.stream
	c.calls[id] = one
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(c.calls, id)
		m.add(one, -one.unread)
		one.frames, one.ended = nil, true
		close(one.gone)
	})
	return context.WithValue(own, callKey{}, one)
}

// Refused counts a call that gRPC's tap refuses. After limit of them the connection is no longer
// read, so that gRPC closes it: gRPC keeps the context of a refused call until the connection
// ends.
func (m *Meter) Refused(ctx context.Context, limit int) {
	if c := connOf(ctx); c != nil {
		c.refused++
		c.shut = c.refused > limit
	}
}

func connOf(ctx context.Context) *conn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(addr); ok {
			return a.conn
		}
	}
	return nil
}

// OnEnd makes the Meter end a call by end, which it calls at most once and from a goroutine
// of its own, and no longer by the end of the call's context.
func OnEnd(ctx context.Context, end func(error)) {
	one, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return
	}
	one.conn.meter.mu.Lock()
	defer one.conn.meter.mu.Unlock()
	// end takes locks of gRPC's, and gRPC takes the Meter's lock while it holds those.
	one.end = func() { go end(ErrUnreadLimit) }
	if errors.Is(context.Cause(ctx), ErrUnreadLimit) {
		one.end() // before the handler began
	}
}

// add changes the unread cost of a call. The caller holds the lock.
func (m *Meter) add(one *call, cost int64) {
	one.unread += cost
	one.conn.from.unread += cost
	m.unread += cost
	m.forget(one.conn)
}

// forget removes a connection's sender once it has no connection and no unread bytes. The caller
// holds the lock.
func (m *Meter) forget(c *conn) {
	if len(c.from.conns) == 0 && c.from.unread == 0 && m.senders[c.name] == c.from {
		delete(m.senders, c.name)
	}
}

// read releases a message of n bytes, which a stream's handler has received.
func (m *Meter) read(one *call, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n > 0 && len(one.frames) > 0 {
		first := &one.frames[0]
		part := min(n, int(first.unread))
		n -= part
		if first.unread -= uint32(part); first.unread == 0 {
			m.add(one, -int64(first.cost))
			one.frames = one.frames[1:]
		}
	}
}

// relieve ends calls until every limit is kept, and returns once gRPC has released them. c is the
// connection that was read. The caller holds the lock, which relieve releases while it waits.
func (m *Meter) relieve(c *conn) {
	for one := m.excess(c); one != nil; one = m.excess(c) {
		one.ended = true
		one.end()
		m.mu.Unlock()
		select {
		case <-one.gone:
		case <-time.After(m.cfg.EndTimeout):
			m.cutOff(one.conn, "its calls do not end")
			// Close may block for as long as the other side does not read.
			go func() { _ = one.conn.Close() }()
		}
		m.mu.Lock()
	}
}

// excess returns the call to end next, or nil if every limit is kept or no call is left. The
// caller holds the lock.
func (m *Meter) excess(c *conn) *call {
	switch {
	case c.now != nil && c.now.unread > m.cfg.Call && !c.now.ended:
		return c.now
	case c.from.unread > c.from.limit:
		return c.from.largest()
	case m.unread > m.cfg.All:
		return m.most().largest()
	}
	return nil
}

// largest returns the call of a sender with the most unread bytes, or nil if no call is left to
// end. The caller holds the lock.
func (s *sender) largest() *call {
	var largest *call
	if s == nil {
		return nil
	}
	for c := range s.conns {
		for _, one := range c.calls {
			if one.unread > 0 && !one.ended && (largest == nil || one.unread > largest.unread) {
				largest = one
			}
		}
	}
	return largest
}

// most returns the sender with the most unread bytes: a trusted one only if no other has any. The
// caller holds the lock.
func (m *Meter) most() *sender {
	var most *sender
	for _, s := range m.senders {
		switch {
		case s.unread == 0:
		case most == nil, most.trusted && !s.trusted, most.trusted == s.trusted && s.unread > most.unread:
			most = s
		}
	}
	return most
}

func (m *Meter) cutOff(c *conn, why string) {
	m.warn.Do(func() {
		m.cfg.Log.Warn("connection of a caller cut off", "why", why, "caller", c.name, "remote", c.Conn.RemoteAddr().String())
	})
}

type connKey struct{}

// TagConn implements stats.Handler. It makes the contexts of a connection's calls end with
// the connection: gRPC leaves those of refused calls to the caller's deadline.
func (*Meter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, connKey{}, cancel)
}

// HandleConn implements stats.Handler.
func (*Meter) HandleConn(ctx context.Context, s stats.ConnStats) {
	if cancel, ok := ctx.Value(connKey{}).(context.CancelFunc); ok {
		if _, ok := s.(*stats.ConnEnd); ok {
			cancel()
		}
	}
}

// TagRPC implements stats.Handler.
func (*Meter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (m *Meter) HandleRPC(ctx context.Context, s stats.RPCStats) {
	one, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return
	}
	switch s := s.(type) {
	case *stats.Begin:
		one.stream = s.IsClientStream || s.IsServerStream
	case *stats.InPayload:
		if one.stream {
			m.read(one, s.WireLength)
		}
	}
}

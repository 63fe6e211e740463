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
	// Sender returns on whose account a connection's bytes are, and whether that is a
	// trusted peer: of others Stranger is the limit, and they are ended first.
	Sender func(remote net.Addr, auth credentials.AuthInfo) (name string, trusted bool)
	// Call, Peer, Stranger and All are how many bytes may be unread of one call, one
	// trusted peer, one other sender, and all senders together.
	Call, Peer, Stranger, All int64
	// EndTimeout is how long gRPC may take to let go of a call that was ended, before the
	// call's connection is closed, and WriteTimeout how long a caller may take to read
	// what it is sent.
	EndTimeout, WriteTimeout time.Duration
	// ReadBuffer is the number of bytes that are read at once where gRPC asked for fewer.
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
	held    int64
	senders map[string]*sender
}

// sender is who sends over one or more connections. The Meter's lock guards it.
type sender struct {
	conns   map[*conn]struct{}
	limit   int64
	trusted bool
	held    int64
}

// call is what was received for one call. The Meter's lock guards all but conn and gone.
type call struct {
	conn *conn
	// gone is closed when gRPC has let go of the call.
	gone chan struct{}
	// end ends the call. It must not block.
	end   func()
	ended bool
	// stream says that messages are released one by one.
	stream bool
	// frames is the frames with unread bytes of messages, the oldest first, and held what
	// they cost.
	frames []frame
	held   int64
}

// frame is a DATA frame: how many bytes of it are unread, and what it costs.
type frame struct{ unread, cost uint32 }

// ErrHeldTooMuch is why the Meter ends a call.
var ErrHeldTooMuch = errors.New("the call was sent more than its handler reads")

var errRefusedTooOften = errors.New("intake: the caller goes on calling though it is refused")

// New returns a Meter of no connections.
func New(cfg Config) *Meter {
	return &Meter{cfg: cfg, senders: make(map[string]*sender), warn: rate.Sometimes{Interval: time.Minute}}
}

// Held returns how many bytes are counted.
func (m *Meter) Held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held
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

// Begin counts what the call is sent, from its headers on. It returns the call's context,
// and is for gRPC's tap (grpc.InTapHandle).
func (m *Meter) Begin(ctx context.Context) context.Context {
	c := connOf(ctx)
	if c == nil {
		return ctx
	}
	// gRPC ends the context that it made when it lets go of the call. The one that is
	// returned ends when the call has to.
	own, cancel := context.WithCancelCause(ctx)
	one := &call{conn: c, gone: make(chan struct{}), end: func() { cancel(ErrHeldTooMuch) }}
	m.mu.Lock()
	defer m.mu.Unlock()
	id := c.stream
	c.calls[id] = one
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(c.calls, id)
		m.add(one, -one.held)
		one.frames, one.ended = nil, true
		close(one.gone)
	})
	return context.WithValue(own, callKey{}, one)
}

// Refused counts a call that gRPC's tap refuses. After limit of them the connection is
// read no more, so that gRPC closes it: gRPC keeps the context of a refused call until the
// connection ends.
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
	one.end = func() { go end(ErrHeldTooMuch) }
	if errors.Is(context.Cause(ctx), ErrHeldTooMuch) {
		one.end() // before the handler began
	}
}

// add changes what a call holds. The lock is held.
func (m *Meter) add(one *call, cost int64) {
	one.held += cost
	one.conn.from.held += cost
	m.held += cost
	m.forget(one.conn)
}

// forget forgets a connection's sender once it has no connection and holds nothing. The
// lock is held.
func (m *Meter) forget(c *conn) {
	if len(c.from.conns) == 0 && c.from.held == 0 && m.senders[c.name] == c.from {
		delete(m.senders, c.name)
	}
}

// read says that a stream's handler has received a message of n bytes.
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

// relieve ends calls until every limit is kept, and returns once gRPC has let go of them.
// c is the connection that was read. The lock is held, except while it waits.
func (m *Meter) relieve(c *conn) {
	for one := m.excess(c); one != nil; one = m.excess(c) {
		one.ended = true
		one.end()
		m.mu.Unlock()
		select {
		case <-one.gone:
		case <-time.After(m.cfg.EndTimeout):
			m.cutOff(one.conn, "its calls do not end")
			// To close may take as long as the other side lets it.
			go func() { _ = one.conn.Close() }()
		}
		m.mu.Lock()
	}
}

// excess returns the call to end next, nil if every limit is kept or no call is left. The
// lock is held.
func (m *Meter) excess(c *conn) *call {
	switch {
	case c.now != nil && c.now.held > m.cfg.Call && !c.now.ended:
		return c.now
	case c.from.held > c.from.limit:
		return c.from.largest()
	case m.held > m.cfg.All:
		return m.most().largest()
	}
	return nil
}

// largest returns the call of a sender that holds the most, nil if none is left to end. The
// lock is held.
func (s *sender) largest() *call {
	var largest *call
	if s == nil {
		return nil
	}
	for c := range s.conns {
		for _, one := range c.calls {
			if one.held > 0 && !one.ended && (largest == nil || one.held > largest.held) {
				largest = one
			}
		}
	}
	return largest
}

// most returns the sender that holds the most: a trusted one only if no other holds
// anything. The lock is held.
func (m *Meter) most() *sender {
	var most *sender
	for _, s := range m.senders {
		switch {
		case s.held == 0:
		case most == nil, most.trusted && !s.trusted, most.trusted == s.trusted && s.held > most.held:
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

package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/entente-dev/entente/internal/identity"
)

// intake bounds what gRPC keeps of messages that nobody has taken yet. gRPC makes
// room for a message of the largest size on each call, keeps each DATA frame by
// itself however small it is, and asks nobody. So the connections read along: what a
// call was sent counts until its handler has taken it, or, if it is a unary one, until
// it was answered. Who is sent for more than is due is cut off, and if all together
// hold too much, whoever holds the most.
type intake struct {
	log *slog.Logger
	// trusts says whether a caller counts as a peer.
	trusts func(identity.AuthInfo) bool

	// peer, stranger and all are PeerUnread, StrangerUnread and AllUnread.
	peer, stranger, all int64

	mu      sync.Mutex
	total   int64
	senders map[string]*sender
	warned  time.Time
}

// sender is a peer, or an address from which strangers call.
type sender struct {
	conns map[*meteredConn]struct{}
	limit int64
	held  int64
}

var errHeldTooMuch = errors.New("server: the peer sends more than is taken")

func newIntake(log *slog.Logger, trusts func(identity.AuthInfo) bool) *intake {
	return &intake{
		log: log, trusts: trusts, senders: make(map[string]*sender),
		peer: PeerUnread, stranger: StrangerUnread, all: AllUnread,
	}
}

// meteredCreds makes the connections of a server count.
type meteredCreds struct {
	credentials.TransportCredentials
	in *intake
}

// ServerHandshake implements credentials.TransportCredentials.
func (c meteredCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return c.in.meter(conn, info), info, nil
}

// Clone implements credentials.TransportCredentials.
func (c meteredCreds) Clone() credentials.TransportCredentials {
	return meteredCreds{c.TransportCredentials.Clone(), c.in}
}

// meter counts a connection in until it is closed.
func (in *intake) meter(conn net.Conn, auth credentials.AuthInfo) *meteredConn {
	c := &meteredConn{Conn: conn, in: in, r: bufio.NewReaderSize(conn, ConnectionBuffer), streams: make(map[uint32]*inbound), preface: len(h2Preface)}
	info, ok := auth.(identity.AuthInfo)
	key, limit := "address "+addressKey(conn.RemoteAddr().String()), in.stranger
	if ok && in.trusts(info) {
		key, limit = string(info.ID), in.peer
	}
	c.key = key
	in.mu.Lock()
	defer in.mu.Unlock()
	c.from = in.senders[key]
	if c.from == nil {
		c.from = &sender{conns: make(map[*meteredConn]struct{}), limit: limit}
		in.senders[key] = c.from
	}
	c.from.conns[c] = struct{}{}
	return c
}

// enter makes what a call is sent count, from its headers on. ctx is that of gRPC's
// tap, which runs between two reads of the connection.
func (in *intake) enter(ctx context.Context) context.Context {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx
	}
	at, ok := p.Addr.(meteredAddr)
	if !ok {
		return ctx
	}
	c, s := at.conn, &inbound{conn: at.conn}
	in.mu.Lock()
	defer in.mu.Unlock()
	id := c.stream
	c.streams[id] = s
	context.AfterFunc(ctx, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		delete(c.streams, id)
		in.add(c, -s.held())
		*s = inbound{conn: c}
	})
	return context.WithValue(ctx, inboundKey{}, s)
}

type inboundKey struct{}

// taken says that a stream's handler has the next message.
func taken(ctx context.Context) {
	s, ok := ctx.Value(inboundKey{}).(*inbound)
	if !ok {
		return
	}
	in := s.conn.in
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(s.whole) > 0 {
		in.add(s.conn, -s.whole[0])
		s.whole = s.whole[1:]
	}
}

// add changes what a connection holds. The lock is held.
func (in *intake) add(c *meteredConn, cost int64) {
	if c.closed {
		return
	}
	c.held += cost
	c.from.held += cost
	in.total += cost
}

// hog returns the connection to be cut off for what is held now, if any. The lock is
// held.
func (in *intake) hog(c *meteredConn) *meteredConn {
	from := c.from
	switch {
	case from.held > from.limit:
	case in.total > in.all:
		for _, other := range in.senders {
			if other.held > from.held {
				from = other
			}
		}
	default:
		return nil
	}
	for other := range from.conns {
		if c.from != from || other.held > c.held {
			c = other
		}
	}
	return c
}

// mayWarn says whether a line about this goes to the log: not each time.
func (in *intake) mayWarn() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if time.Since(in.warned) < time.Minute {
		return false
	}
	in.warned = time.Now()
	return true
}

// inbound is what came for one call. The intake's lock guards it.
type inbound struct {
	conn *meteredConn
	// whole is what the messages cost that came as a whole and were not taken, part
	// what the one costs that has not ended, frame the frame that has not.
	whole       []int64
	part, frame int64
	// head is the beginning of the next message (gRPC over HTTP/2: flag, length), rest
	// how much of the one at hand is to come.
	head [5]byte
	got  int
	rest uint32
}

func (s *inbound) held() int64 {
	sum := s.part + s.frame
	for _, m := range s.whole {
		sum += m
	}
	return sum
}

// data takes bytes of messages.
func (s *inbound) data(b []byte) {
	for len(b) > 0 {
		if s.got < len(s.head) {
			n := copy(s.head[s.got:], b)
			s.got += n
			b = b[n:]
			if s.got == len(s.head) {
				s.rest = binary.BigEndian.Uint32(s.head[1:])
			}
		} else {
			n := min(s.rest, uint32(len(b)))
			s.rest -= n
			b = b[n:]
		}
		if s.got == len(s.head) && s.rest == 0 {
			s.whole = append(s.whole, s.part)
			s.part, s.got = 0, 0
		}
	}
}

// end ends a frame: it is kept as long as the last message that it has something of.
func (s *inbound) end() {
	if s.got > 0 || len(s.whole) == 0 {
		s.part += s.frame
	} else {
		s.whole[len(s.whole)-1] += s.frame
	}
	s.frame = 0
}

// meteredConn reads the frames of HTTP/2 along (RFC 9113, section 4.1). gRPC reads it
// without a buffer of its own, a head and then a body at a time, so that what was
// read is what was looked at.
type meteredConn struct {
	net.Conn
	in   *intake
	key  string
	from *sender
	r    *bufio.Reader

	// Of the reader alone: what is to come of the preface and of the body at hand,
	// how much of it is padding, and the head of the next frame.
	preface   int
	body, pad uint32
	padded    bool
	head      [9]byte
	got       int
	now       *inbound

	// Under the intake's lock.
	stream  uint32
	streams map[uint32]*inbound
	held    int64
	closed  bool
}

const (
	h2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	frameData  = 0
	flagPadded = 8
)

// meteredAddr leads from a call to its connection.
type meteredAddr struct {
	net.Addr
	conn *meteredConn
}

// RemoteAddr implements net.Conn.
func (c *meteredConn) RemoteAddr() net.Addr { return meteredAddr{c.Conn.RemoteAddr(), c} }

// Read implements net.Conn. gRPC calls it from one goroutine.
func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if n == 0 {
		return n, err
	}
	hog := c.feed(b[:n])
	if hog != nil {
		if c.in.mayWarn() {
			c.in.log.Warn("cut off: it sends more than is taken", "caller", hog.key, "remote", hog.Conn.RemoteAddr().String())
		}
		_ = hog.Close()
	}
	if hog == c {
		return 0, errHeldTooMuch
	}
	return n, err
}

// feed looks at bytes, and returns the connection to be cut off for them, if any.
func (c *meteredConn) feed(b []byte) *meteredConn {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	skip := min(c.preface, len(b))
	c.preface -= skip
	b = b[skip:]
	for len(b) > 0 {
		if c.body > 0 {
			n := min(c.body, uint32(len(b)))
			c.take(b[:n])
			b = b[n:]
			continue
		}
		n := copy(c.head[c.got:], b)
		c.got += n
		b = b[n:]
		if c.got < len(c.head) {
			break
		}
		c.got = 0
		c.begin()
	}
	return c.in.hog(c)
}

// begin looks at a frame's head.
func (c *meteredConn) begin() {
	c.body = uint32(c.head[0])<<16 | uint32(c.head[1])<<8 | uint32(c.head[2])
	c.stream = binary.BigEndian.Uint32(c.head[5:]) & (1<<31 - 1)
	c.now, c.pad, c.padded = nil, 0, false
	if c.head[3] != frameData || c.body == 0 {
		return
	}
	if c.now = c.streams[c.stream]; c.now != nil {
		c.padded = c.head[4]&flagPadded != 0
		c.now.frame = frameCost(c.body)
		c.in.add(c, c.now.frame)
	}
}

// take takes bytes of a frame's body.
func (c *meteredConn) take(b []byte) {
	c.body -= uint32(len(b))
	if c.now == nil {
		return
	}
	if c.padded {
		c.pad, c.padded, b = uint32(b[0]), false, b[1:]
	}
	// The padding is what comes last.
	data := len(b)
	if behind := int64(c.pad) - int64(c.body); behind > 0 {
		data = int(max(0, int64(len(b))-behind))
	}
	c.now.data(b[:data])
	if c.body == 0 {
		c.now.end()
	}
}

// frameCost is what gRPC spends on a DATA frame: a buffer of one of its sizes, and
// what leads there.
func frameCost(length uint32) int64 {
	const overhead = 128
	switch {
	case length <= 1<<10:
		return int64(length) + overhead
	case length <= 4<<10:
		return 4<<10 + overhead
	default:
		return max(16<<10, int64(length)) + overhead
	}
}

// Write implements net.Conn: who reads nothing is not answered for ever.
func (c *meteredConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(WriteTimeout)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

// Close implements net.Conn.
func (c *meteredConn) Close() error {
	c.in.mu.Lock()
	c.in.add(c, -c.held)
	c.closed = true
	delete(c.from.conns, c)
	if len(c.from.conns) == 0 && c.in.senders[c.key] == c.from {
		delete(c.in.senders, c.key)
	}
	c.in.mu.Unlock()
	return c.Conn.Close()
}

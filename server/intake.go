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
	"google.golang.org/grpc/stats"

	"github.com/entente-dev/entente/internal/identity"
)

// intake bounds what gRPC keeps of messages that nobody has taken yet. gRPC makes
// room for a message of the largest size on each call, keeps each DATA frame by
// itself however small it is, and asks nobody. So the connections read along: what a
// call was sent counts until its handler has taken it, or, if it is a unary one, until
// it was answered. A call that holds more than is due is ended. So are those that hold the
// most when a sender, or all together, come near their limit: what stalls may be the
// doing of one tenant of an honest peer. Only who is beyond the limit still is cut off,
// and if that is all together, whoever holds the most, strangers first.
type intake struct {
	log *slog.Logger
	// trusts says whether a caller counts as a peer.
	trusts func(identity.AuthInfo) bool

	// peer, stranger, all and call are PeerUnread, StrangerUnread, AllUnread and
	// CallUnread.
	peer, stranger, all, call int64

	mu sync.Mutex
	load
	senders map[string]*sender
	warned  time.Time
}

// sender is a peer, or an address from which strangers call.
type sender struct {
	conns    map[*meteredConn]struct{}
	limit    int64
	stranger bool
	load
}

// load is what is held, and how much of that by calls that were ended and are about
// to give it back.
type load struct{ held, ending int64 }

// near says whether calls have to be ended to stay within a limit.
func (l load) near(limit int64) bool { return l.live() > limit/100*UnreadPercent }

func (l load) live() int64 { return l.held - l.ending }

var (
	errHeldTooMuch     = errors.New("server: the peer sends more than is taken")
	errRefusedTooOften = errors.New("server: the peer goes on calling though it is refused")
)

func newIntake(log *slog.Logger, trusts func(identity.AuthInfo) bool) *intake {
	return &intake{
		log: log, trusts: trusts, senders: make(map[string]*sender),
		peer: PeerUnread, stranger: StrangerUnread, all: AllUnread, call: CallUnread,
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
	c := &meteredConn{Conn: conn, in: in, r: bufio.NewReaderSize(conn, ReadBuffer), streams: make(map[uint32]*inbound), preface: len(h2Preface)}
	info, ok := auth.(identity.AuthInfo)
	key, limit, stranger := "address "+addressKey(conn.RemoteAddr().String()), in.stranger, true
	if ok && in.trusts(info) {
		key, limit, stranger = string(info.ID), in.peer, false
	}
	c.key = key
	in.mu.Lock()
	defer in.mu.Unlock()
	c.from = in.senders[key]
	if c.from == nil {
		c.from = &sender{conns: make(map[*meteredConn]struct{}), limit: limit, stranger: stranger}
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
	c := at.conn
	// gRPC's own context ends when it let go of the call, this one when it has to.
	own, cancel := context.WithCancelCause(ctx)
	s := &inbound{conn: c, intakeState: intakeState{cancel: cancel}}
	in.mu.Lock()
	defer in.mu.Unlock()
	id := c.stream
	c.streams[id] = s
	context.AfterFunc(ctx, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		delete(c.streams, id)
		in.add(s, -s.held)
		s.intakeState = intakeState{}
	})
	return context.WithValue(own, inboundKey{}, s)
}

// refused counts a call that gRPC's tap refuses, and after too many the connection is
// read no more, so that gRPC closes it. gRPC does not end the context of such
// a call, so that it stays until that of the connection ends.
func (in *intake) refused(ctx context.Context, limit int) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	at, ok := p.Addr.(meteredAddr)
	if !ok {
		return
	}
	at.conn.refused++
	at.conn.shut = at.conn.refused > limit
}

// connEnds makes the contexts of a connection's calls, and their timers, end with it:
// gRPC leaves those of the calls that were refused to the caller's deadline.
type connEnds struct{}

type connEndKey struct{}

// TagConn implements stats.Handler.
func (connEnds) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, connEndKey{}, cancel)
}

// HandleConn implements stats.Handler.
func (connEnds) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); !ok {
		return
	}
	if cancel, ok := ctx.Value(connEndKey{}).(context.CancelFunc); ok {
		cancel()
	}
}

// TagRPC implements stats.Handler.
func (connEnds) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (connEnds) HandleRPC(context.Context, stats.RPCStats) {}

type inboundKey struct{}

// endedBy has a call ended by end, in a goroutine of its own, in place of its
// context alone.
func endedBy(ctx context.Context, end func(error)) {
	s, ok := ctx.Value(inboundKey{}).(*inbound)
	if !ok {
		return
	}
	s.conn.in.mu.Lock()
	defer s.conn.in.mu.Unlock()
	s.cancel = func(why error) { go end(why) } // it takes locks of gRPC's, under which the intake's are taken
	if s.ended {
		s.cancel(errCallHeldTooMuch) // it came before its handler
	}
}

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
		in.add(s, -s.whole[0])
		s.whole = s.whole[1:]
	}
}

// add changes what a call holds. The lock is held.
func (in *intake) add(s *inbound, cost int64) {
	c := s.conn
	if c.closed {
		return
	}
	s.held += cost
	for _, l := range []*load{&c.load, &c.from.load, &in.load} {
		l.held += cost
		if s.ended {
			l.ending += cost
		}
	}
}

// stop ends a call. What it holds counts until gRPC let go of it. The lock is held.
func (in *intake) stop(s *inbound) {
	if s.ended || s.cancel == nil {
		return
	}
	s.ended = true
	for _, l := range []*load{&s.conn.load, &s.conn.from.load, &in.load} {
		l.ending += s.held
	}
	s.cancel(errCallHeldTooMuch)
}

// drop takes what a connection holds off, and it from its sender. The lock is held.
func (in *intake) drop(c *meteredConn) {
	if c.closed {
		return
	}
	c.closed = true
	for _, l := range []*load{&c.from.load, &in.load} {
		l.held -= c.held
		l.ending -= c.ending
	}
	c.load = load{}
	delete(c.from.conns, c)
	if len(c.from.conns) == 0 && in.senders[c.key] == c.from {
		delete(in.senders, c.key)
	}
}

// relieve ends the calls that have to end for what is held now, and returns the
// connections that have to, which count no more. The lock is held.
func (in *intake) relieve(c *meteredConn) []*meteredConn {
	for c.from.near(c.from.limit) && in.stopLargest(c.from) {
	}
	for in.near(in.all) && in.stopLargest(in.most(load.live)) {
	}
	var cut []*meteredConn
	for {
		from := c.from
		switch {
		case from.held > from.limit:
		case in.held > in.all:
			from = in.most(func(l load) int64 { return l.held })
		default:
			return cut
		}
		var hog *meteredConn
		if from != nil {
			for other := range from.conns {
				if hog == nil || other.held > hog.held {
					hog = other
				}
			}
		}
		if hog == nil {
			return cut
		}
		in.drop(hog)
		cut = append(cut, hog)
	}
}

// most returns the stranger who has the most, and if none has anything, the peer. The
// lock is held.
func (in *intake) most(of func(load) int64) *sender {
	var most *sender
	for _, other := range in.senders {
		switch {
		case of(other.load) <= 0:
		case most == nil, other.stranger && !most.stranger, other.stranger == most.stranger && of(other.load) > of(most.load):
			most = other
		}
	}
	return most
}

// stopLargest ends the call of a sender that holds the most, and says whether there
// was one. The lock is held.
func (in *intake) stopLargest(from *sender) bool {
	if from == nil {
		return false
	}
	var largest *inbound
	for c := range from.conns {
		for _, s := range c.streams {
			if s.held > 0 && !s.ended && s.cancel != nil && (largest == nil || s.held > largest.held) {
				largest = s
			}
		}
	}
	if largest == nil {
		return false
	}
	in.stop(largest)
	return true
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
	// conn never changes: it leads to the lock.
	conn *meteredConn
	intakeState
}

// intakeState is what the intake's lock guards of a call; it is zero once gRPC let go
// of the call.
type intakeState struct {
	// cancel ends the call, ended says that it was, and held is what it costs in all.
	cancel context.CancelCauseFunc
	ended  bool
	held   int64
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
	// How many calls were refused, and that it is enough.
	refused int
	shut    bool

	// Under the intake's lock.
	stream  uint32
	streams map[uint32]*inbound
	closed  bool
	load
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
	if c.shut {
		if c.in.mayWarn() {
			c.in.log.Warn("cut off: it goes on calling though it is refused", "caller", c.key, "remote", c.Conn.RemoteAddr().String())
		}
		return 0, errRefusedTooOften
	}
	n, err := c.r.Read(b)
	if n == 0 {
		return n, err
	}
	own := false
	for _, hog := range c.feed(b[:n]) {
		if c.in.mayWarn() {
			c.in.log.Warn("cut off: it sends more than is taken", "caller", hog.key, "remote", hog.Conn.RemoteAddr().String())
		}
		own = own || hog == c
		// To close may take as long as its other side lets it, which is nobody else's
		// time.
		go func() { _ = hog.Close() }()
	}
	if own {
		return 0, errHeldTooMuch
	}
	c.pause()
	return n, err
}

// pause lets calls that were ended end: what is under way to them must not cut off the
// connection that they were ended to save.
func (c *meteredConn) pause() {
	const step = 5 * time.Millisecond
	for waited := time.Duration(0); waited < UnreadPause && c.nearlyCut(); waited += step {
		time.Sleep(step)
	}
}

// nearlyCut says whether the connection is about to be cut off for what is about to be
// given back.
func (c *meteredConn) nearlyCut() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return !c.closed && c.from.ending > 0 && c.from.held > c.from.limit/200*(100+UnreadPercent)
}

// feed looks at bytes, and returns the connections to be cut off for them, if any.
func (c *meteredConn) feed(b []byte) []*meteredConn {
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
	return c.in.relieve(c)
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
		c.in.add(c.now, c.now.frame)
		if c.now.held > c.in.call {
			c.in.stop(c.now)
		}
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
	c.in.drop(c)
	c.in.mu.Unlock()
	return c.Conn.Close()
}

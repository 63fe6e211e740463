package intake

import (
	"bufio"
	"encoding/binary"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// Credentials returns creds whose connections the Meter counts.
func (m *Meter) Credentials(creds credentials.TransportCredentials) credentials.TransportCredentials {
	return meteredCreds{creds, m}
}

type meteredCreds struct {
	credentials.TransportCredentials
	meter *Meter
}

func (c meteredCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, auth, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return c.meter.open(conn, auth), auth, nil
}

func (c meteredCreds) Clone() credentials.TransportCredentials {
	return meteredCreds{c.TransportCredentials.Clone(), c.meter}
}

// conn reads the frames of HTTP/2 as they pass. gRPC reads a frame's header and then its
// payload, both without a buffer of its own, so that what it has read is what was counted.
type conn struct {
	net.Conn
	meter *Meter
	name  string
	from  *sender
	r     *bufio.Reader

	// Only for the goroutine that reads: how many bytes of the preface and of the current payload
	// are to come, whether the length of its padding is, and the header of the next frame.
	preface, payload int
	padded           bool
	header           [9]byte
	got              int
	// How many calls were refused, and whether they were too many.
	refused int
	shut    bool

	// Guarded by the Meter's lock: the stream of the last frame, its call if it is a DATA frame,
	// and the calls by their streams.
	stream uint32
	now    *call
	calls  map[uint32]*call
}

const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	frameData  = 0
	flagPadded = 8
)

// addr is an address by which the connection of a call is found.
type addr struct {
	net.Addr
	conn *conn
}

func (m *Meter) open(raw net.Conn, auth credentials.AuthInfo) *conn {
	c := &conn{
		Conn: raw, meter: m, r: bufio.NewReaderSize(raw, m.cfg.ReadBuffer),
		preface: len(preface), calls: make(map[uint32]*call),
	}
	name, trusted := m.cfg.Sender(raw.RemoteAddr(), auth)
	limit := m.cfg.Stranger
	if trusted {
		limit = m.cfg.Peer
	}
	c.name = name
	m.mu.Lock()
	defer m.mu.Unlock()
	c.from = m.senders[name]
	if c.from == nil {
		c.from = &sender{conns: make(map[*conn]struct{}), limit: limit, trusted: trusted}
		m.senders[name] = c.from
	}
	c.from.conns[c] = struct{}{}
	return c
}

func (c *conn) RemoteAddr() net.Addr { return addr{c.Conn.RemoteAddr(), c} }

// Read implements net.Conn. gRPC calls it from one goroutine.
func (c *conn) Read(b []byte) (int, error) {
	if c.shut {
		c.meter.cutOff(c, "it goes on calling although it is refused")
		return 0, errRefusedTooOften
	}
	n, err := c.r.Read(b)
	if n > 0 {
		c.meter.mu.Lock()
		defer c.meter.mu.Unlock()
		c.count(b[:n])
		c.meter.relieve(c)
	}
	return n, err
}

// count counts bytes that were read. The caller holds the lock.
func (c *conn) count(b []byte) {
	skip := min(c.preface, len(b))
	c.preface -= skip
	for b = b[skip:]; len(b) > 0; {
		if c.payload > 0 {
			if c.padded && c.now != nil && len(c.now.frames) > 0 {
				// The length of the padding, and the padding, are not part of a message.
				last := &c.now.frames[len(c.now.frames)-1]
				last.unread -= min(last.unread, 1+uint32(b[0]))
			}
			c.padded = false
			n := min(c.payload, len(b))
			c.payload -= n
			b = b[n:]
			continue
		}
		n := copy(c.header[c.got:], b)
		c.got += n
		b = b[n:]
		if c.got == len(c.header) {
			c.got = 0
			c.begin()
		}
	}
}

// begin handles a frame's header. The caller holds the lock.
func (c *conn) begin() {
	length := uint32(c.header[0])<<16 | uint32(c.header[1])<<8 | uint32(c.header[2])
	c.payload = int(length)
	c.stream = binary.BigEndian.Uint32(c.header[5:]) & (1<<31 - 1)
	c.now, c.padded = nil, false
	if c.header[3] != frameData || length == 0 {
		return
	}
	if c.now = c.calls[c.stream]; c.now != nil {
		c.padded = c.header[4]&flagPadded != 0
		cost := frameCost(length)
		c.now.frames = append(c.now.frames, frame{unread: length, cost: cost})
		c.meter.add(c.now, int64(cost))
	}
}

// frameCost is how many bytes gRPC allocates for a DATA frame: a buffer of one of its sizes, and
// its references.
func frameCost(length uint32) uint32 {
	const overhead = 128
	switch {
	case length <= 1<<10:
		return length + overhead
	case length <= 4<<10:
		return 4<<10 + overhead
	default:
		return max(16<<10, length) + overhead
	}
}

// Write implements net.Conn. A caller that does not read what it is sent is cut off.
func (c *conn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.meter.cfg.WriteTimeout)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

// Close implements net.Conn. The unread bytes of the connection's calls count until gRPC has
// released the calls.
func (c *conn) Close() error {
	c.meter.mu.Lock()
	delete(c.from.conns, c)
	c.meter.forget(c)
	c.meter.mu.Unlock()
	return c.Conn.Close()
}

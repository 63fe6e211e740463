package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
	"google.golang.org/grpc/credentials"

	"github.com/entente-dev/entente/internal/identity"
)

// Conn is a connection that is secured already: a stream of a session, or a TLS connection of its
// own. It has the identity of the other end.
type Conn struct {
	net.Conn
	info   identity.AuthInfo
	number uint64 // among h2 connections, in their order
	once   sync.Once
	closed func()
	// limit is how many bytes may still be read; nil means no limit. gRPC allocates the length
	// that a message announces, so what a stranger sends is limited here.
	limit *atomic.Int64
	// burst is how many bytes were read without a pause, until last.
	burst int
	last  time.Time
}

// errTooMuch ends the connection of a stranger that reached the limit.
var errTooMuch = fmt.Errorf("session: limit of %d bytes of a client that is not trusted reached", strangerBytes)

// Read implements net.Conn. gRPC calls it from one goroutine.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if stream, ok := c.Conn.(*yamux.Stream); ok && c.seldom(n, time.Now()) {
		stream.Shrink()
	}
	if c.limit != nil && c.limit.Add(-int64(n)) < 0 {
		_ = c.Close()
		return 0, errTooMuch
	}
	return n, err
}

// seldom counts n bytes that were read now, and reports whether little was read lately. A stream
// keeps a buffer of more than twice the largest piece that came, which pays only for streams with
// much data.
func (c *Conn) seldom(n int, now time.Time) bool {
	if now.Sub(c.last) >= burstPause {
		c.burst = 0
	}
	c.last = now
	c.burst += n
	return c.burst <= burstBytes
}

// Close ends the connection, and reads that wait on it.
func (c *Conn) Close() error {
	// A yamux stream that this side closed goes on reading until the other side
	// closes too.
	_ = c.SetDeadline(time.Unix(1, 0))
	err := c.Conn.Close()
	if c.closed != nil {
		c.once.Do(c.closed)
	}
	return err
}

// transportCreds passes gRPC the identity that a Conn already proved, without a second handshake.
type transportCreds struct{}

// ServerCredentials returns the transport credentials for Config.Server. Handlers get the
// caller with identity.PeerFromContext.
func ServerCredentials() credentials.TransportCredentials { return transportCreds{} }

var errNotSecured = errors.New("session: not a connection of a session")

func (transportCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*Conn)
	if !ok {
		return nil, nil, errNotSecured
	}
	return c, c.info, nil
}

func (t transportCreds) ClientHandshake(_ context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return t.ServerHandshake(raw)
}

func (transportCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "entente"}
}

func (t transportCreds) Clone() credentials.TransportCredentials { return t }

func (transportCreds) OverrideServerName(string) error { return nil }

package session

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/entente-dev/entente/peering"
)

// caller calls a peer. gRPC's client connection exists only while there are calls and for
// idleAfter longer: most peers are seldom called, or only call, and even an idle client
// connection costs more memory than the rest of a session.
type caller struct {
	m    *Manager
	peer peering.ClusterID

	mu     sync.Mutex
	conn   *grpc.ClientConn // nil while idle
	calls  int
	closed bool
	idle   *time.Timer // closes conn
}

func (c *caller) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := c.enter()
	if err != nil {
		return err
	}
	defer c.leave()
	return ownReason(conn.Invoke(ctx, method, args, reply, opts...))
}

func (c *caller) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.enter()
	if err != nil {
		return nil, err
	}
	leave := sync.OnceFunc(c.leave)
	opts = append(slices.Clip(opts), grpc.OnFinish(func(error) { leave() }))
	stream, err := conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		leave()
		return nil, ownReason(err)
	}
	return stream, nil
}

// ownReason removes from an error what gRPC writes before why there is no session: no name was to be resolved.
func ownReason(err error) error {
	st := status.Convert(err)
	reason := strings.TrimPrefix(strings.TrimPrefix(st.Message(), "latest balancer error: "), "name resolver error: ")
	if reason == st.Message() {
		return err
	}
	return status.Error(st.Code(), reason)
}

// enter begins a call.
func (c *caller) enter() (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, status.Error(codes.Unavailable, errStopping.Error())
	}
	if c.conn == nil {
		conn, err := c.m.newConn(c.peer)
		if err != nil {
			return nil, status.Errorf(codes.Internal, "client connection: %v", err) // New tried the same
		}
		c.conn = conn
	}
	if c.idle != nil {
		c.idle.Stop()
	}
	c.calls++
	return c.conn, nil
}

// leave ends a call.
func (c *caller) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
	if c.calls > 0 || c.closed {
		return
	}
	if c.idle == nil {
		c.idle = time.AfterFunc(c.m.idleAfter, c.closeIdle)
		return
	}
	c.idle.Reset(c.m.idleAfter)
}

// closeIdle closes the connection unless there are calls.
func (c *caller) closeIdle() {
	c.mu.Lock()
	var conn *grpc.ClientConn
	if c.calls == 0 {
		conn, c.conn = c.conn, nil
	}
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// close ends all calls for good.
func (c *caller) close() {
	c.mu.Lock()
	c.closed = true
	conn := c.conn
	c.conn = nil
	if c.idle != nil {
		c.idle.Stop()
	}
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

package session

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// away reports whether there is no client connection of gRPC for a peer now.
func (c *caller) away() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn == nil
}

func TestAnIdleClientConnectionIsClosed(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	a.idleAfter = 20 * time.Millisecond
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	mustWho(t, a, b)
	there := a.caller(b.id)
	eventually(t, "the connection is put away", there.away)
	mustWho(t, a, b)

	// A stream is a call for as long as it lasts.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := a.Conn(b.id).NewStream(ctx, &testService.Streams[0], "/test.Test/Tail")
	if err == nil {
		err = stream.SendMsg(wrapperspb.String(""))
	}
	for range 20 {
		if err != nil {
			break
		}
		mustWho(t, a, b)
		time.Sleep(5 * time.Millisecond)
		err = stream.RecvMsg(new(wrapperspb.StringValue))
	}
	if err != nil {
		t.Errorf("the stream ended: %v", err)
	}
	if there.away() {
		t.Error("the connection is put away under a stream")
	}
	cancel()
	eventually(t, "the stream's end is the last call's", there.away)
	if up := up(a, b)(); !up {
		t.Error("the session went with it")
	}
	there.close()
	if _, err := who(t.Context(), a, b); status.Code(err) != codes.Unavailable {
		t.Errorf("a call after the end: %v", err)
	}
}

package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/entente-dev/entente/internal/identity"
)

// idle makes client connections idle that soon without calls.
func idle(d time.Duration) nodeOption {
	return func(c *Config, _ *identity.SourceConfig) {
		c.ClientOptions = append(c.ClientOptions, grpc.WithIdleTimeout(d))
	}
}

// What gRPC keeps of a client connection changes with each session, with each call
// after a pause and with each pause, all at the same time.
func TestSessionsComeAndGoWhileCallsDo(t *testing.T) {
	t.Parallel()
	a, b := start(t, idle(time.Millisecond)), start(t)
	trustEachOther(t, a, b)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				short, end := context.WithTimeout(ctx, time.Duration(n%5)*time.Millisecond)
				_, err := who(short, a, b, grpc.WaitForReady(n%2 == 0))
				end()
				switch status.Code(err) {
				case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
				default:
					t.Errorf("call to a session that answers nothing: %v", err)
				}
				time.Sleep(time.Duration(n%3) * time.Millisecond)
			}
		})
	}
	for range 500 {
		here, there := net.Pipe()
		config := yamux.DefaultConfig()
		config.LogOutput = io.Discard
		mux, err := yamux.Client(here, config)
		if err != nil {
			t.Fatal(err)
		}
		far, err := yamux.Server(there, config)
		if err != nil {
			t.Fatal(err)
		}
		l := &link{info: Info{Peer: b.id}, auth: identity.AuthInfo{ID: b.id, Trusted: true}, raw: here, mux: mux}
		if err := a.register(l); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		a.CloseSession(l.info.Number, errors.New("enough"))
		_, _ = mux.Close(), far.Close()
	}
	cancel()
	wg.Wait()
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	mustWho(t, a, b)
	mustWho(t, b, a)
}

// A session is used as soon as it is up, however long gRPC would wait by itself
// after what failed before.
func TestNewSessionIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	patient := func(c *Config, _ *identity.SourceConfig) {
		c.ClientOptions = append(c.ClientOptions, grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: time.Hour, Multiplier: 1, MaxDelay: time.Hour}, MinConnectTimeout: openTimeout,
		}))
	}
	a, b := start(t, patient), start(t, patient)
	trustEachOther(t, a, b)
	for range 3 {
		_, err1 := who(t.Context(), a, b)
		_, err2 := who(t.Context(), b, a)
		if err1 == nil || err2 == nil {
			t.Fatal("a call came through without a session")
		}
		l, err := a.dialEndpoint(t.Context(), b.id, b.addr)
		if err != nil || l == nil {
			t.Fatalf("no session: %v", err)
		}
		a.serve(t.Context(), new(sync.WaitGroup), l)
		mustWho(t, a, b)
		mustWho(t, b, a)
		a.Close(b.id, errors.New("enough"))
		eventually(t, "the session is gone on both sides", func() bool {
			_, err1 := who(t.Context(), a, b)
			_, err2 := who(t.Context(), b, a)
			return !up(a, b)() && !up(b, a)() && err1 != nil && err2 != nil
		})
	}
}

// A call fails with the current reason, and not with the one of gRPC's last attempt.
func TestCallsFailWithTheCurrentReason(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t, dialOnly)
	trustEachOther(t, a, b)
	says := func(want string) {
		t.Helper()
		var err error
		eventually(t, "calls say "+want, func() bool {
			_, err = who(t.Context(), a, b)
			return status.Code(err) == codes.Unavailable && strings.HasPrefix(status.Convert(err).Message(), "no session with "+string(b.id)) && strings.Contains(err.Error(), want)
		})
	}
	says("waiting for it to come up")
	const reason = "no session with "
	if _, err := a.Conn(b.id).NewStream(t.Context(), &testService.Streams[0], "/test.Test/Tail"); !strings.HasPrefix(status.Convert(err).Message(), reason) {
		t.Errorf("a stream fails with %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := who(short, a, b, grpc.WaitForReady(true)); status.Code(err) != codes.DeadlineExceeded || !strings.HasPrefix(status.Convert(err).Message(), reason) {
		t.Errorf("a call that waits fails with %v", err)
	}
	for i := range 3 {
		a.failed(b.id, fmt.Errorf("try %d", i))
		says(fmt.Sprintf("try %d", i))
	}
	b.SetPeers([]Peer{{ID: a.id, Endpoints: []string{a.addr}}})
	mustWho(t, a, b)
	b.SetPeers(nil)
	a.Close(b.id, errors.New("it is late"))
	says("it is late")
	if state := a.caller(b.id).conn.GetState(); state != connectivity.TransientFailure {
		t.Errorf("the connection is %s without a session", state)
	}
}

// A stream is never opened in another session than gRPC means.
func TestAddressIsOneSession(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	mustWho(t, a, b)
	number := a.Status(b.id).Session.Number
	if _, err := a.open(b.id, routeAddress(number+1)); err == nil || !strings.Contains(err.Error(), "was replaced by another") {
		t.Errorf("another session's address: %v", err)
	}
	c, err := a.open(b.id, routeAddress(number))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// A peer that answers with more headers than a call has fails that call, and costs
// no other.
func TestHeadersWithoutEndAreAnErrorOfTheCall(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly)
	trustEachOther(t, victim, peer)
	h := openControl(t, peer, victim)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			stream, err := h.mux.AcceptStream()
			if err != nil {
				return
			}
			wg.Go(func() { answerHuge(stream) })
		}
	})
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := who(ctx, victim, peer, grpc.WaitForReady(true))
		cancel()
		if code := status.Code(err); code != codes.Internal && code != codes.Unavailable {
			t.Errorf("the call ended with %v", err)
		}
	}
	if !up(victim, peer)() {
		t.Errorf("the session is gone: %v", victim.Status(peer.id).Err)
	}
	_ = h.mux.Close()
	wg.Wait()
}

// answerHuge answers calls, in HTTP/2 by hand, with headers of 1 MiB, until it is
// hung up on.
func answerHuge(stream net.Conn) {
	const headers, settings, continuation, endHeaders, largest = 1, 4, 9, 4, 16 << 10
	block := []byte{0x88, 0, 1, 'a', 0x7f, 0x81, 0xff, 0x3f} // ":status: 200", then "a" with 1 MiB
	block = append(block, bytes.Repeat([]byte("a"), 1<<20)...)
	write := func(kind, flags byte, id uint32, body []byte) error {
		head := binary.BigEndian.AppendUint32(nil, uint32(len(body))<<8|uint32(kind))
		head = binary.BigEndian.AppendUint32(append(head, flags), id)
		_, err := stream.Write(append(head, body...))
		return err
	}
	if write(settings, 0, 0, nil) != nil {
		return
	}
	if _, err := io.CopyN(io.Discard, stream, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	for {
		var head [9]byte
		if _, err := io.ReadFull(stream, head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, stream, int64(binary.BigEndian.Uint32(head[:])>>8)); err != nil {
			return
		}
		if head[3] != headers {
			continue
		}
		kind := byte(headers)
		for rest := block; len(rest) > 0; kind = continuation {
			part := rest[:min(largest, len(rest))]
			rest = rest[len(part):]
			flags := byte(0)
			if len(rest) == 0 {
				flags = endHeaders
			}
			if write(kind, flags, binary.BigEndian.Uint32(head[5:]), part) != nil {
				return
			}
		}
	}
}

package session

import (
	"context"
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

// idleAfter makes client connections idle that soon without calls.
func idleAfter(d time.Duration) nodeOption {
	return func(c *Config, _ *identity.SourceConfig) {
		c.ClientOptions = append(c.ClientOptions, grpc.WithIdleTimeout(d))
	}
}

// What gRPC keeps of a client connection changes with each session, with each call
// after a pause and with each pause, all at the same time.
func TestSessionsComeAndGoWhileCallsDo(t *testing.T) {
	t.Parallel()
	a, b := start(t, idleAfter(time.Millisecond)), start(t)
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
		l := &link{info: Info{Peer: b.id}, auth: identity.AuthInfo{ID: b.id, Trusted: true}, raw: here, mux: mux, gone: make(chan struct{})}
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
		go a.serve(t.Context(), l)
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

// Whoever calls is told what is so now, not what was so when gRPC last tried.
func TestCallsSayWhyThereIsNoSessionNow(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t, dialOnly)
	trustEachOther(t, a, b)
	says := func(want string) {
		t.Helper()
		var err error
		eventually(t, "calls say "+want, func() bool {
			_, err = who(t.Context(), a, b)
			return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "no session with "+string(b.id)) && strings.Contains(err.Error(), want)
		})
	}
	says("waiting for it to come up")
	for i := range 3 {
		a.failed(b.id, fmt.Errorf("try %d", i))
		says(fmt.Sprintf("try %d", i))
	}
	b.SetPeers([]Peer{{ID: a.id, Endpoints: []string{a.addr}}})
	mustWho(t, a, b)
	b.SetPeers(nil)
	a.Close(b.id, errors.New("it is late"))
	says("it is late")
	if state := a.Conn(b.id).GetState(); state != connectivity.TransientFailure {
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
	if _, err := a.open(b.id, routeAddress(number+1)); err == nil || !strings.Contains(err.Error(), "another took its place") {
		t.Errorf("another session's address: %v", err)
	}
	c, err := a.open(b.id, routeAddress(number))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

package volumecopy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/entente-dev/entente/internal/notify"
)

// Config is one side of a copy. All fields are required.
type Config struct {
	// Volume is where the volume is mounted.
	Volume string
	// State is a directory for the status, and the seal.
	State string
	// Secret is the shared secret, and ID identifies the copy.
	Secret []byte
	ID     string
	// Address is where the receiver listens, or where the sender connects.
	Address string
	Log     func(message string, args ...any)
}

// Receive receives what a sender sends. Once it is sealed, since the move has noted that both volumes are
// equal, it removes its marker and receives no more; it ends with ctx.
func Receive(ctx context.Context, cfg Config) error {
	config, err := secure(cfg.Secret)
	if err != nil {
		return err
	}
	listening := net.ListenConfig{KeepAliveConfig: keepalive()}
	listener, err := listening.Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for the sender: %w", err)
	}
	r := &receiver{Config: cfg, report: &reporter{directory: cfg.State}}
	r.report.set(func(s *Status) { s.Phase = Waiting })
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.finish(ctx) })
	turns := make(chan struct{}, maxHandshakes)
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen for the sender: %w", err)
		}
		select {
		case turns <- struct{}{}:
			running.Go(func() { r.take(ctx, tls.Server(conn, config), func() { <-turns }) })
		default:
			_ = conn.Close()
		}
	}
}

type receiver struct {
	Config
	report *reporter

	mu      sync.Mutex
	current func()     // ends the sender's connection before this one
	sealed  bool       // no more connections are served
	serving sync.Mutex // is locked while one of them is served
}

// finish waits until the receiver is sealed, and removes the marker.
func (r *receiver) finish(ctx context.Context) {
	for !r.report.sealed() {
		if !notify.Pause(ctx, sealEach) {
			return
		}
	}
	r.mu.Lock()
	if r.sealed = true; r.current != nil {
		r.current()
	}
	r.mu.Unlock()
	r.serving.Lock() // the connection has ended
	defer r.serving.Unlock()
	r.report.set(func(s *Status) { s.Sealed, s.Problem = true, "" })
	for {
		err := finish(r.Volume, r.ID, r.State)
		if err == nil {
			r.report.set(func(s *Status) { s.Phase, s.Problem = Finished, "" })
			return
		}
		r.Log("will try again", "err", err)
		r.report.problem(err)
		if !notify.Pause(ctx, redialLast) {
			return
		}
	}
}

// take serves a connection once the other side is authenticated, and ends the one before it: a
// sender has only one, and opens another when that is broken.
func (r *receiver) take(ctx context.Context, conn *tls.Conn, begun func()) {
	defer conn.Close() //nolint:errcheck // every request over it has a response
	hands, cancel := context.WithTimeout(ctx, handshakeTimeout)
	err := conn.HandshakeContext(hands)
	cancel()
	begun()
	if err != nil {
		r.Log("refused a connection", "from", conn.RemoteAddr().String(), "err", err)
		return
	}
	ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if !r.turn(cancel) {
		return
	}
	r.serving.Lock()
	defer r.serving.Unlock()
	if ctx.Err() != nil {
		return // another one came, or the receiver was sealed
	}
	if err := r.serve(ctx, newLink(conn)); err != nil && ctx.Err() == nil {
		r.Log("a connection ended", "err", err)
		r.report.problem(err)
	}
}

// turn makes a connection the current one, which end ends. It reports false once the receiver is sealed.
func (r *receiver) turn(end func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sealed {
		return false
	}
	if r.current != nil {
		r.current()
	}
	r.current = end
	return true
}

// serve serves a sender's requests, until it is done.
func (r *receiver) serve(ctx context.Context, l *link) error {
	for {
		m, err := l.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.do(ctx, l, m); err != nil {
			text := err.Error()
			_ = l.send(message{Error: text[:min(len(text), maxProblem)]})
			return err
		}
	}
}

func (r *receiver) do(ctx context.Context, l *link, m message) error {
	d, finished, err := openDestination(r.Volume, r.ID)
	if err != nil {
		return err
	}
	defer d.root.Close() //nolint:errcheck // what matters was synced
	switch m.Do {
	case doCopy:
		return r.copy(ctx, l, d, finished, m.All)
	case doDigest:
		r.report.set(func(s *Status) { s.Phase, s.Files, s.Bytes, s.Problem = Reading, 0, 0, "" })
		sum, err := digest(ctx, r.Volume, func(bytes int64) { r.report.count(0, bytes) })
		if err != nil {
			return err
		}
		r.report.set(func(s *Status) { s.Sum = sum })
		return l.send(message{Sum: &sum})
	case doDone:
		r.report.set(func(s *Status) { s.Phase, s.Problem = Verified, "" })
		return l.send(message{})
	}
	return fmt.Errorf("unknown request %.32q", m.Do)
}

func (r *receiver) copy(ctx context.Context, l *link, d *destination, finished, all bool) error {
	if finished {
		return l.send(message{Finished: true})
	}
	var keys []key
	if !all {
		var err error
		if keys, err = d.has(ctx); err != nil {
			return err
		}
	}
	if err := l.sendKeys(keys); err != nil {
		return err
	}
	r.report.set(func(s *Status) { *s = Status{Phase: Copying, Pass: s.Pass + 1} })
	if err := d.fill(ctx, l.in, r.report.count); err != nil {
		return err
	}
	if err := d.sync(); err != nil {
		return err
	}
	r.report.set(func(s *Status) { s.Phase = Copied })
	return l.send(message{})
}

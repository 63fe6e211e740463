package volumecopy

import (
	"archive/tar"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/internal/notify"
)

const (
	// redialFirst is the pause before a connection is tried again, and redialLast the value to which it
	// grows.
	redialFirst = 500 * time.Millisecond
	redialLast  = 5 * time.Second
	// sealEach is how often a sender checks whether it is sealed.
	sealEach = 200 * time.Millisecond
)

// errDiffers means that the volumes are still not equal after maxPasses copies.
var errDiffers = fmt.Errorf("the copy still differs from the source after %d tries", maxPasses)

// Send sends a volume to a receiver, waits until it is sealed, verifies the copy, and then keeps the
// volume mounted until ctx ends, so that no other pod can use it before its replacement exists. Where it
// loses the receiver meanwhile it verifies the copy again, since the next receiver does not know that.
func Send(ctx context.Context, cfg Config) error {
	config, err := secure(cfg.Secret)
	if err != nil {
		return err
	}
	s := &sender{Config: cfg, tls: config, report: &reporter{directory: cfg.State}}
	for wait := redialFirst; ; wait = min(wait*2, redialLast) {
		s.report.set(func(s *Status) { s.Phase = Connecting })
		err := s.session(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // ctx ended
		case errors.Is(err, errDiffers):
			return err
		}
		s.Log("will connect again", "err", err)
		s.report.problem(err)
		if !notify.Pause(ctx, wait) {
			return nil
		}
	}
}

type sender struct {
	Config
	tls    *tls.Config
	report *reporter
	// passes is how many copies were made since the source was sealed.
	passes int
}

// session does everything that is left to do, over one connection to the receiver, and ends with that.
func (s *sender) session(ctx context.Context) error {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: handshakeTimeout, KeepAliveConfig: keepalive()}, Config: s.tls}
	conn, err := dialer.DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("connect to the receiver: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	l := newLink(conn)
	sealed, equal := s.report.sealed(), false
	if !sealed {
		if err := s.first(ctx, l); err != nil {
			return err
		}
	}
	s.report.set(func(s *Status) { s.Sealed = true })
	if sealed {
		// The move may know already that both volumes are equal, and end the receiver at any moment, which must
		// not write then.
		if equal, err = s.compare(ctx, l); err != nil {
			return err
		}
	}
	for ; !equal; s.passes++ {
		if s.passes == maxPasses {
			return errDiffers
		}
		if err := s.copy(ctx, l); err != nil {
			return err
		}
		if equal, err = s.compare(ctx, l); err != nil {
			return err
		}
		if !equal {
			s.Log("the copy differs from the source", "pass", s.passes+1)
		}
	}
	if err := s.order(l, doDone); err != nil {
		return err
	}
	s.report.set(func(s *Status) { s.Phase, s.Problem = Verified, "" })
	_, err = l.receive() // it sends no more
	return fmt.Errorf("after the copy was verified: %w", err)
}

// first makes the copy that is possible while other pods can use the source, and waits until none can.
func (s *sender) first(ctx context.Context, l *link) error {
	if err := s.copy(ctx, l); err != nil {
		return err
	}
	s.report.set(func(s *Status) { s.Phase, s.Problem = Copied, "" })
	for !s.report.sealed() {
		if !notify.Pause(ctx, sealEach) {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (s *sender) order(l *link, what string) error {
	if err := l.send(message{Do: what}); err != nil {
		return err
	}
	_, err := l.receive()
	return err
}

// copy makes the destination equal to the source. After two copies that compared identities and did
// not achieve that, it sends all files.
func (s *sender) copy(ctx context.Context, l *link) error {
	all := s.passes >= 2
	if err := l.send(message{Do: doCopy, All: all}); err != nil {
		return err
	}
	m, err := l.receive()
	if err != nil || m.Finished {
		return err
	}
	have, err := l.receiveKeys(m.Keys)
	if err != nil {
		return err
	}
	s.report.set(func(is *Status) { is.Phase, is.Pass, is.Files, is.Bytes = Copying, is.Pass+1, 0, 0 })
	if err := s.archive(ctx, l.out, have); err != nil {
		// The receiver's error says more than the broken connection.
		if sent := s.receiverError(l); sent != nil {
			err = sent
		}
		return err
	}
	if err := l.out.Flush(); err != nil {
		return fmt.Errorf("write to the other side: %w", err)
	}
	_, err = l.receive()
	return err
}

func (s *sender) receiverError(l *link) error {
	if err := l.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return nil //nolint:nilerr // the receiver sent none
	}
	if m, err := readMessage(l.in); err == nil && m.Error != "" {
		return fmt.Errorf("the other side: %q", m.Error)
	}
	return nil
}

// archive writes what the destination lacks.
func (s *sender) archive(ctx context.Context, to io.Writer, have map[key]bool) error {
	out := tar.NewWriter(to)
	w := walker{visit: func(e *Entry, open *os.File) error {
		if e.Kind == File {
			if e.have = have[e.identity()]; !e.have {
				var st unix.Stat_t
				if err := unix.Fstat(int(open.Fd()), &st); err != nil {
					return fmt.Errorf("read %q: %w", e.Path, err)
				}
				e.extents = extentsOf(open, e.Size, st.Blocks)
			}
		}
		if err := out.WriteHeader(e.header()); err != nil {
			return fmt.Errorf("send %q: %w", e.Path, err)
		}
		if err := s.content(ctx, out, e, open); err != nil {
			return fmt.Errorf("send %q: %w", e.Path, err)
		}
		s.report.count(1, 0)
		return nil
	}}
	if err := w.walk(ctx, s.Volume); err != nil {
		return err
	}
	return out.Close()
}

// content writes the parts of a file that have data. If the file is truncated meanwhile, it writes
// zeros; the digests differ then.
func (s *sender) content(ctx context.Context, to io.Writer, e *Entry, file *os.File) error {
	if e.follows() == 0 {
		return nil
	}
	extents := e.extents
	if extents == nil {
		extents = []extent{{0, e.Size}}
	}
	buffer := make([]byte, 256<<10)
	for _, x := range extents {
		for at, end := x.offset, x.offset+x.length; at < end; {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			part := buffer[:min(int64(len(buffer)), end-at)]
			n, err := file.ReadAt(part, at)
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			clear(part[n:])
			if _, err := to.Write(part); err != nil {
				return err
			}
			at += int64(len(part))
			s.report.count(0, int64(len(part)))
		}
	}
	return nil
}

// compare compares the digests of both volumes, which the two sides compute at the same time.
func (s *sender) compare(ctx context.Context, l *link) (equal bool, err error) {
	s.report.set(func(s *Status) { s.Phase, s.Files, s.Bytes = Reading, 0, 0 })
	if err := l.send(message{Do: doDigest}); err != nil {
		return false, err
	}
	sum, err := digest(ctx, s.Volume, func(bytes int64) { s.report.count(0, bytes) })
	if err != nil {
		return false, err
	}
	s.report.set(func(is *Status) { is.Sum = sum })
	m, err := l.receive()
	if err != nil {
		return false, err
	}
	return m.Sum != nil && *m.Sum == sum, nil
}

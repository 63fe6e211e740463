package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"

	"github.com/entente-dev/entente/peering"
)

// FollowLogs is like Logs, but a log that is followed continues where it was when the provider's
// agent is replaced. It reads a time in front of each line, by which it knows where to continue,
// and removes the times unless o asks for them. A log cannot continue within a line longer than
// maxLine.
func FollowLogs(ctx context.Context, conn grpc.ClientConnInterface, contract string, pod peering.ObjectRef, o peering.LogOptions) (io.ReadCloser, error) {
	open := func(ctx context.Context, o peering.LogOptions) (io.ReadCloser, error) {
		return Logs(ctx, conn, contract, pod, o)
	}
	return followLogs(ctx, open, o)
}

type openLog func(context.Context, peering.LogOptions) (io.ReadCloser, error)

func followLogs(ctx context.Context, open openLog, o peering.LogOptions) (io.ReadCloser, error) {
	if !o.Follow || o.LimitBytes != nil {
		return open(ctx, o)
	}
	strip := !o.Timestamps
	o.Timestamps = true
	ctx, cancel := context.WithCancel(ctx)
	log, err := open(ctx, o)
	if err != nil {
		cancel()
		return nil, err
	}
	return &follower{ctx: ctx, cancel: cancel, open: open, options: o, log: log, position: position{strip: strip}}, nil
}

// follower reads a log, and opens it again when it breaks.
type follower struct {
	ctx     context.Context //nolint:containedctx // that of the reader, until Close
	cancel  context.CancelFunc
	open    openLog
	options peering.LogOptions
	log     io.ReadCloser

	position position
	lastLine time.Time // when the last line came
	buf      [streamChunk]byte
	ready    []byte
	err      error
}

// Read implements io.Reader.
func (f *follower) Read(p []byte) (int, error) {
	for len(f.ready) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		n, err := f.log.Read(f.buf[:])
		if n > 0 {
			f.lastLine = time.Now()
			f.ready = f.position.take(f.buf[:n])
		}
		if err != nil {
			f.err = f.broke(err)
			if f.err != nil {
				f.ready = append(f.ready, f.position.rest()...)
			}
		}
	}
	n := copy(p, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// broke opens the log again, if it did not end. Its error is why the log ended.
func (f *follower) broke(err error) error {
	if errors.Is(err, io.EOF) || f.ctx.Err() != nil || f.position.raw {
		return err
	}
	_ = f.log.Close()
	f.position.again()
	for began := time.Now(); time.Since(began) < followPatience; {
		select {
		case <-f.ctx.Done():
			return err
		case <-time.After(followAgain):
		}
		options := f.options
		if !f.position.last.IsZero() {
			// The provider's clock may differ, so this asks for some more: lines that were read
			// before are left out.
			ago := int64(math.Ceil((time.Since(f.lastLine) + followOverlap).Seconds()))
			options.TailLines, options.SinceSeconds = nil, &ago
		}
		if log, openErr := f.open(f.ctx, options); openErr == nil {
			f.log = log
			return nil
		}
	}
	return err
}

// Close implements io.Closer.
func (f *follower) Close() error {
	f.cancel()
	return f.log.Close()
}

// position is how far a log with times was read.
type position struct {
	// strip means that times are removed.
	strip bool
	// last is the time of the last line that was returned, and same how many lines of that time were.
	last time.Time
	same int
	// passing means that lines up to the position are left out; passed of them had its time.
	passing bool
	passed  int
	// line is the part that came of an incomplete line.
	line []byte
	// raw means that lines have no times, so that they are returned unchanged.
	raw bool
}

// again leaves out lines that were read before when the log is opened again.
func (p *position) again() { p.line, p.passing, p.passed = nil, true, 0 }

// rest returns what is left when the log ends.
func (p *position) rest() []byte {
	out := p.whole(p.line)
	p.line = nil
	return out
}

// take takes the next bytes of a log, and returns those to be returned by Read.
func (p *position) take(in []byte) (out []byte) {
	for {
		if p.raw {
			out, p.line = append(append(out, p.line...), in...), nil
			return out
		}
		i := bytes.IndexByte(in, '\n')
		if i < 0 {
			p.line = append(p.line, in...)
			if len(p.line) <= maxLine {
				return out
			}
			whole := p.whole(p.line)
			p.line, p.raw = nil, true
			return append(out, whole...)
		}
		line := append(p.line, in[:i+1]...)
		p.line, in = nil, in[i+1:]
		out = append(out, p.whole(line)...)
	}
}

// whole returns the part of a complete line that is to be returned by Read.
func (p *position) whole(line []byte) []byte {
	if len(line) == 0 || p.raw {
		return line
	}
	stamp, text, ok := bytes.Cut(line, []byte(" "))
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if !ok || err != nil {
		p.raw = true // and so it is where it breaks
		return line
	}
	if p.passing {
		if at.Before(p.last) || at.Equal(p.last) && p.passed < p.same {
			if at.Equal(p.last) {
				p.passed++
			}
			return nil
		}
		p.passing = false
	}
	if at.Equal(p.last) {
		p.same++
	} else {
		p.last, p.same = at, 1
	}
	if p.strip {
		return text
	}
	return line
}

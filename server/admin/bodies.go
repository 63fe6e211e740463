package admin

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// bodies reads the bodies of requests. gRPC over net/http reads a body to its end even if no
// handler does, and keeps 16 KiB for each piece however small, and REST decodes it. So a body is
// read as a whole before, only of known callers, within a time, and few large ones at once.
type bodies struct {
	users, all *middleware.Limiter
	timeout    time.Duration
}

func newBodies(now func() time.Time, timeout time.Duration) *bodies {
	return &bodies{
		users:   middleware.NewLimiter(UserRate, UserBurst, UserLargeBodies, now),
		all:     middleware.NewLimiter(MaxLargeBodies*UserRate, MaxLargeBodies*UserBurst, MaxLargeBodies, now),
		timeout: timeout,
	}
}

var errBodyTooLong = &http.MaxBytesError{Limit: MaxBody}

// read reads a body of limit bytes at most. leave has to be called when the body is no longer
// needed.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, user string, limit int64) (body []byte, leave func(), err error) {
	leave = func() {}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, leave, nil
	}
	deadline := http.NewResponseController(w).SetReadDeadline
	if err := deadline(time.Now().Add(b.timeout)); err != nil {
		return nil, leave, err //nolint:wrapcheck // the connection's own
	}
	var buf bytes.Buffer
	_, err = io.CopyN(&buf, r.Body, min(limit+1, SmallBody))
	if err == nil && limit >= SmallBody {
		if leave, err = b.large(user); err != nil {
			return nil, func() {}, err
		}
		_, err = io.CopyN(&buf, r.Body, limit+1-SmallBody)
	}
	switch {
	case err == nil:
		err = errBodyTooLong
	case errors.Is(err, io.EOF):
		// HTTP/1 would take a late deadline for a client that went away.
		err = deadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = context.DeadlineExceeded
	}
	return buf.Bytes(), leave, err
}

// large takes a place among the large bodies.
func (b *bodies) large(user string) (leave func(), err error) {
	own, err := b.users.Enter(user)
	if err != nil {
		return nil, err
	}
	all, err := b.all.Enter("")
	if err != nil {
		own()
		return nil, err
	}
	return func() { own(); all() }, nil
}

// messages returns the body of a stream one message at a time, and MaxBodyMessages of them at
// most.
type messages struct {
	io.Closer
	body io.Reader
	buf  bytes.Buffer
	n    int
}

func (m *messages) Read(p []byte) (int, error) {
	if m.buf.Len() == 0 {
		var head [5]byte
		if _, err := io.ReadFull(m.body, head[:]); err != nil {
			return 0, err //nolint:wrapcheck // gRPC checks for io.EOF
		}
		size := binary.BigEndian.Uint32(head[1:])
		if m.n++; m.n > MaxBodyMessages || size > SmallBody {
			return 0, errBodyTooLong
		}
		m.buf.Reset()
		m.buf.Write(head[:])
		if _, err := io.CopyN(&m.buf, m.body, int64(size)); err != nil {
			return 0, err //nolint:wrapcheck // as above
		}
	}
	return m.buf.Read(p) //nolint:wrapcheck // it has bytes
}

// tooLong is the error that a body is larger than it may be.
func tooLong(err error) error {
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return middleware.BadField("body", "is larger than %d bytes", large.Limit)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &peering.Error{Reason: peering.ReasonRequestInvalid, Message: "the request ends too early"}
	}
	return err
}

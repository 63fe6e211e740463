package peertest

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// CallEnd is one end of a call in memory. As in gRPC, a send waits while the other end does not
// read, and an end that was ended fails at both.
type CallEnd struct {
	in, out chan []byte
	call    *call
}

type call struct {
	done chan struct{}
	once sync.Once
	why  error
}

// NewCall returns both ends of a call, whose flow control lets some messages wait.
func NewCall() (near, far *CallEnd) {
	a, b, c := make(chan []byte, 4), make(chan []byte, 4), &call{done: make(chan struct{})}
	return &CallEnd{a, b, c}, &CallEnd{b, a, c}
}

// Send sends bytes to the other end.
func (e *CallEnd) Send(data []byte) error {
	select {
	case e.out <- bytes.Clone(data):
		return nil
	case <-e.call.done:
		return io.EOF
	}
}

// Recv returns what the other end sent next, and io.EOF with the reason once the call has ended.
func (e *CallEnd) Recv() ([]byte, error) {
	select {
	case data := <-e.in:
		return data, nil
	default:
	}
	select {
	case data := <-e.in:
		return data, nil
	case <-e.call.done:
		return nil, errors.Join(io.EOF, e.call.why)
	}
}

// End ends the call at both ends.
func (e *CallEnd) End(why error) {
	e.call.once.Do(func() {
		e.call.why = why
		close(e.call.done)
	})
}

// Done is closed when the call has ended.
func (e *CallEnd) Done() <-chan struct{} { return e.call.done }

// Ended reports whether the call has ended.
func (e *CallEnd) Ended() bool {
	select {
	case <-e.call.done:
		return true
	default:
		return false
	}
}

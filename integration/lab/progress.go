package lab

import (
	"fmt"
	"sync"
	"time"
)

// event is one line of what a daemon does until the lab is ready.
type event struct {
	At   time.Duration `json:"at"` // since the daemon's start
	Text string        `json:"text,omitempty"`
	// Done is set in the last event, with the error if there is one.
	Done  bool   `json:"done,omitempty"`
	Error string `json:"error,omitempty"`
}

// progress keeps all events for later readers and wakes those that wait.
type progress struct {
	begin time.Time

	mu     sync.Mutex
	events []event
	wake   chan struct{} // closed and replaced at each event
}

func newProgress() *progress { return &progress{begin: time.Now(), wake: make(chan struct{})} }

func (p *progress) say(format string, args ...any) {
	p.add(event{Text: fmt.Sprintf(format, args...)})
}

func (p *progress) done(err error) {
	e := event{Done: true}
	if err != nil {
		e.Error = err.Error()
	}
	p.add(e)
}

func (p *progress) add(e event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.At = time.Since(p.begin)
	p.events = append(p.events, e)
	close(p.wake)
	p.wake = make(chan struct{})
}

// since returns the events from number n on, and a channel that is closed at the next.
func (p *progress) since(n int) ([]event, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events[min(n, len(p.events)):], p.wake
}

package progress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Terminal is where progress is told, and what it is told with.
type Terminal struct {
	// Steps is where what is done is told, Waits where what is waited for is.
	Steps, Waits io.Writer
	// Redraw says that a line of Waits can be redrawn, Width how many characters it has.
	Redraw bool
	Width  int
	Now    func() time.Time
	Sleep  func(ctx context.Context, d time.Duration) error
	// Follow is notified of changes at a cluster that is waited for; nil asks again and again.
	Follow func(ctx context.Context, admin ententev1.AdminServiceClient, sleep func(context.Context, time.Duration) error) *Follower
}

// Progress tells of the steps of a command: a line for each that is done, with
// how long it took, and on a terminal a line that turns while one is waited for.
type Progress struct {
	Terminal
	// followers is of the clusters that were waited for, by label.
	followers map[string]*Follower

	mu      sync.Mutex
	start   time.Time
	waiting string
}

// New begins to tell of the steps of a command.
func New(t Terminal) *Progress {
	return &Progress{Terminal: t, start: t.Now(), followers: map[string]*Follower{}}
}

// Begin marks the beginning of a step, for its elapsed time.
func (p *Progress) Begin() { p.start = p.Now() }

// Done tells of a step that is done.
func (p *Progress) Done(cluster, format string, args ...any) {
	p.Clear()
	took := p.Now().Sub(p.start)
	_, _ = fmt.Fprintf(p.Steps, " INFO   (%s) %s (%s)\n", cluster, printer.Safe(fmt.Sprintf(format, args...)), elapsed(took))
	p.Begin()
}

// Note prints what is worth knowing but no step.
func (p *Progress) Note(cluster, format string, args ...any) {
	p.Clear()
	_, _ = fmt.Fprintf(p.Steps, " NOTE   (%s) %s\n", cluster, printer.Safe(fmt.Sprintf(format, args...)))
}

func elapsed(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

const frames = `|/-\`

// Wait shows what is waited for.
func (p *Progress) Wait(cluster, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what = printer.Safe(what)
	if p.Redraw {
		frame := frames[int(p.Now().Sub(p.start)/PollEvery)%len(frames)]
		text := fmt.Sprintf(" %c      (%s) waiting for %s (%s)", frame, cluster, what, elapsed(p.Now().Sub(p.start)))
		// A line that wraps cannot be redrawn.
		if utf8.RuneCountInString(text) >= p.Width {
			text = string([]rune(text)[:p.Width-1])
		}
		_, _ = io.WriteString(p.Waits, "\r\x1b[K"+text)
		p.waiting = what
		return
	}
	if what != p.waiting {
		_, _ = fmt.Fprintf(p.Waits, " WAIT   (%s) for %s\n", cluster, what)
		p.waiting = what
	}
}

// Clear removes the line that says what is waited for.
func (p *Progress) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Redraw && p.waiting != "" {
		_, _ = io.WriteString(p.Waits, "\r\x1b[K")
	}
	p.waiting = ""
}

// Poll asks a cluster until the answer is done: whenever something changed, and now and
// then. check returns what is waited for; an error
// of it ends the wait unless it is one that passes. When ctx ends, the error says
// what was waited for last, and hint what to do about it.
func (p *Progress) Poll(ctx context.Context, label string, admin ententev1.AdminServiceClient, hint string, check func(context.Context) (done bool, waiting string, err error)) error {
	last := "an answer"
	for {
		done, waiting, err := check(ctx)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			last = waiting
		case ctx.Err() == nil && Passes(err):
			last = fmt.Sprintf("the agent to answer (%s)", client.Explain(err))
		case ctx.Err() == nil:
			p.Clear()
			return err
		}
		if ctx.Err() == nil {
			p.Wait(label, last)
			if p.pause(ctx, label, admin, last) == nil {
				continue
			}
		}
		p.Clear()
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			msg := fmt.Sprintf("timed out; (%s) was waiting for %s", label, printer.Safe(last))
			if hint != "" {
				msg += "\n  next: " + hint
			}
			return &exit.Error{Code: exit.Timeout, Err: errors.New(msg)}
		}
		return &exit.Error{Code: exit.Interrupted, Err: errors.New("interrupted; the clusters continue what was begun")}
	}
}

// pause waits until something changed at a cluster, or long enough to ask all the
// same, and goes on telling what is waited for.
func (p *Progress) pause(ctx context.Context, label string, admin ententev1.AdminServiceClient, what string) error {
	if p.Follow == nil {
		return p.Sleep(ctx, PollEvery)
	}
	follower := p.followers[label]
	if follower == nil {
		follower = p.Follow(ctx, admin, p.Sleep)
		p.followers[label] = follower
	}
	tick := time.NewTicker(PollEvery)
	defer tick.Stop()
	for waited := PollEvery; ; waited += PollEvery {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-follower.changed:
			return p.Sleep(ctx, PollPause)
		case <-tick.C:
		}
		if waited >= follower.patience() {
			return nil
		}
		p.Wait(label, what)
	}
}

// Settles says whether something has been so for long enough to be taken for more
// than the word of before. since is when it was first seen.
func (p *Progress) Settles(since *time.Time) bool {
	if since.IsZero() {
		*since = p.Now()
	}
	return p.Now().Sub(*since) >= settled
}

// settled is how long a condition has to say the same for that.
const settled = 2500 * time.Millisecond

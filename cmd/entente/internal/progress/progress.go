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

// Terminal is where and how progress is printed.
type Terminal struct {
	// Completed steps are printed to Steps, and what the command waits for to Waits.
	Steps, Waits io.Writer
	// Redraw means that a line of Waits can be redrawn, Width is its number of characters.
	Redraw bool
	Width  int
	Now    func() time.Time
	Sleep  func(ctx context.Context, d time.Duration) error
	// Follow reports changes at a cluster that a command waits for; nil means polling.
	Follow func(ctx context.Context, admin ententev1.AdminServiceClient, sleep func(context.Context, time.Duration) error) *Follower
}

// Progress prints the steps of a command: a line for each completed one, with the time
// that it took, and on a terminal a spinner while it waits for one.
type Progress struct {
	Terminal
	// followers are those of the clusters that the command waited for, by label.
	followers map[string]*Follower

	mu      sync.Mutex
	start   time.Time
	waiting string
}

// New starts to print the steps of a command.
func New(t Terminal) *Progress {
	return &Progress{Terminal: t, start: t.Now(), followers: map[string]*Follower{}}
}

// Begin marks the beginning of a step, for its elapsed time.
func (p *Progress) Begin() { p.start = p.Now() }

// Done prints a completed step.
func (p *Progress) Done(cluster, format string, args ...any) {
	p.Clear()
	took := p.Now().Sub(p.start)
	_, _ = fmt.Fprintf(p.Steps, " INFO   (%s) %s (%s)\n", cluster, printer.Safe(fmt.Sprintf(format, args...)), elapsed(took))
	p.Begin()
}

// Note prints what is worth knowing but is not a step, unless it is empty.
func (p *Progress) Note(cluster, format string, args ...any) {
	if text := printer.Safe(fmt.Sprintf(format, args...)); text != "" {
		p.Clear()
		_, _ = fmt.Fprintf(p.Steps, " NOTE   (%s) %s\n", cluster, text)
	}
}

func elapsed(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

const frames = `|/-\`

// Wait shows what the command waits for.
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

// Clear removes the line of Wait.
func (p *Progress) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Redraw && p.waiting != "" {
		_, _ = io.WriteString(p.Waits, "\r\x1b[K")
	}
	p.waiting = ""
}

// Poll calls check until it is done: after each change at the cluster, and now and then.
// check also returns what it waits for; an error of it ends the wait, unless it is
// transient. When ctx ends, the error has the last of what it waited for, and hint says
// what to do about it.
func (p *Progress) Poll(ctx context.Context, label string, admin ententev1.AdminServiceClient, hint string, check func(context.Context) (done bool, waiting string, err error)) error {
	last := "an answer"
	for {
		done, waiting, err := check(ctx)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			last = waiting
		case ctx.Err() == nil && Transient(err):
			last = fmt.Sprintf("the agent to respond (%s)", client.Explain(err))
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
		return &exit.Error{Code: exit.Interrupted, Err: errors.New("interrupted; the clusters continue what was started")}
	}
}

// pause waits until something changed at a cluster, or until it is time to poll anyway,
// and shows meanwhile what the command waits for.
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

// Stable reports whether a status has been the same for long enough not to be an old one
// that is about to change. since is when it was first seen.
func (p *Progress) Stable(since *time.Time) bool {
	if since.IsZero() {
		*since = p.Now()
	}
	return p.Now().Sub(*since) >= stableAfter
}

// stableAfter is how long a status has to stay the same for that.
const stableAfter = 2500 * time.Millisecond

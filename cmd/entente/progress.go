package main

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
)

// progress tells of the steps of a command: a line for each that is done, with
// how long it took, and on a terminal a line that turns while one is waited for.
type progress struct {
	app *app
	// steps is where what is done is told, waits where what is waited for is. They
	// are silent where the output is for a program and nobody watches.
	steps, waits io.Writer

	mu      sync.Mutex
	start   time.Time
	waiting string
}

// progress begins to tell of the steps of a command with that output.
func (a *app) progress(o *printer.Flags) *progress {
	p := &progress{app: a, start: a.now(), steps: a.out, waits: a.errOut}
	if o.Structured() {
		p.steps = a.errOut
		if !a.watched {
			p.steps, p.waits = io.Discard, io.Discard
		}
	}
	return p
}

// begin marks the beginning of a step, for its elapsed time.
func (p *progress) begin() { p.start = p.app.now() }

func (p *progress) done(cluster, format string, args ...any) {
	p.clear()
	took := p.app.now().Sub(p.start)
	_, _ = fmt.Fprintf(p.steps, " INFO   (%s) %s (%s)\n", cluster, safe(fmt.Sprintf(format, args...)), elapsed(took))
	p.begin()
}

// note prints what is worth knowing but no step.
func (p *progress) note(cluster, format string, args ...any) {
	p.clear()
	_, _ = fmt.Fprintf(p.steps, " NOTE   (%s) %s\n", cluster, safe(fmt.Sprintf(format, args...)))
}

// next says what can be done next, where somebody reads it.
func (a *app) next(format string, args ...any) {
	if a.watched {
		_, _ = fmt.Fprintf(a.errOut, format+"\n", args...)
	}
}

func elapsed(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

const frames = `|/-\`

// wait shows what is waited for.
func (p *progress) wait(cluster, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what = safe(what)
	if p.app.redraw {
		frame := frames[int(p.app.now().Sub(p.start)/pollEvery)%len(frames)]
		text := fmt.Sprintf(" %c      (%s) waiting for %s (%s)", frame, cluster, what, elapsed(p.app.now().Sub(p.start)))
		// A line that wraps cannot be redrawn.
		if utf8.RuneCountInString(text) >= p.app.width {
			text = string([]rune(text)[:p.app.width-1])
		}
		_, _ = io.WriteString(p.waits, "\r\x1b[K"+text)
		p.waiting = what
		return
	}
	if what != p.waiting {
		_, _ = fmt.Fprintf(p.waits, " WAIT   (%s) for %s\n", cluster, what)
		p.waiting = what
	}
}

func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.app.redraw && p.waiting != "" {
		_, _ = io.WriteString(p.waits, "\r\x1b[K")
	}
	p.waiting = ""
}

// poll asks until the answer is done: whenever something changed, and now and
// then. check returns what is waited for; an error
// of it ends the wait unless it is one that passes. When ctx ends, the error says
// what was waited for last, and hint what to do about it.
func (p *progress) poll(ctx context.Context, c *cluster, hint string, check func(context.Context) (done bool, waiting string, err error)) error {
	last := "an answer"
	for {
		done, waiting, err := check(ctx)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			last = waiting
		case ctx.Err() == nil && passes(err):
			last = fmt.Sprintf("the agent to answer (%s)", client.Explain(err))
		case ctx.Err() == nil:
			p.clear()
			return err
		}
		if ctx.Err() == nil {
			p.wait(c.label, last)
			if p.pause(ctx, c, last) == nil {
				continue
			}
		}
		p.clear()
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			msg := fmt.Sprintf("timed out; (%s) was waiting for %s", c.label, safe(last))
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
func (p *progress) pause(ctx context.Context, c *cluster, what string) error {
	if p.app.follow == nil {
		return p.app.sleep(ctx, pollEvery)
	}
	if c.follower == nil {
		c.follower = p.app.follow(ctx, c.admin, p.app.sleep)
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for waited := pollEvery; ; waited += pollEvery {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.follower.changed:
			return p.app.sleep(ctx, pollPause)
		case <-tick.C:
		}
		if waited >= c.follower.patience() {
			return nil
		}
		p.wait(c.label, what)
	}
}

// settles says whether something has been so for long enough to be taken for more
// than the word of before. since is when it was first seen.
func (p *progress) settles(since *time.Time) bool {
	if since.IsZero() {
		*since = p.app.now()
	}
	return p.app.now().Sub(*since) >= settled
}

// settled is how long a condition has to say the same for that.
const settled = 2500 * time.Millisecond

// passes says whether a failed call is worth repeating.
func passes(err error) bool {
	switch client.ReasonOf(err) {
	case "UNAVAILABLE", "KUBERNETES_UNAVAILABLE", "RATE_LIMITED", "TOO_MANY_CALLS", "CONFLICT", "STOPPING":
		return true
	}
	return false
}

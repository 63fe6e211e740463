package show

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Step is a step that is under way.
type Step struct{ show *Show }

// spinner is the line at the bottom that moves.
type spinner struct {
	begin time.Time
	frame int
	what  string
	drawn bool
	stop  chan struct{}
	done  chan struct{}
}

// Wait says what is waited for now.
func (t *Step) Wait(what string) {
	s := t.show
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spin == nil || s.spin.what == what {
		return
	}
	s.spin.what = what
	if what != "" && !s.terminal {
		s.line("  … " + what)
		return
	}
	s.erase()
	s.draw()
}

// Note writes a line of explanation.
func (t *Step) Note(text string) {
	t.write(t.show.paint(dim, indent(wrap(text, min(t.show.width, 78)-2))))
}

// Command writes a command as it could be typed.
func (t *Step) Command(line string) { t.write(t.show.paint(yellow, "  $ "+line)) }

// Output writes what a command printed.
func (t *Step) Output(text string) {
	text = strings.TrimRight(text, "\n ")
	if text == "" {
		return
	}
	t.write(indent(indent(text)))
}

// Lines returns a writer of what a command prints, which writes each line as soon as it
// is whole.
func (t *Step) Lines() *Lines { return &Lines{step: t} }

// Lines writes the lines of a command that runs.
type Lines struct {
	step *Step
	mu   sync.Mutex
	rest []byte
}

// Write implements io.Writer.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	if i := bytes.LastIndexByte(l.rest, '\n'); i >= 0 {
		l.step.Output(string(l.rest[:i]))
		l.rest = l.rest[i+1:]
	}
	return len(p), nil
}

// Flush writes what is left: a last line without its end.
func (l *Lines) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step.Output(string(l.rest))
	l.rest = nil
}

// Fact writes something that was checked and is so.
func (t *Step) Fact(format string, args ...any) {
	t.write(t.show.paint(green, "  ✓ ") + fmt.Sprintf(format, args...))
}

func (t *Step) write(text string) {
	t.show.mu.Lock()
	defer t.show.mu.Unlock()
	t.show.line(text)
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }

func frames() []string {
	return []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}
}

// turn draws the spinner until it is stopped.
func (s *Show) turn(spin *spinner) {
	defer close(spin.done)
	tick := time.NewTicker(frameEvery)
	defer tick.Stop()
	for {
		select {
		case <-spin.stop:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		spin.frame++
		s.erase()
		s.draw()
		s.mu.Unlock()
	}
}

// erase takes the spinner off the screen. s.mu is held.
func (s *Show) erase() {
	if s.spin != nil && s.spin.drawn {
		fmt.Fprint(s.out, "\r\x1b[2K")
		s.spin.drawn = false
	}
}

// draw puts it there. s.mu is held.
func (s *Show) draw() {
	if s.spin == nil || !s.terminal {
		return
	}
	select {
	case <-s.spin.stop:
		return
	default:
	}
	all := frames()
	what := s.spin.what
	if what == "" {
		what = "working"
	}
	tail := " (" + Seconds(time.Since(s.spin.begin)) + ")"
	text := []rune(what)
	if most := s.width - 6 - len(tail); len(text) > most {
		text = append(text[:max(0, most-1)], '…')
	}
	fmt.Fprint(s.out, "  "+s.paint(cyan, all[s.spin.frame%len(all)])+" "+string(text)+s.paint(dim, tail))
	s.spin.drawn = true
}

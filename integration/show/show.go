// Package show shows people on a terminal what a program does, while it does it: titles, steps with a spinner that says
// what they wait for and the time each took, the commands that were run and their output. Where there is no terminal,
// or NO_COLOR is set, it writes plain lines.
package show

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
)

const (
	// frameEvery is how often the spinner turns.
	frameEvery = 100 * time.Millisecond
	// widthOtherwise is taken where the terminal does not say how wide it is.
	widthOtherwise = 100
)

// Timed is a step and how long it took.
type Timed struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Show writes what happens. Its methods may be called from several goroutines;
// steps do not nest.
type Show struct {
	out      io.Writer
	terminal bool // the spinner moves
	colour   bool
	width    int

	mu    sync.Mutex
	steps []Timed
	spin  *spinner
	begin time.Time
}

// New shows on out. It moves and has colours if out is a terminal, NO_COLOR is
// not set and TERM is not dumb.
func New(out *os.File) *Show {
	s := &Show{out: out, width: widthOtherwise, begin: time.Now()}
	if term.IsTerminal(int(out.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		s.terminal, s.colour = true, true
		if w, _, err := term.GetSize(int(out.Fd())); err == nil && w > 20 {
			s.width = w
		}
	}
	return s
}

// Plain shows plain lines on any writer.
func Plain(out io.Writer) *Show { return &Show{out: out, width: widthOtherwise, begin: time.Now()} }

// The few ways in which text is set off.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

func (s *Show) paint(style, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// Chapter begins a part, with a title and a few words of what it is about.
func (s *Show) Chapter(title, about string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line("")
	s.line(s.paint(bold+";"+cyan, "── "+title+" "+strings.Repeat("─", max(0, min(s.width, 78)-len([]rune(title))-4))))
	if about != "" {
		s.line(s.paint(dim, wrap(about, min(s.width, 78))))
	}
}

// Say writes a line or several.
func (s *Show) Say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line(text)
}

// Step runs do, shows what it waits for, and writes how long it took. The error
// is that of do.
func (s *Show) Step(name string, do func(*Step) error) error {
	begin := time.Now()
	s.mu.Lock()
	s.line("")
	s.line(s.paint(bold, "▸ "+name))
	s.spin = &spinner{begin: begin, stop: make(chan struct{}), done: make(chan struct{})}
	spin := s.spin
	s.mu.Unlock()
	if s.terminal {
		go s.turn(spin)
	} else {
		close(spin.done)
	}
	err := do(&Step{show: s})
	close(spin.stop)
	<-spin.done
	took := time.Since(begin)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.spin = nil
	if err != nil {
		s.line(s.paint(red, "  ✘ "+name+" failed after "+Seconds(took)))
		return err
	}
	s.steps = append(s.steps, Timed{Name: name, Seconds: took.Round(time.Millisecond).Seconds()})
	s.line(s.paint(green, "  ✔ ") + s.paint(dim, Seconds(took)))
	return nil
}

// Steps returns the steps that went well, in order, with their times.
func (s *Show) Steps() []Timed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Timed(nil), s.steps...)
}

// Table writes the steps and their times, and all of it together.
func (s *Show) Table() {
	steps := s.Steps()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, t := range steps {
		fmt.Fprintf(w, "%s\t  %.1f s\t\n", pad(t.Name, steps), t.Seconds)
	}
	fmt.Fprintf(w, "%s\t  %.1f s\t\n", pad("all of it", steps), time.Since(s.begin).Seconds())
	_ = w.Flush()
	s.Say(strings.TrimRight(b.String(), "\n"))
}

// pad fills a name up to the longest of all, so that names stand on the left of
// a table whose cells are set to the right.
func pad(name string, steps []Timed) string {
	longest := 0
	for _, t := range steps {
		longest = max(longest, len([]rune(t.Name)))
	}
	return name + strings.Repeat(" ", max(0, longest-len([]rune(name))))
}

// Fail writes what went wrong.
func (s *Show) Fail(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line("")
	s.line(s.paint(bold+";"+red, "FAILED: ") + s.paint(red, text))
}

// Good writes what went well.
func (s *Show) Good(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line("")
	s.line(s.paint(bold+";"+green, text))
}

// line writes text and a line's end, above the spinner. s.mu is held.
func (s *Show) line(text string) {
	s.erase()
	fmt.Fprintln(s.out, text)
	s.draw()
}

// Seconds is a duration for people.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// wrap breaks text into lines of at most width characters.
func wrap(text string, width int) string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return strings.Join(append(lines, line), "\n")
}

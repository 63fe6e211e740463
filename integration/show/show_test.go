package show

import (
	"errors"
	"strings"
	"testing"
)

func TestPlainShowHasNoControlCharacters(t *testing.T) {
	var b strings.Builder
	s := Plain(&b)
	s.Chapter("One", "what it is about")
	if err := s.Step("first", func(st *Step) error {
		st.Wait("something")
		st.Wait("something")
		st.Command("kubectl get nodes")
		st.Output("NAME\nrome\n\n")
		st.Note("a note")
		st.Fact("%d pods", 4)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.Table()
	got := b.String()
	if strings.Contains(got, "\x1b") || strings.Contains(got, "\r") {
		t.Errorf("plain output has control characters:\n%q", got)
	}
	if n := strings.Count(got, "… something"); n != 1 {
		t.Errorf("what is waited for is written %d times, want once:\n%s", n, got)
	}
	for _, want := range []string{"── One ─", "▸ first", "  $ kubectl get nodes", "    NAME\n    rome\n", "  ✓ 4 pods", "all of it"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

func TestStepThatFailsIsNotCounted(t *testing.T) {
	var b strings.Builder
	s := Plain(&b)
	want := errors.New("no")
	if err := s.Step("second", func(*Step) error { return want }); !errors.Is(err, want) {
		t.Errorf("err = %v, want %v", err, want)
	}
	if len(s.Steps()) != 0 {
		t.Errorf("steps = %v, want none", s.Steps())
	}
	if !strings.Contains(b.String(), "✘ second failed") {
		t.Errorf("failure is not shown:\n%s", b.String())
	}
}

func TestTerminalShowLeavesNoSpinnerBehind(t *testing.T) {
	var b strings.Builder
	s := Plain(&b)
	s.terminal, s.colour = true, true
	if err := s.Step("third", func(st *Step) error {
		st.Wait(strings.Repeat("a very long wait ", 20))
		st.Note("note")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(b.String(), "\n") {
		at := strings.LastIndex(line, "\x1b[2K")
		if drawn := line[max(at, 0):]; strings.Contains(drawn, "a very long") {
			t.Errorf("the spinner stays in line %q", line)
		}
		for frame := range strings.SplitSeq(line, "\r\x1b[2K") {
			if len([]rune(frame)) > 160 {
				t.Errorf("the spinner's line is too long: %d", len([]rune(frame)))
			}
		}
	}
}

func TestWrapBreaksAtWords(t *testing.T) {
	got := wrap("one two  three\nfour", 9)
	if want := "one two\nthree\nfour"; got != want {
		t.Errorf("wrap = %q, want %q", got, want)
	}
}

func TestLinesAreShownWhileACommandRuns(t *testing.T) {
	var b strings.Builder
	s := Plain(&b)
	if err := s.Step("fourth", func(st *Step) error {
		lines := st.Lines()
		for _, part := range []string{"first li", "ne\nsecond line\nthi", "rd"} {
			if _, err := lines.Write([]byte(part)); err != nil {
				return err
			}
		}
		if got := b.String(); !strings.HasSuffix(got, "    first line\n    second line\n") {
			t.Errorf("while it runs there is:\n%s", got)
		}
		lines.Flush()
		if got := b.String(); !strings.HasSuffix(got, "    second line\n    third\n") {
			t.Errorf("after it there is:\n%s", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

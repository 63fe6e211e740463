package printer

import (
	"bytes"
	"strings"
	"testing"
)

func TestTableAlignsAndCleansItsCells(t *testing.T) {
	var out bytes.Buffer
	tab := NewTable(&out, true, "NAME", "STATUS")
	tab.Row("größe", "True")
	tab.Row("a\tb\nc\x1b[31m\u202e", "False", "x")
	tab.Flush()
	want := "\x1b[1mNAME\x1b[0m          \x1b[1mSTATUS\x1b[0m\ngröße         \x1b[32mTrue\x1b[0m\na b c [31m    \x1b[31mFalse\x1b[0m   x\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestLongTextsGoBelowTheirRow(t *testing.T) {
	for _, tc := range []struct{ why, want string }{
		{"short", "NAME   WHY\na      short\n"},
		{strings.Repeat("word ", 20) + "end", "NAME\na\n   " + strings.TrimSpace(strings.Repeat("word ", 19)) + "\n   word end\n"},
	} {
		var b strings.Builder
		table := NewNoted(&b, false, "NAME", "WHY")
		table.Row("a", tc.why)
		table.Flush()
		if b.String() != tc.want {
			t.Errorf("table:\n%s\nwant\n%s", b.String(), tc.want)
		}
	}
}

func TestTableLeavesOutEmptyFacts(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	table := NewTable(&b, false)
	table.Fact("Region", "")
	table.FlushUnder("Facts:")
	if b.Len() > 0 {
		t.Errorf("a table without rows is %q", b.String())
	}
	table.Fact("Region", "lombardia")
	table.Row("Node", "n1", "", "")
	table.FlushUnder("Facts:")
	if want := "Facts:\nRegion   lombardia\nNode     n1\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestLinesWidenForLongCells(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	l := NewLines(&b, false, []int{4}, "A", "B")
	l.Row("x", "1")
	l.Row("longer", "2")
	l.Row("x", "3")
	if want := "A      B\nx      1\nlonger   2\nx        3\n"; b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestCleanRemovesTerminalControls(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"größe 10": "größe 10", "a\nb\tc": "a b c", "\x1b]0;x\a": " ]0;x ", "a\u202eb": "a b", "a\u2028b": "a b", "\xff": " ", "a\u200bb": "a b",
	} {
		if got := Clean(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

package printer

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tone says whether a word is good or bad, which a terminal shows as a colour.
type tone string

const (
	plain tone = ""
	good  tone = "\x1b[32m"
	shaky tone = "\x1b[33m"
	// Bad is the tone of failures.
	Bad  tone = "\x1b[31m"
	bold tone = "\x1b[1m"

	reset = "\x1b[0m"
)

// Paint colours a text where colours are shown.
func Paint(on bool, t tone, s string) string {
	if !on || t == plain || s == "" {
		return s
	}
	return string(t) + s + reset
}

// toneOf is the tone of a cell with one of the API's words.
func toneOf(cell string) tone {
	switch cell {
	case "True", "Active", "Approved", "signed", "granted", "stated":
		return good
	case "Unknown", "Draining", "waiting", "changed", "Cordoned", "Pending", "Warning":
		return shaky
	case "False", "Denied", "refused", "forgotten", "Error":
		return Bad
	}
	return plain
}

// Clean makes a text fit for one line of a terminal. It may come from another
// cluster: control characters, line breaks and those that change the direction of
// writing become spaces.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.Is(unicode.C, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) {
			return ' '
		}
		return r
	}, s)
}

// gap is the space between columns.
const gap = 3

// Table is rows with aligned columns.
type Table struct {
	out    io.Writer
	colour bool
	header bool
	rows   [][]string
	// widths is how wide the columns are, at least.
	widths []int
	// noted means that the last column is a text of any length, which is printed below its row
	// where the table would be wider than tableWidth.
	noted bool
}

// TableWidth is how wide a table for people may be.
const TableWidth = 100

// NewNoted begins a table whose last column is a text of any length.
func NewNoted(out io.Writer, colour bool, header ...string) *Table {
	t := NewTable(out, colour, header...)
	t.noted = true
	return t
}

// NewTable begins a table with a header, or, without one, a list of names and
// values.
func NewTable(out io.Writer, colour bool, header ...string) *Table {
	t := &Table{out: out, colour: colour}
	if len(header) > 0 {
		t.header = true
		t.rows = append(t.rows, header)
	}
	return t
}

// Row adds a row.
func (t *Table) Row(cells ...string) {
	for i := range cells {
		cells[i] = Clean(cells[i])
	}
	t.rows = append(t.rows, cells)
}

// Fact adds a name and a value, unless the value is empty.
func (t *Table) Fact(name, value string) {
	if value != "" {
		t.Row(name, value)
	}
}

// FlushUnder writes the table below a heading, unless it has no rows.
func (t *Table) FlushUnder(heading string) {
	if len(t.rows) > 0 {
		_, _ = fmt.Fprintln(t.out, heading)
		t.Flush()
	}
}

// Flush writes the table. The last cell of a row is not aligned with others,
// and does not widen its column.
func (t *Table) Flush() {
	for n, row := range t.rows {
		for len(row) > 0 && row[len(row)-1] == "" {
			row = row[:len(row)-1]
		}
		t.rows[n] = row
		for i, cell := range row {
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			if i < len(row)-1 {
				t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	notes := t.takeNotes()
	var b strings.Builder
	for n, row := range t.rows {
		for i, cell := range row {
			tone := toneOf(cell)
			if n == 0 && t.header {
				tone = bold
			}
			b.WriteString(Paint(t.colour, tone, cell))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)+gap))
			}
		}
		b.WriteByte('\n')
		for _, line := range wrapped(notes[n], TableWidth-gap) {
			b.WriteString(strings.Repeat(" ", gap) + line + "\n")
		}
	}
	_, _ = io.WriteString(t.out, b.String())
	t.rows = nil
}

// takeNotes removes the texts of the last column from the rows, and returns them by row, if
// the table would be too wide with them.
func (t *Table) takeNotes() map[int]string {
	notes := map[int]string{}
	if !t.noted || len(t.rows) == 0 {
		return notes
	}
	last := len(t.rows[0]) - 1
	before, widest := 0, 0
	for _, w := range t.widths[:min(last, len(t.widths))] {
		before += w + gap
	}
	for _, row := range t.rows {
		if len(row) > last {
			widest = max(widest, utf8.RuneCountInString(row[last]))
		}
	}
	if before+widest <= TableWidth {
		return notes
	}
	for n, row := range t.rows {
		if len(row) <= last {
			continue
		}
		if n > 0 {
			notes[n] = row[last]
		}
		t.rows[n] = row[:last]
	}
	return notes
}

// wrapped breaks a text into lines at spaces; a longer word has a line of its own.
func wrapped(text string, width int) []string {
	var lines []string
	for word := range strings.FieldsSeq(text) {
		end := len(lines) - 1
		if end < 0 || utf8.RuneCountInString(lines[end])+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, word)
			continue
		}
		lines[end] += " " + word
	}
	return lines
}

// Lines prints rows as they come, in columns that widen as needed.
type Lines struct {
	out    io.Writer
	colour bool
	// header is printed with the first row.
	header []string
	widths []int
}

// NewLines begins to print. The widths are the minimum widths of the first columns, as later
// rows are not known.
func NewLines(out io.Writer, colour bool, widths []int, header ...string) *Lines {
	return &Lines{out, colour, header, widths}
}

// Row prints a row.
func (l *Lines) Row(cells ...string) {
	t := NewTable(l.out, l.colour, l.header...)
	t.widths, l.header = l.widths, nil
	t.Row(cells...)
	t.Flush()
	l.widths = t.widths
}

package main

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tone is how a word is meant, which a terminal shows as a colour.
type tone string

const (
	plain tone = ""
	good  tone = "\x1b[32m"
	shaky tone = "\x1b[33m"
	bad   tone = "\x1b[31m"
	bold  tone = "\x1b[1m"

	reset = "\x1b[0m"
)

// paint colours a text where colours are shown.
func paint(on bool, t tone, s string) string {
	if !on || t == plain || s == "" {
		return s
	}
	return string(t) + s + reset
}

// toneOf is how a cell that is one of the API's words is meant.
func toneOf(cell string) tone {
	switch cell {
	case "True", "Active", "Approved", "signed", "granted", "stated":
		return good
	case "Unknown", "Draining", "waiting", "changed":
		return shaky
	case "False", "Denied", "refused", "forgotten":
		return bad
	}
	return plain
}

// clean makes a text fit for one line of a terminal. It may come from another
// cluster: control characters, line breaks and such as change the direction of
// writing become spaces.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.Is(unicode.C, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) {
			return ' '
		}
		return r
	}, s)
}

// gap is the space between columns.
const gap = 3

// table is rows with aligned columns.
type table struct {
	out    io.Writer
	colour bool
	header bool
	rows   [][]string
	// widths is how wide the columns are, at least.
	widths []int
}

// table begins a table with a header, or, without one, a list of names and
// values.
func (a *app) table(header ...string) *table {
	t := &table{out: a.out, colour: a.colour}
	if len(header) > 0 {
		t.header = true
		t.rows = append(t.rows, header)
	}
	return t
}

// row adds a row.
func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = clean(cells[i])
	}
	t.rows = append(t.rows, cells)
}

// flush writes the table. What is last in its row is not aligned with anything,
// and does not widen its column.
func (t *table) flush() {
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
	var b strings.Builder
	for n, row := range t.rows {
		for i, cell := range row {
			tone := toneOf(cell)
			if n == 0 && t.header {
				tone = bold
			}
			b.WriteString(paint(t.colour, tone, cell))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(cell)+gap))
			}
		}
		b.WriteByte('\n')
	}
	_, _ = io.WriteString(t.out, b.String())
	t.rows = nil
}

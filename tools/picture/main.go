// Command picture draws a terminal's output, which it reads from standard input, as an
// SVG on standard output. Each line says how wide it is, so it fits in whatever font a
// reader has.
package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// Widths are in pixels: of a character and of the margin; lineHeight is a line's.
const (
	charWidth  = 8
	lineHeight = 18
	margin     = 16
)

func main() {
	if err := draw(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func draw(in io.Reader, out io.Writer) error {
	var lines []string
	width := 0
	text := bufio.NewScanner(in)
	for text.Scan() {
		line := strings.TrimRight(text.Text(), " ")
		lines = append(lines, line)
		width = max(width, utf8.RuneCountInString(line))
	}
	if err := text.Err(); err != nil {
		return err
	}
	var b strings.Builder
	w, h := width*charWidth+2*margin, len(lines)*lineHeight+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="monospace" font-size="13">`+"\n", w, h, w, h)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#1b1f24"/>`+"\n", w, h)
	for i, line := range lines {
		shown := strings.TrimLeft(line, " ")
		n := utf8.RuneCountInString(shown)
		if n == 0 {
			continue
		}
		x, y := margin+(utf8.RuneCountInString(line)-n)*charWidth, margin+(i+1)*lineHeight-5
		fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%d" lengthAdjust="spacingAndGlyphs" xml:space="preserve" fill="%s">%s</text>`+"\n",
			x, y, n*charWidth, colour(shown), html.EscapeString(shown))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// colour is that of a line: commands, headings and what was checked stand out.
func colour(line string) string {
	switch {
	case strings.HasPrefix(line, "$ "):
		return "#79c0ff"
	case strings.HasPrefix(line, "▸"):
		return "#ffffff"
	case strings.HasPrefix(line, "✓"), strings.HasPrefix(line, "✔"):
		return "#7ee787"
	}
	return "#c9d1d9"
}

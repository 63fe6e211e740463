package peering

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes a text from outside fit to be stored and shown: at most n bytes of
// valid UTF-8, with control characters, line breaks and characters that change
// the direction of writing replaced by spaces.
func Text(s string, n int) string {
	// Cut first, so that work is bounded by n; a rune takes at most four bytes.
	if len(s) > n+utf8.UTFMax {
		s = s[:n+utf8.UTFMax]
	}
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.Is(unicode.C, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) {
			return ' '
		}
		return r
	}, s)
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) // so that the rest of a long text is not kept with it
}

// Characters of names.
const (
	digits  = "0123456789"
	lower   = "abcdefghijklmnopqrstuvwxyz"
	upper   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	letters = lower + upper
)

// only reports whether a text has no other characters than these.
func only(characters, s string) bool { return strings.Trim(s, characters) == "" }

// isLabel is only, but allows inner hyphens.
func isLabel(characters, s string) bool {
	return only(characters+"-", s) && !strings.HasPrefix(s, "-") && !strings.HasSuffix(s, "-")
}

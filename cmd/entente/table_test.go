package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

func TestTablesFitIn100Columns(t *testing.T) {
	// The contracts of the fakes have shorter names than real ones.
	const longer = len("c-f871c9ccdafc7f5b5f56") - len("7f3c9a")
	for _, argv := range [][]string{{"info"}, {"contract", "list"}, {"peerings"}, {"usage"}, {"policy", "test"}, {"token", "list"}, {"requests"}, {"offloadings"}} {
		out, _, code := peered().run(t, "", argv...)
		if code != exit.OK || strings.Count(out, "\n") < 2 {
			t.Errorf("%q: exit %d\n%s", argv, code, out)
		}
		for line := range strings.Lines(out) {
			n := utf8.RuneCountInString(strings.TrimRight(line, "\n"))
			if strings.Contains(line, "7f3c9a") {
				n += longer
			}
			if n > printer.TableWidth {
				t.Errorf("%q prints a line of %d characters:\n%s", argv, n, line)
			}
		}
	}
}

func TestEmptyListsAreReportedInAPipe(t *testing.T) {
	for _, argv := range [][]string{{"contract", "list"}, {"peerings"}, {"usage"}, {"info", "peer"}, {"requests"}, {"offloadings"}} {
		out, errOut, code := newWorld().run(t, "", argv...)
		if out != "" || code != exit.OK || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want one line on stderr", argv, code, out, errOut)
		}
	}
}

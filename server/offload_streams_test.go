package server

import (
	"errors"
	"strings"
	"testing"

	"github.com/entente-dev/entente/peering"
)

func TestAnExecThatFailsReturnsItsCause(t *testing.T) {
	t.Parallel()
	const runtime = `error executing command in container: failed to exec in container: failed to start exec "5d3c1a7be2f94c3f9a7e1b0c5d3c1a7be2f94c3f9a7e1b0c5d3c1a7be2f94c3f": ` +
		`OCI runtime exec failed: exec failed: unable to start container process: exec: "bash": executable file not found in $PATH: unknown`
	pod := peering.ObjectRef{Namespace: "shop", Name: "web", UID: "1"}
	for name, tc := range map[string]struct{ text, want string }{
		"a command that is not there": {runtime, `the provider's cluster says: unable to start container process: exec: "bash": executable file not found in $PATH`},
		"another runtime":             {"no such thing", "the provider's cluster says: no such thing"},
		"only a wrapping":             {"exec failed: ", "the provider's cluster says: exec failed: "},
	} {
		var got *peering.Error
		if err := podError(errors.New(tc.text), pod); !errors.As(err, &got) || got.Message != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	long := podError(errors.New(strings.Repeat("é", 1000)+" the cause"), pod).Error()
	if !strings.HasSuffix(long, " the cause") || len(long) > 600 || strings.ContainsRune(long, '\uFFFD') {
		t.Errorf("a long chain is %q", long)
	}
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/peering"
)

func TestErrorsSayWhatFailedWhereAndWhatToDo(t *testing.T) {
	w := newWorld()
	w.consumer.err = &peering.Error{Reason: peering.ReasonCallerNotAllowed, Message: `user "alice" may not create tokens.entente.dev`}
	golden(t, "errors", w,
		[]string{"token", "create"}, []string{"info"}, []string{"unoffload", "namespace", "x"}, []string{"usage"}, []string{"watch", "peers"}, []string{"policy", "test"},
		[]string{"peer"}, []string{"peer", "x", "--remote-context", "y"}, []string{"peer", "x", "--any"}, []string{"peer", "x", "--resources", "cpu"},
		[]string{"peer", "x", "--resources", "cpu=1", "--cpu", "2"}, []string{"peer", "x", "--cpu", "many"}, []string{"peer", "x", "--price-ceiling", "0.5 EUR"},
		[]string{"peer", "x", "--price-ceiling", "EUR 0.0000000001"}, []string{"peer", "x", "--duration", "-1s"}, []string{"peer", "x", "--timeout", "0s"}, []string{"peer", "x", "--bogus"},
		[]string{"unpeer"}, []string{"join"}, []string{"nonsense"}, []string{"contract", "nonsense"}, []string{"info", "-o", "xml"}, []string{"info", "--get", "a["},
	)
	w = newWorld()
	w.consumer.err = &peering.Error{Reason: peering.ReasonKubernetes, Message: "no \x1b]0;leader\x07\nError: all is well"}
	if _, errOut, _ := w.run(t, "", "info"); strings.ContainsAny(errOut, "\x1b\x07") || strings.Count(errOut, "\nError") > 0 {
		t.Errorf("an error drives the terminal: %q", errOut)
	}
}

func TestExitCodesAreOneTable(t *testing.T) {
	root := testApp().root("entente")
	seen := map[int]bool{}
	for _, e := range exit.Codes() {
		if seen[e.Code] || e.Means == "" || !strings.Contains(root.Long, fmt.Sprintf("\n  %-5d%s", e.Code, e.Means)) {
			t.Errorf("exit code %d", e.Code)
		}
		seen[e.Code] = true
	}
	for _, tc := range []struct {
		err         error
		interrupted bool
		want        int
	}{
		{nil, false, exit.OK},
		{errors.New("x"), false, exit.Failed},
		{errors.New("x"), true, exit.Interrupted},
		{exit.Usagef("x"), true, exit.Usage},
		{fmt.Errorf("x: %w", exit.Usagef("y")), false, exit.Usage},
		{failure(peering.ReasonPolicyRefused, "no"), false, exit.Refused},
		{&exit.CallError{Err: failure(peering.ReasonPriceAboveCeiling, "no")}, false, exit.Refused},
		{&exit.CallError{Err: failure(peering.ReasonPeerUnknown, "no")}, false, exit.Failed},
	} {
		if got := exit.CodeOf(tc.err, tc.interrupted); got != tc.want || !seen[got] {
			t.Errorf("%v is exit code %d, want %d", tc.err, got, tc.want)
		}
	}
}

// TestEveryReasonHasANextStep compares the table of hints with the reasons that
// the admin API documents.
func TestEveryReasonHasANextStep(t *testing.T) {
	proto, err := os.ReadFile("../../proto/entente/v1/admin.proto")
	if err != nil {
		t.Fatal(err)
	}
	// Their messages name the field, or commands handle them.
	without := map[string]bool{"INVALID_ARGUMENT": true, "ALREADY_EXISTS": true}
	reasons := regexp.MustCompile(`(?:UNAUTHENTICATED|PERMISSION_DENIED|FAILED_PRECONDITION|NOT_FOUND|ALREADY_EXISTS|RESOURCE_EXHAUSTED|UNAVAILABLE|INVALID_ARGUMENT)(?:\n *//)? ([A-Z]+_[A-Z_]+[A-Z])`)
	found := 0
	for _, m := range reasons.FindAllStringSubmatch(string(proto), -1) {
		found++
		if r := m[1]; exit.HintFor(client.Reason(r)) == "" && !without[r] {
			t.Errorf("no hint says what to do about %s", r)
		}
	}
	if found < 20 {
		t.Errorf("only %d reasons were found: the test proves nothing", found)
	}
	seen := map[client.Reason]bool{}
	for _, h := range exit.Hints() {
		if seen[h.Reason] || h.Next == "" {
			t.Errorf("hint for %s is there twice, or empty", h.Reason)
		}
		seen[h.Reason] = true
	}
}

func testApp() *app {
	return &app{in: strings.NewReader(""), out: &bytes.Buffer{}, errOut: &bytes.Buffer{}}
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	root := testApp().root("kubectl-entente")
	if got := root.CommandPath(); got != "kubectl entente" {
		t.Errorf("as a plugin its name is %q", got)
	}
	n := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		if cmd.HasSubCommands() && cmd.HasParent() && !strings.Contains(cmd.Use, " ") && cmd.Name() != "info" {
			return // a group
		}
		n++
		if cmd.Short == "" || cmd.Example == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
		if f := cmd.Flags().Lookup("output"); f == nil && cmd.HasParent() {
			t.Errorf("%s has no --output", cmd.CommandPath())
		}
		if cmd.ValidArgsFunction == nil && cmd.HasParent() && cmd.Name() != "verify" {
			t.Errorf("%s offers the names of files for its arguments", cmd.CommandPath())
		}
	}
	walk(root)
	if n < 25 {
		t.Errorf("only %d commands", n)
	}
	for _, flag := range []string{"kubeconfig", "context", "namespace", "entente-namespace"} {
		if root.PersistentFlags().Lookup(flag) == nil {
			t.Errorf("no --%s", flag)
		}
	}
}

func TestTheShellCompletesNames(t *testing.T) {
	w := peered()
	golden(t, "complete", w,
		[]string{"__complete", "info", "peer", ""}, []string{"__complete", "contract", "show", ""}, []string{"__complete", "amend", ""},
		[]string{"__complete", "approve", "request", ""}, []string{"__complete", "token", "revoke", ""}, []string{"__complete", "peer", "--any", ""},
		[]string{"__complete", "usage", "-o", ""}, []string{"__complete", "offload", "namespace", ""}, []string{"__complete", "unoffload", "namespace", ""}, []string{"__complete", "offload", "namespace", "shop", "--strategy", ""}, []string{"__complete", "unpeer", "--peering", ""},
		[]string{"__complete", "token", "list", ""}, []string{"__complete", "con"},
	)
	w.consumer.err = &peering.Error{Reason: peering.ReasonKubernetes, Message: "no API server"}
	if _, _, code := w.run(t, "", "__complete", "info", "peer", ""); code != exit.OK {
		t.Errorf("without a cluster: exit %d", code)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, errOut, code := w.run(t, "", "completion", shell); code != exit.OK || len(out) < 1000 {
			t.Errorf("completion %s: exit %d, %d bytes, %s", shell, code, len(out), errOut)
		}
	}
}

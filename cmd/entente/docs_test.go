package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
)

// TestDocsMatchTheCommands compares docs/cli.md with the --help texts.
func TestDocsMatchTheCommands(t *testing.T) {
	root := testApp().root("entente")
	root.InitDefaultCompletionCmd()
	var b strings.Builder
	b.WriteString(`# The command entente

` + "`entente`" + ` drives Entente in the cluster of the current kubeconfig. As ` + "`kubectl-entente`" + ` in the
PATH it is a kubectl plugin: ` + "`kubectl entente info`" + `. It speaks to the agent's admin API through the
Kubernetes API server, as ` + "`kubectl port-forward`" + ` does, and may do what Kubernetes RBAC allows its
caller; everything it does can be done with kubectl, too.

This page is generated from the commands by ` + "`go test ./cmd/entente -update`" + `.

- Tables are for people. With ` + "`-o json`" + ` and ` + "`-o yaml`" + ` nothing else is printed to standard output, the
  names are those of the REST API, and lists are arrays. ` + "`--get a.b[0].c`" + ` prints one field.
- Progress goes to standard output where people read the result, and to standard error where a
  program does, and then only if that is a terminal.
- Colours are shown on terminals, unless NO_COLOR is set or TERM is dumb.
- Commands ask for confirmation only on a terminal, before something is lost; ` + "`--yes`" + ` answers yes.

## Exit codes

| code | means |
| --- | --- |
`)
	for _, e := range exit.Codes() {
		fmt.Fprintf(&b, "| %d | %s |\n", e.Code, e.Means)
	}
	b.WriteString(`
## Reasons, and what to do next

Errors of the agent end with a reason in brackets, whose meaning never changes. For those below, the next line says
what to do; others, such as ` + "`REQUEST_INVALID` and `KUBERNETES_REFUSED`" + `, have a message that says it. [All of them](api.md#errors).

| reason | next |
| --- | --- |
`)
	for _, h := range exit.Hints() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", h.Reason, strings.ReplaceAll(h.Next, "|", `\|`))
	}
	b.WriteString("\n## Commands\n\n")
	each(root, func(cmd *cobra.Command) {
		if cmd.HasParent() {
			fmt.Fprintf(&b, "- [`%s`](#%s): %s\n", cmd.CommandPath(), strings.ReplaceAll(cmd.CommandPath(), " ", "-"), cmd.Short)
		}
	})
	fmt.Fprintf(&b, "\nAll of them take these flags, too:\n\n```\n%s```\n", flagText(root.PersistentFlags()))
	each(root, func(cmd *cobra.Command) {
		if cmd.HasParent() {
			describe(&b, cmd)
		}
	})
	compareFile(t, "../../docs/cli.md", b.String())
}

// The commands and flags that a page names exist.
func TestCommandsAndFlagsInDocsExist(t *testing.T) {
	root := testApp().root("entente")
	root.InitDefaultCompletionCmd()
	texts := map[string]string{}
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/design/*.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %v, %v", pattern, pages, err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			texts[page] = string(text)
		}
	}
	for _, h := range exit.Hints() {
		texts["what to do after "+string(h.Reason)] = "`" + h.Next + "`"
	}
	calls := 0
	for where, text := range texts {
		for _, call := range callsIn(text) {
			calls++
			if err := checkCall(root, call); err != nil {
				t.Errorf("%s: entente %s: %v", where, strings.Join(call, " "), err)
			}
		}
	}
	if calls < 100 {
		t.Errorf("%d calls are found; the pages are parsed wrongly", calls)
	}
	for _, bad := range []string{"peers --nothing", "nothing", "contract nothing", "unpeer -z", "amend --wait --nothing=1"} {
		if call := callsIn("see `kubectl x; entente " + bad + "`"); len(call) != 1 || checkCall(root, call[0]) == nil {
			t.Errorf("%q is taken for %q, and for right", bad, call)
		}
	}
}

var (
	// shown is the text in fences or between backquotes.
	shown = regexp.MustCompile("(?s)```.*?```|`[^`]*`")
	// called is a call of entente, up to the end of a command or a phrase.
	called = regexp.MustCompile(`(?m)(?:^|[(;|&:] *|\b(?:and|by|or|run|see|with) )entente ([a-z][^\n#|;&)]*)`)
)

// callsIn returns the arguments of the calls that a page shows.
func callsIn(page string) (calls [][]string) {
	for _, part := range shown.FindAllString(page, -1) {
		for _, m := range called.FindAllStringSubmatch(strings.Trim(part, "`"), -1) {
			call, _, _ := strings.Cut(m[1], ", ")
			calls = append(calls, strings.Fields(call))
		}
	}
	return calls
}

// checkCall checks that the commands and the flags of a call exist.
func checkCall(root *cobra.Command, call []string) error {
	cmd, rest, err := root.Find(call)
	if err != nil {
		return err
	}
	// A command that only groups others takes no arguments, and only prints help.
	if group := cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ") && cmd.Flags().Lookup("output") == nil; group && len(rest) > 0 {
		return fmt.Errorf("there is no command %s", rest[0])
	}
	for _, arg := range rest {
		arg, _, _ = strings.Cut(strings.TrimSuffix(arg, ":"), "=")
		name, long := strings.CutPrefix(arg, "--")
		switch {
		case long && name != "help" && cmd.Flag(name) == nil:
			return fmt.Errorf("there is no flag %s", arg)
		case !long && len(arg) == 2 && arg[0] == '-' && cmd.Flags().ShorthandLookup(arg[1:]) == nil && cmd.InheritedFlags().ShorthandLookup(arg[1:]) == nil:
			return fmt.Errorf("there is no flag %s", arg)
		}
	}
	return nil
}

// each visits a command and those below it, as --help lists them. The help of
// completion says how to set it up in each shell.
func each(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && cmd.Name() != "completion" {
			each(c, visit)
		}
	}
}

func describe(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n### %s\n\n", cmd.CommandPath())
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	// Indented lines are lists.
	text = regexp.MustCompile(`(?m)^  (\S+) +`).ReplaceAllString(text, "- $1: ")
	text = strings.ReplaceAll(text, ":\n- ", ":\n\n- ")
	fmt.Fprintf(b, "%s\n", strings.TrimSpace(text))
	if cmd.Runnable() && !cmd.HasSubCommands() || strings.Contains(cmd.Use, " ") || cmd.Name() == "info" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.UseLine())
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.TrimPrefix(strings.ReplaceAll(cmd.Example, "\n  ", "\n"), "  "))
	}
	if cmd.HasAvailableLocalFlags() {
		if flags := flagText(cmd.LocalFlags()); flags != "" {
			fmt.Fprintf(b, "\n```\n%s```\n", flags)
		}
	}
}

func flagText(flags *pflag.FlagSet) string {
	shown := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			shown.AddFlag(f)
		}
	})
	return shown.FlagUsages()
}

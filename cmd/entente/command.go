package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/cmd/entente/internal/progress"
)

// run is one run of a command at the cluster of the current kubeconfig.
type run struct {
	*app
	*cluster
	progress *progress.Progress
	output   *printer.Flags
	// path is the command with those above it, and argv its arguments.
	path string
	argv []string
}

// command is a command that works on the cluster of the current kubeconfig, by do. Its Use
// line names its arguments. It prints JSON, YAML and forms.
func (a *app) command(cmd *cobra.Command, do func(ctx context.Context, r *run) error, forms ...string) *cobra.Command {
	return a.offline(cmd, func(ctx context.Context, r *run) (err error) {
		if r.cluster, err = a.local(ctx); err != nil {
			return err
		}
		defer r.hangUp()
		return r.suggest(ctx, do(ctx, r))
	}, forms...)
}

// offline is a command that connects to a cluster by itself, or to none.
func (a *app) offline(cmd *cobra.Command, do func(ctx context.Context, r *run) error, forms ...string) *cobra.Command {
	output := &printer.Flags{}
	output.Add(cmd, forms...)
	a.positional(cmd)
	cmd.RunE = func(cmd *cobra.Command, argv []string) error {
		return do(cmd.Context(), &run{app: a, progress: a.progress(output), output: output, path: cmd.CommandPath(), argv: argv})
	}
	return cmd
}

// positional makes a command take the arguments that its Use line names, NAME, [NAME],
// NAME... or [NAME...], and offers the shell completions for the first.
func (a *app) positional(cmd *cobra.Command) {
	_, use, _ := strings.Cut(cmd.Use, " ")
	check := cobra.ExactArgs(1)
	switch {
	case use == "":
		check = cobra.NoArgs
	case strings.HasSuffix(use, "...]"):
		check = cobra.ArbitraryArgs
	case strings.HasSuffix(use, "..."):
		check = cobra.MinimumNArgs(1)
	case strings.HasPrefix(use, "["):
		check = cobra.MaximumNArgs(1)
	}
	cmd.Args = func(cmd *cobra.Command, argv []string) error {
		err := check(cmd, argv)
		if err != nil && use != "" {
			err = fmt.Errorf("want %s: %w", use, err)
		}
		if err != nil {
			return exit.Usagef("%w; see `%s --help`", err, cmd.CommandPath())
		}
		return nil
	}
	switch strings.Trim(use, "[].") {
	case "PEER":
		a.completes(cmd, peerNames)
	case "PEERING":
		a.completes(cmd, peeringNames)
	case "CONTRACT":
		a.completes(cmd, contractNames)
	case "TOKEN":
		a.completes(cmd, tokenNames)
	case "PEER/ID":
		a.completes(cmd, requestNames)
	case "NAMESPACE":
		a.completes(cmd, namespaceNames)
	case "FILE":
		// The shell completes files itself.
	default:
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
}

// group is a command that only has subcommands: alone it shows help, and an unknown
// subcommand is an error.
func (a *app) group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	a.positional(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(children...)
	return cmd
}

// first is the first argument; empty if there is none.
func (r *run) first() string {
	if len(r.argv) == 0 {
		return ""
	}
	return r.argv[0]
}

// done prints a completed step at the cluster, and note anything else.
func (r *run) done(format string, args ...any) { r.progress.Done(r.label, format, args...) }
func (r *run) note(format string, args ...any) { r.progress.Note(r.label, format, args...) }

// write prints a message, and writeValue what encoding/json can marshal.
func (r *run) write(m proto.Message) error { return r.output.Write(r.out, m) }
func (r *run) writeValue(v any) error      { return r.output.WriteValue(r.out, v) }

// result prints a message where the output is for programs.
func (r *run) result(m proto.Message) error {
	if !r.output.Structured() {
		return nil
	}
	return r.write(m)
}

// printList prints messages, for people as a table. If there are none it prints none, which
// says that, and next, which says what can be done about it.
func printList[M proto.Message](r *run, messages []M, none, next string, table func() *printer.Table) error {
	switch {
	case r.output.Structured():
		return printer.WriteList(r.output, r.out, messages)
	case len(messages) == 0:
		r.none(none, next)
	default:
		table().Flush()
	}
	return nil
}

// none says that a list is empty, even in a pipe, where nothing else would say so, and
// what can be done next, where a person reads it.
func (a *app) none(what, next string) {
	_, _ = fmt.Fprintln(a.errOut, what)
	if next != "" {
		a.next("%s", next)
	}
}

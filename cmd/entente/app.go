package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/doctor"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/cmd/entente/internal/progress"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering/jointoken"
)

// app is the command and its connections to the outside.
type app struct {
	in          io.Reader
	out, errOut io.Writer
	// connect reaches the agent of a cluster.
	connect func(ctx context.Context, target target) (*cluster, error)
	// reported reads what the resources of a cluster report about an area; an empty one means all.
	reported func(ctx context.Context, target target, area string) (doctor.Report, error)
	// interactive means that a person can answer questions.
	interactive bool
	// watched means that errOut is a terminal that a person reads; redraw, that a
	// line of it can be redrawn; and width is how many characters a line has.
	watched, redraw bool
	width           int
	// colour and colourErr mean that out and errOut show colours.
	colour, colourErr bool
	now               func() time.Time
	sleep             func(ctx context.Context, d time.Duration) error
	// follow reports changes at a cluster that a command waits for; nil means polling.
	follow func(ctx context.Context, admin ententev1.AdminServiceClient, sleep func(context.Context, time.Duration) error) *progress.Follower

	flags     *genericclioptions.ConfigFlags
	namespace string
}

// root returns the command. name is the name under which it was called.
func (a *app) root(name string) *cobra.Command {
	display := "entente"
	if strings.HasPrefix(filepath.Base(name), "kubectl-") {
		display = "kubectl entente"
	}
	cmd := &cobra.Command{
		Use:           "entente",
		Short:         "Peer Kubernetes clusters that belong to different people",
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: display},
	}
	cmd.SetIn(a.in)
	cmd.SetOut(a.out)
	cmd.SetErr(a.errOut)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exit.Usagef("%w; see `%s --help`", err, cmd.CommandPath())
	})
	a.flags = genericclioptions.NewConfigFlags(true)
	a.flags.AddFlags(cmd.PersistentFlags())
	// They exist because kubectl has them, and have no effect here.
	for _, name := range []string{"as", "as-group", "as-uid", "as-user-extra", "cache-dir", "disable-compression", "namespace"} {
		_ = cmd.PersistentFlags().MarkHidden(name)
	}
	cmd.PersistentFlags().StringVar(&a.namespace, "entente-namespace", client.DefaultNamespace, "The namespace in which Entente is installed")
	cmd.AddCommand(
		a.discoverCommand(), a.tokenCommand(), a.joinCommand(), a.approveCommand(), a.denyCommand(), a.requestsCommand(),
		a.peerCommand(), a.peeringsCommand(), a.createCommand(), a.amendCommand(), a.unpeerCommand(),
		a.offloadCommand(), a.offloadingsCommand(), a.unoffloadCommand(), a.moveCommand(),
		a.contractCommand(), a.usageCommand(), a.policyCommand(), a.networkCommand(),
		a.infoCommand(), a.doctorCommand(), a.watchCommand(), a.identityCommand(), a.versionCommand(),
	)
	explain(cmd, cmd.Name())
	cmd.Long += exit.Help()
	return cmd
}

// help has the --help text and the examples of each command, in a file named after the
// commands above it and itself.
//
//go:embed help/*.txt
var help embed.FS

// explain gives a command, and those below it, their help.
func explain(cmd *cobra.Command, name string) {
	if text, err := help.ReadFile("help/" + name + ".txt"); err == nil {
		long, examples, _ := strings.Cut(string(text), "Examples:\n")
		cmd.Long, cmd.Example = strings.TrimSpace(long), strings.TrimRight(examples, "\n")
	}
	for _, c := range cmd.Commands() {
		explain(c, name+"-"+c.Name())
	}
}

// since is the time since something, until the time until something.
func (a *app) since(t *timestamppb.Timestamp) string { return format.Since(a.now(), t) }
func (a *app) until(t *timestamppb.Timestamp) string { return format.Until(a.now(), t) }

// table begins a table with a header, or, without one, a list of names and values.
func (a *app) table(header ...string) *printer.Table {
	return printer.NewTable(a.out, a.colour, header...)
}

// newTable begins a list of names and values.
func (a *app) newTable() *printer.Table { return a.table() }

// noted begins a table whose last column is a text of any length.
func (a *app) noted(header ...string) *printer.Table {
	return printer.NewNoted(a.out, a.colour, header...)
}

func (a *app) showAdvertisement(ad *ententev1.Advertisement) {
	t := a.table()
	format.PrintAdvertisement(t, ad)
	t.Flush()
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// progress starts to print the steps of a command with that output. Where a program reads
// the output and no person watches, nothing is printed.
func (a *app) progress(o *printer.Flags) *progress.Progress {
	t := progress.Terminal{Steps: a.out, Waits: a.errOut, Redraw: a.redraw, Width: a.width, Now: a.now, Sleep: a.sleep, Follow: a.follow}
	if o.Structured() {
		t.Steps = a.errOut
		if !a.watched {
			t.Steps, t.Waits = io.Discard, io.Discard
		}
	}
	return progress.New(t)
}

// next prints what can be done next, where a person reads it.
func (a *app) next(format string, args ...any) {
	if a.watched {
		_, _ = fmt.Fprintf(a.errOut, format+"\n", args...)
	}
}

// problem is an error for people: the agent's message, and the reason in brackets, to search
// for. Errors repeat arguments, so a token in a wrong place is
// redacted here.
func (a *app) problem(err error) string {
	return printer.Paint(a.colourErr, printer.Bad, "Error:") + " " + jointoken.Redact(err.Error())
}

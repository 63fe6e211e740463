package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/entente-dev/entente/client"
)

// Exit codes. They are part of the command's interface.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitUnhealthy   = 3
	exitTimeout     = 4
	exitInterrupted = 130
)

// app is the command and what it touches of the world.
type app struct {
	in          io.Reader
	out, errOut io.Writer
	// connect reaches the agent of a cluster.
	connect func(ctx context.Context, target target) (*cluster, error)
	// interactive says that somebody is there to answer.
	interactive bool
	// spinner says that errOut is a terminal on which a line can be redrawn.
	spinner bool
	now     func() time.Time
	sleep   func(ctx context.Context, d time.Duration) error

	flags     *genericclioptions.ConfigFlags
	namespace string
}

// codeError is an error with an exit code.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &codeError{exitUsage, fmt.Errorf(format, args...)}
}

// exitCode is what an error of a command means to the shell.
func exitCode(err error, interrupted bool) int {
	var coded *codeError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	case interrupted:
		return exitInterrupted
	case client.ReasonOf(err) == "DEADLINE_EXCEEDED":
		return exitTimeout
	case strings.HasPrefix(err.Error(), "unknown command"):
		return exitUsage
	}
	return exitError
}

// problem is an error as people see it: what the agent said of it first, and the
// reason in brackets for whoever searches for it.
func (a *app) problem(err error) string {
	if call, ok := errors.AsType[*callError](err); ok {
		return fmt.Sprintf("Error: %s", call)
	}
	return "Error: " + err.Error()
}

// callError is a call to an agent that failed.
type callError struct {
	// cluster is local or remote, and doing what was tried.
	cluster, doing string
	err            error
}

func (e *callError) Error() string {
	msg := fmt.Sprintf("(%s) %s: %s [%s]", e.cluster, e.doing, client.Explain(e.err), client.ReasonOf(e.err))
	if hint := hints[client.ReasonOf(e.err)]; hint != "" {
		msg += "\n  next: " + hint
	}
	return msg
}

func (e *callError) Unwrap() error { return e.err }

// hints is what to do about errors whose message cannot say it.
var hints = map[client.Reason]string{ //nolint:gochecknoglobals // a constant table
	"CALLER_UNKNOWN":         "check that this kubeconfig works with kubectl, and log in again if it uses a plugin",
	"CALLER_NOT_ALLOWED":     "ask for a ClusterRole that allows it; see `kubectl auth can-i` on resources of entente.dev",
	"UNAVAILABLE":            "see whether the agent runs: kubectl -n entente-system get pods",
	"DEADLINE_EXCEEDED":      "see the agent's log: kubectl -n entente-system logs deploy/entente-agent",
	"INTERNAL":               "see the agent's log: kubectl -n entente-system logs deploy/entente-agent",
	"KUBERNETES_UNAVAILABLE": "the cluster's API server is not well; try again",
	"NO_ENDPOINT":            "say where other clusters can reach this one: Helm value peer.endpoints, or the Service entente-peer; or make the token in the other cluster",
	"TOKENS_OUTSTANDING":     "wait until tokens expire, or delete their Secrets in entente-system",
	"PEER_UNKNOWN":           "list the peers: entente info peer",
}

// root is the command. name is what it was called as.
func (a *app) root(name string) *cobra.Command {
	display := "entente"
	if strings.HasPrefix(filepath.Base(name), "kubectl-") {
		display = "kubectl entente"
	}
	cmd := &cobra.Command{
		Use:   "entente",
		Short: "Peer Kubernetes clusters that belong to different people",
		Long: `Entente lets Kubernetes clusters lend each other resources, pairwise and by
contract, with no broker in between.

It works on the cluster of the current kubeconfig, as kubectl does.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 something is unhealthy (info),
4 timed out, 130 interrupted.`,
		Example: indent(`# Let this cluster use resources of another, with access to both
entente peer --remote-kubeconfig provider.yaml

# The same between two people: the provider makes a token ...
entente token create
# ... and the consumer redeems it and asks for resources
entente join ent1.…
entente peer provider --cpu 4 --memory 8Gi

# Let the pods of a namespace run there
entente offload namespace shop

# See how things are
entente info`),
		SilenceErrors: true,
		SilenceUsage:  true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: display},
	}
	cmd.SetIn(a.in)
	cmd.SetOut(a.out)
	cmd.SetErr(a.errOut)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError("%w; see `%s --help`", err, cmd.CommandPath())
	})
	a.flags = genericclioptions.NewConfigFlags(true)
	a.flags.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringVar(&a.namespace, "entente-namespace", client.DefaultNamespace, "The namespace in which Entente is installed")
	cmd.AddCommand(
		a.tokenCommand(), a.joinCommand(), a.peerCommand(), a.unpeerCommand(),
		a.offloadCommand(), a.unoffloadCommand(),
		a.infoCommand(), a.contractCommand(), a.versionCommand(),
	)
	return cmd
}

// args makes wrong arguments a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError("%w; see `%s --help`", err, cmd.CommandPath())
		}
		return nil
	}
}

// group is a command that only holds others: alone it shows help, and with a
// word that it does not know it is an error.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = args(cobra.NoArgs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(s, "\n", "\n  ")
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

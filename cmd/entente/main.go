// Command entente drives Entente in a Kubernetes cluster: it makes and redeems
// tokens, peers clusters, offloads namespaces and shows the state of both. It is a
// thin wrapper of the AdminService; everything it does can be done with kubectl
// too. As kubectl-entente it is a kubectl plugin.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/entente-dev/entente/cmd/entente/internal/doctor"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	out, errOut := int(os.Stdout.Fd()), int(os.Stderr.Fd())
	smart := os.Getenv("TERM") != "dumb"
	colour := smart && os.Getenv("NO_COLOR") == ""
	width, _, err := term.GetSize(errOut)
	if err != nil || width <= 0 {
		width = 80
	}
	a := &app{
		in: os.Stdin, out: os.Stdout, errOut: os.Stderr,
		connect: connectCluster,
		reported: func(ctx context.Context, t target, area string) (doctor.Report, error) {
			return doctor.Read(ctx, t.label, t.flags, t.namespace, area)
		},
		interactive: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(errOut),
		watched:     term.IsTerminal(errOut),
		redraw:      term.IsTerminal(errOut) && smart,
		width:       width,
		colour:      term.IsTerminal(out) && colour,
		colourErr:   term.IsTerminal(errOut) && colour,
		now:         time.Now,
		sleep:       sleep,
		follow:      progress.Follow,
	}
	cmd := a.root(filepath.Base(os.Args[0]))
	cmd.SetArgs(os.Args[1:])
	err = cmd.ExecuteContext(ctx)
	interrupted := ctx.Err() != nil
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, a.problem(err))
	}
	os.Exit(exit.CodeOf(err, interrupted))
}

package lab

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// Hidden runs the parts of a lab that are processes of the lab command but no
// commands for people: the daemon and the nodes' first processes. It returns
// false if args name none of them.
func Hidden(ctx context.Context, args []string) (bool, error) {
	if len(args) == 0 {
		return false, nil
	}
	switch {
	case args[0] == "daemon" && len(args) == 2:
		return true, withPath(func() error { return runDaemon(ctx, args[1]) })
	case args[0] == "node-init" && len(args) == 2:
		return true, runNodeInit(ctx, args[1])
	case args[0] == "host-init" && len(args) == 2:
		return true, runHostInit(args[1])
	case args[0] == "node-supervise" && len(args) == 1:
		return true, runNodeSupervise(ctx)
	}
	return false, nil
}

// withPath runs f with the folders of root's programs in PATH.
func withPath(f func() error) error {
	if err := os.Setenv("PATH", os.Getenv("PATH")+":"+strings.Join(systemPath, ":")); err != nil {
		return fmt.Errorf("set PATH: %w", err)
	}
	return f()
}

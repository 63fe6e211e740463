package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/internal/version"
)

// versionTimeout is how long the agent may take to return its version.
const versionTimeout = 10 * time.Second

func (a *app) versionCommand() *cobra.Command {
	var clientOnly bool
	cmd := a.offline(&cobra.Command{Use: "version", Short: "Print the version of this command and, if it can be reached, of the agent"}, func(ctx context.Context, r *run) error {
		versions := map[string]string{"client": version.Version}
		if !clientOnly {
			ctx, cancel := context.WithTimeout(ctx, versionTimeout)
			defer cancel()
			if agent, err := a.agentVersion(ctx); err != nil {
				versions["problem"] = err.Error()
			} else {
				versions["agent"] = agent
			}
		}
		if r.output.Structured() {
			return r.writeValue(versions)
		}
		_, _ = fmt.Fprintf(a.out, "client: %s\n", version.Version)
		if agent, ok := versions["agent"]; ok {
			_, _ = fmt.Fprintf(a.out, "agent:  %s\n", agent)
		}
		if problem, ok := versions["problem"]; ok {
			_, _ = fmt.Fprintf(a.errOut, "agent not reached: %s\n", problem)
		}
		return nil
	})
	cmd.Flags().BoolVar(&clientOnly, "client", false, "Do not ask the agent")
	return cmd
}

func (a *app) agentVersion(ctx context.Context) (string, error) {
	c, err := a.local(ctx)
	if err != nil {
		return "", err
	}
	defer c.hangUp()
	info, err := c.self(ctx)
	return info.GetVersion(), err
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/internal/version"
)

// versionTimeout is how long the agent may take to tell its version.
const versionTimeout = 10 * time.Second

func (a *app) versionCommand() *cobra.Command {
	var clientOnly bool
	var output printer.Flags
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this command and, if it can be reached, of the agent",
		Example: indent("entente version\nentente version --client"),
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.Check(); err != nil {
				return usageError("%w", err)
			}
			versions := map[string]any{"client": version.Version}
			if !clientOnly {
				ctx, cancel := context.WithTimeout(cmd.Context(), versionTimeout)
				defer cancel()
				agent, err := a.agentVersion(ctx)
				if err != nil {
					versions["problem"] = err.Error()
				} else {
					versions["agent"] = agent
				}
			}
			if output.Structured() {
				return output.WriteValue(a.out, versions)
			}
			_, _ = fmt.Fprintf(a.out, "client: %s\n", version.Version)
			if agent, ok := versions["agent"]; ok {
				_, _ = fmt.Fprintf(a.out, "agent:  %s\n", agent)
			}
			if problem, ok := versions["problem"]; ok {
				_, _ = fmt.Fprintf(a.errOut, "agent not reached: %s\n", problem)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "Do not ask the agent")
	output.Add(cmd)
	return a.completes(cmd, 0, nil)
}

func (a *app) agentVersion(ctx context.Context) (string, error) {
	c, err := a.local(ctx)
	if err != nil {
		return "", err
	}
	defer c.done()
	info, err := c.self(ctx)
	return info.GetVersion(), err
}

package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
)

// positive is a flag with a duration above zero; zero is that it was not given.
type positive time.Duration

// String implements pflag.Value.
func (p *positive) String() string {
	if *p == 0 {
		return ""
	}
	return time.Duration(*p).String()
}

// Set implements pflag.Value.
func (p *positive) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err == nil && d <= 0 {
		err = errors.New("must be positive")
	}
	*p = positive(d)
	return err
}

// Type implements pflag.Value.
func (*positive) Type() string { return "duration" }

// proto is the duration as the API has it; nil is that none was given.
func (p *positive) proto() *durationpb.Duration {
	if *p == 0 {
		return nil
	}
	return durationpb.New(time.Duration(*p))
}

// timeout is the flag that bounds how long a command waits.
type timeout struct{ positive }

func (t *timeout) add(cmd *cobra.Command, by time.Duration, usage string) {
	t.positive = positive(by)
	cmd.Flags().Var(t, "timeout", usage)
}

func (t *timeout) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(t.positive))
}

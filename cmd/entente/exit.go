package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/entente-dev/entente/client"
)

// Exit codes. They are part of the command's interface; exits says what each one
// means.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitUnhealthy   = 3
	exitTimeout     = 4
	exitRefused     = 5
	exitInterrupted = 130
)

// exit is a code and what it means.
type exit struct {
	code  int
	means string
}

// exits is what --help and docs/cli.md say of the exit codes.
func exits() []exit {
	return []exit{
		{exitOK, "done"},
		{exitError, "failed: the message says what, where and what to do next"},
		{exitUsage, "wrong use: an argument or a flag that makes no sense"},
		{exitUnhealthy, "something is not as it should be (info, doctor, discover, network plan, network disconnect)"},
		{exitTimeout, "timed out: the message says what it was waiting for"},
		{exitRefused, "refused by a policy, a price or an administrator"},
		{exitInterrupted, "interrupted: the clusters continue what was begun"},
	}
}

// exitCodes lists them for --help.
func exitCodes() string {
	var codes strings.Builder
	for _, e := range exits() {
		fmt.Fprintf(&codes, "\n  %-5d%s", e.code, e.means)
	}
	return codes.String()
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

// refusals is the reasons of a no that is somebody's decision, which waiting does
// not change.
func refusals() []client.Reason {
	return []client.Reason{"POLICY_REFUSED", "POLICY_PENDING", "PRICE_ABOVE_CEILING", "CAPACITY_EXHAUSTED", "TRUST_DENIED", "TRUST_FORGOTTEN", "KUBERNETES_REFUSED"}
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
	case slices.Contains(refusals(), client.ReasonOf(err)):
		return exitRefused
	case strings.HasPrefix(err.Error(), "unknown command"):
		return exitUsage
	}
	return exitError
}

func unhealthy(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return &codeError{exitUnhealthy, fmt.Errorf("unhealthy\n  %s", strings.Join(problems, "\n  "))}
}

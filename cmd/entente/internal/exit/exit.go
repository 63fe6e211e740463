package exit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/peering"
)

// Exit codes. They are part of the command's interface; Codes says what each one means.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	Unhealthy   = 3
	Timeout     = 4
	Refused     = 5
	Interrupted = 130
)

// Code is an exit code and what it means.
type Code struct {
	Code  int
	Means string
}

// Codes returns what --help and docs/cli.md say of the exit codes.
func Codes() []Code {
	return []Code{
		{OK, "done"},
		{Failed, "failed: the message says what, where and what to do next"},
		{Usage, "wrong usage: an argument or a flag is missing or invalid"},
		{Unhealthy, "something is wrong (info, doctor, discover, network plan, network disconnect)"},
		{Timeout, "timed out: the message says what it was waiting for"},
		{Refused, "refused: by a policy, a price or an administrator, for lack of capacity, or a request that one of the agents finds invalid, or that is over"},
		{Interrupted, "interrupted: the clusters continue what was started"},
	}
}

// Help lists the codes for --help.
func Help() string {
	var codes strings.Builder
	for _, e := range Codes() {
		fmt.Fprintf(&codes, "\n  %-5d%s", e.Code, e.Means)
	}
	return codes.String()
}

// Error is an error with an exit code.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Usagef returns an error of wrong usage.
func Usagef(format string, args ...any) error {
	return &Error{Usage, fmt.Errorf(format, args...)}
}

// refusals are the reasons of a refusal by decision, which waiting does not change.
func refusals() []client.Reason {
	return []client.Reason{peering.ReasonPolicyRefused, peering.ReasonPolicyPending, peering.ReasonPriceAboveCeiling, peering.ReasonCapacityExhausted, peering.ReasonTrustDenied, peering.ReasonTrustForgotten, peering.ReasonKubernetesRefused}
}

// CodeOf is the exit code of an error.
func CodeOf(err error, interrupted bool) int {
	var coded *Error
	switch {
	case err == nil:
		return OK
	case errors.As(err, &coded):
		return coded.Code
	case interrupted:
		return Interrupted
	case client.ReasonOf(err) == peering.ReasonDeadlineExceeded:
		return Timeout
	case slices.Contains(refusals(), client.ReasonOf(err)):
		return Refused
	case strings.HasPrefix(err.Error(), "unknown command"):
		return Usage
	}
	return Failed
}

// Remaining adds to the error of a wait that ended too early what remains; other errors stay as they
// are.
func Remaining(err error, what string) error {
	var coded *Error
	if !errors.As(err, &coded) || coded.Code != Timeout && coded.Code != Interrupted {
		return err
	}
	return &Error{Code: coded.Code, Err: fmt.Errorf("%w\n  %s", err, what)}
}

// Problems returns the error of a cluster with these problems; nil without any.
func Problems(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return &Error{Unhealthy, fmt.Errorf("unhealthy\n  %s", strings.Join(problems, "\n  "))}
}

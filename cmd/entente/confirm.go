package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

// confirm asks a question where a person can answer, and returns an error if
// the answer is no. With --yes, and in scripts, it does not ask.
func (a *app) confirm(yes bool, question string) error {
	if yes || !a.interactive {
		return nil
	}
	_, _ = fmt.Fprintf(a.errOut, "%s [y/N] ", printer.Clean(question))
	answer, _ := bufio.NewReader(a.in).ReadString('\n')
	if s := strings.ToLower(strings.TrimSpace(answer)); s != "y" && s != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}

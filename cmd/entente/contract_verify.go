package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/evidence"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/peering"
)

func (a *app) contractVerifyCommand() *cobra.Command {
	var want evidence.Expected
	var bundle string
	cmd := a.offline(&cobra.Command{Use: "verify FILE...", Short: "Verify contracts and statements of use offline, with nothing but the two cluster IDs"}, func(_ context.Context, r *run) error {
		var ev evidence.Envelopes
		for _, name := range r.argv {
			raw, err := a.readFile(name)
			if err != nil {
				return err
			}
			if err := ev.Read(raw); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if bundle != "" {
			var err error
			if want.Bundle, err = a.readFile(bundle); err != nil {
				return err
			}
		}
		v, err := evidence.Judge(ev, want)
		switch {
		case err != nil:
			return err
		case r.output.Structured():
			return r.writeVerdict(v)
		}
		a.printVerdict(v)
		return nil
	})
	cmd.Flags().StringVar(&want.Consumer, "consumer", "", "The expected cluster ID of the consumer")
	cmd.Flags().StringVar(&want.Provider, "provider", "", "The expected cluster ID of the provider")
	cmd.Flags().StringVar(&bundle, "provider-bundle", "", "The provider's trust bundle (PEM, as in its ForeignCluster), for statements that it signed with a key newer than the contract")
	return cmd
}

// printVerdict prints what was verified.
func (a *app) printVerdict(v evidence.Verdict) {
	for i, c := range v.Contracts {
		if i > 0 {
			_, _ = fmt.Fprintln(a.out)
		}
		t := a.table()
		format.PrintTerms(t, a.now(), c.Envelope, c.Terms)
		t.Flush()
	}
	if len(v.Statements) == 0 {
		return
	}
	_, _ = fmt.Fprintln(a.out)
	t := a.table("STATEMENT", "CONTRACT", "REVISION", "FROM", "TO", "UNIT-HOURS", "AMOUNT", "PROVIDER", "NOTE")
	for _, p := range v.Statements {
		s := p.Statement
		t.Row(fmt.Sprint(s.Sequence), s.ContractID, fmt.Sprint(s.Revision), s.From.Format(time.RFC3339), s.To.Format(time.RFC3339),
			format.Listed(s.Used.Hours()), s.Amount.String(), "signed", p.Note)
	}
	t.Flush()
}

// writeVerdict prints what was verified for programs: the payloads.
func (r *run) writeVerdict(v evidence.Verdict) error {
	payloads := map[string][]any{"contracts": {}, "statements": {}}
	add := func(kind string, e peering.Envelope) error {
		value, err := printer.Decode(e.Payload)
		payloads[kind] = append(payloads[kind], value)
		return err
	}
	for _, c := range v.Contracts {
		if err := add("contracts", c.Envelope); err != nil {
			return err
		}
	}
	for _, s := range v.Statements {
		if err := add("statements", s.Envelope); err != nil {
			return err
		}
	}
	return r.writeValue(payloads)
}

// readFile reads a file, or standard input for -.
func (a *app) readFile(name string) ([]byte, error) {
	in := a.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read contract: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, evidence.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(raw) > evidence.MaxFile {
		return nil, fmt.Errorf("read %s: it has more than %d bytes", name, evidence.MaxFile)
	}
	return raw, nil
}

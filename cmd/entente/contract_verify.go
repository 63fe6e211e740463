package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) contractVerifyCommand() *cobra.Command {
	var want expected
	var bundle string
	var output outputFlags
	cmd := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Verify contracts and statements of use offline, with nothing but the two cluster IDs",
		Long: `Verify contracts offline: that both parties signed exactly these terms, with the
keys that their cluster IDs stand for, or with keys that follow from those by
signed succession. It reaches no cluster.

FILE has envelopes (DSSE), Contract resources, or what ` + "`entente contract show`" + `
prints, JSON or YAML, one or several; - is standard input. Of several revisions it
checks that they follow each other. A provider's statements of use, which a
Contract resource has in its status, are verified by the contract: its provider
signed them, at its prices, and none is missing between two.

Without --consumer and --provider it prints who signed; whether these are the right
two is then for you to compare.

docs/verify-contract.md says how others verify a contract, without Entente.`,
		Example: indent(`entente contract verify contract.json --consumer 3vx… --provider k2a…
kubectl get contract 7f3c… -o yaml | entente contract verify -

# Two revisions of a contract, and a statement
entente contract verify revision-1.json revision-2.json statement-9.json`),
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, argv []string) error {
			if err := output.check(); err != nil {
				return err
			}
			var ev evidence
			for _, name := range argv {
				raw, err := a.readFile(name)
				if err != nil {
					return err
				}
				if err := ev.read(raw); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			if bundle != "" {
				var err error
				if want.bundle, err = a.readFile(bundle); err != nil {
					return err
				}
			}
			v, err := judge(ev, want)
			if err != nil {
				return err
			}
			if output.structured() {
				return v.write(&output, a)
			}
			v.show(a)
			return nil
		},
	}
	cmd.Flags().StringVar(&want.consumer, "consumer", "", "The cluster ID that the consumer has to have")
	cmd.Flags().StringVar(&want.provider, "provider", "", "The cluster ID that the provider has to have")
	cmd.Flags().StringVar(&bundle, "provider-bundle", "", "The provider's trust bundle (PEM, as in its ForeignCluster), for statements that it signed with a key newer than the contract")
	output.add(cmd)
	return cmd
}

// show prints what was verified.
func (v verdict) show(a *app) {
	for i, c := range v.contracts {
		if i > 0 {
			_, _ = fmt.Fprintln(a.out)
		}
		t := a.table()
		a.printTerms(t, c.envelope, c.terms)
		t.flush()
	}
	if len(v.statements) == 0 {
		return
	}
	_, _ = fmt.Fprintln(a.out)
	t := a.table("STATEMENT", "CONTRACT", "REVISION", "FROM", "TO", "UNIT-HOURS", "AMOUNT", "PROVIDER", "NOTE")
	for _, p := range v.statements {
		s := p.statement
		t.row(fmt.Sprint(s.Sequence), s.ContractID, fmt.Sprint(s.Revision), s.From.Format(time.RFC3339), s.To.Format(time.RFC3339),
			listed(s.Used.Hours()), s.Amount.String(), "signed", p.note)
	}
	t.flush()
}

// write prints what was verified for programs.
func (v verdict) write(output *outputFlags, a *app) error {
	contracts, statements := []any{}, []any{}
	for _, c := range v.contracts {
		value, err := payloadValue(c.envelope)
		if err != nil {
			return err
		}
		contracts = append(contracts, value)
	}
	for _, s := range v.statements {
		value, err := payloadValue(s.envelope)
		if err != nil {
			return err
		}
		statements = append(statements, value)
	}
	return output.writeValue(a.out, map[string]any{"contracts": contracts, "statements": statements})
}

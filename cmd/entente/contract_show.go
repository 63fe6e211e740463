package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func (a *app) contractShowCommand() *cobra.Command {
	return a.command(&cobra.Command{Use: "show CONTRACT", Short: "Show what was agreed, after verifying the signatures"}, func(ctx context.Context, r *run) error {
		k, err := r.contract(ctx, r.argv[0])
		if err != nil {
			return err
		}
		e, terms, err := openEnvelope(k.GetEnvelope())
		if err != nil {
			return fmt.Errorf("(%s) contract %s: %w", r.label, k.GetContractId(), err)
		}
		if r.output.Form == printer.FormDSSE {
			_, err := fmt.Fprintln(a.out, k.GetEnvelope())
			return err
		}
		if r.output.Structured() {
			v, err := contractValue(k, e)
			if err != nil {
				return err
			}
			return r.writeValue(v)
		}
		t := a.table()
		format.PrintState(t, a.now(), k)
		format.PrintTerms(t, a.now(), e, terms)
		t.Flush()
		return nil
	}, printer.FormTable, printer.FormDSSE)
}

// openEnvelope reads the envelope of a contract and verifies its signatures.
func openEnvelope(text string) (peering.Envelope, peering.Terms, error) {
	e, err := peering.ParseEnvelope([]byte(text))
	if err != nil {
		return peering.Envelope{}, peering.Terms{}, err
	}
	terms, err := e.Verify()
	if err != nil {
		return peering.Envelope{}, peering.Terms{}, fmt.Errorf("NOT valid: %w", err)
	}
	return e, terms, nil
}

// contractValue is a contract as in the API, with the signed terms.
func contractValue(k *ententev1.Contract, e peering.Envelope) (any, error) {
	v, err := printer.PlainJSON(k)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("contract %s: not an object", k.GetContractId())
	}
	terms, err := printer.Decode(e.Payload)
	if err != nil {
		return nil, err
	}
	m["terms"], m["payloadHash"] = terms, e.Hash().String()
	return m, nil
}

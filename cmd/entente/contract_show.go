package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func (a *app) contractShowCommand() *cobra.Command {
	var output outputFlags
	cmd := &cobra.Command{
		Use:   "show CONTRACT",
		Short: "Show what was agreed, after verifying the signatures",
		Long: `Show what was agreed, after verifying the signatures, and how the contract is.

With -o json and -o yaml the signed terms are under "terms". With -o dsse it prints
the signed envelope itself, byte for byte, which is what to hand to others as
evidence: docs/verify-contract.md says how they check it without Entente.`,
		Example: indent(`entente contract show 7f3c…
entente contract show 7f3c… --get terms.price.perHour.cpu
entente contract show 7f3c… -o dsse | entente contract verify -`),
		Args: args(cobra.ExactArgs(1)),
		RunE: a.onLocal(&output, func(ctx context.Context, c *cluster, argv []string) error {
			k, err := c.contract(ctx, argv[0])
			if err != nil {
				return err
			}
			e, terms, err := openEnvelope(k.GetEnvelope())
			if err != nil {
				return fmt.Errorf("(%s) contract %s: %w", c.label, k.GetContractId(), err)
			}
			if output.form == formDSSE {
				_, err := fmt.Fprintln(a.out, k.GetEnvelope())
				return err
			}
			if output.structured() {
				v, err := contractValue(k, e)
				if err != nil {
					return err
				}
				return output.writeValue(a.out, v)
			}
			t := a.table()
			printState(a, t, k)
			a.printTerms(t, e, terms)
			t.flush()
			return nil
		}),
	}
	output.add(cmd, formTable, formDSSE)
	return a.completes(cmd, 1, contractNames)
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

// contractValue is a contract as the API has it, with the signed terms.
func contractValue(k *ententev1.Contract, e peering.Envelope) (any, error) {
	v, err := plainJSON(k)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("contract %s: not an object", k.GetContractId())
	}
	terms, err := payloadValue(e)
	if err != nil {
		return nil, err
	}
	m["terms"], m["payloadHash"] = terms, e.Hash().String()
	return m, nil
}

// payloadValue is the payload of an envelope as maps and slices.
func payloadValue(e peering.Envelope) (any, error) {
	var v any
	dec := json.NewDecoder(strings.NewReader(string(e.Payload)))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("read payload: %w", err)
	}
	return v, nil
}

func printState(a *app, t *table, k *ententev1.Contract) {
	t.row("Phase", k.GetPhase(), whyEnding(k))
	t.row("This cluster is", strings.ToLower(k.GetRole()), "the other is peer "+short(k.GetPeer()))
	t.row("In use", amounts(k.GetUsed()), "by "+countPods(int(k.GetPods())))
	if k.GetNode() != "" {
		t.row("Virtual node", k.GetNode())
	}
	if k.GetDrainUntil() != nil {
		t.row("Drains", a.until(k.GetDrainUntil())+" yet")
	}
}

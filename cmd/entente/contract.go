package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/peering"
)

// maxContractFile is the most bytes of a file with a contract: an envelope in a
// Kubernetes object.
const maxContractFile = 1 << 20

func (a *app) contractCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "contract", Short: "List, show and verify contracts"})
	cmd.AddCommand(a.contractListCommand(), a.contractShowCommand(), a.contractVerifyCommand())
	return cmd
}

func (a *app) contractListCommand() *cobra.Command {
	output := outputFlags{table: true}
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"},
		Short:   "List the contracts of this cluster",
		Example: indent("entente contract list\nentente contract list -o json"),
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			c, err := a.local(cmd.Context())
			if err != nil {
				return err
			}
			defer c.done()
			peers, err := c.peers(cmd.Context())
			if err != nil {
				return err
			}
			list := []any{}
			w := table(a.out)
			row(w, "CONTRACT", "PEER", "ROLE", "PHASE", "REVISION", "RESOURCES", "PODS", "UNTIL", "NODE")
			for _, p := range peers {
				for _, k := range p.GetContracts() {
					v, err := plainJSON(k)
					if err != nil {
						return err
					}
					if m, ok := v.(map[string]any); ok {
						m["peer"] = shortName(p)
					}
					list = append(list, v)
					row(w, k.GetContractId(), shortName(p), k.GetRole(), k.GetPhase(), fmt.Sprint(k.GetRevision()), amounts(k.GetResources()),
						fmt.Sprint(k.GetPods()), k.GetNotAfter().AsTime().Format(time.RFC3339), orNone(k.GetNode(), "-"))
				}
			}
			if output.structured() {
				return output.printValue(a.out, list)
			}
			return w.Flush()
		},
	}
	output.add(cmd)
	return cmd
}

func (a *app) contractShowCommand() *cobra.Command {
	var output outputFlags
	cmd := &cobra.Command{
		Use:   "show CONTRACT",
		Short: "Show what was agreed, after verifying the signatures",
		Long: `Show what was agreed, after verifying the signatures. With -o json it prints the
signed envelope itself (DSSE), which is what to hand to others as evidence.`,
		Example: indent(`entente contract show 7f3c…
entente contract show 7f3c… -o json | entente contract verify -`),
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if err := output.check(); err != nil {
				return err
			}
			c, err := a.local(cmd.Context())
			if err != nil {
				return err
			}
			defer c.done()
			contract, err := c.contract(cmd.Context(), argv[0])
			if err != nil {
				return fmt.Errorf("(local) %w", err)
			}
			if output.structured() {
				var v any
				if err := json.Unmarshal([]byte(contract.Spec.Envelope), &v); err != nil {
					return fmt.Errorf("contract %s: its envelope is not JSON: %w", argv[0], err)
				}
				return output.printValue(a.out, v)
			}
			return a.verify([]byte(contract.Spec.Envelope), "", "")
		},
	}
	output.add(cmd)
	return cmd
}

func (a *app) contractVerifyCommand() *cobra.Command {
	var consumer, provider string
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Verify a contract offline, with nothing but the two cluster IDs",
		Long: `Verify a contract offline: that both parties signed exactly these terms, with the
keys that their cluster IDs stand for. It reaches no cluster.

FILE is an envelope (DSSE, JSON) or a Contract resource (JSON or YAML); - is
standard input. Without --consumer and --provider it tells who signed; whether
these are the right two is then for you to compare.`,
		Example: indent(`entente contract verify contract.json --consumer 3vx… --provider k2a…
kubectl get contract 7f3c… -o yaml | entente contract verify -`),
		Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, argv []string) error {
			raw, err := a.readFile(argv[0])
			if err != nil {
				return err
			}
			envelope, err := envelopeIn(raw)
			if err != nil {
				return err
			}
			return a.verify(envelope, consumer, provider)
		},
	}
	cmd.Flags().StringVar(&consumer, "consumer", "", "The cluster ID that the consumer has to have")
	cmd.Flags().StringVar(&provider, "provider", "", "The cluster ID that the provider has to have")
	return cmd
}

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
	raw, err := io.ReadAll(io.LimitReader(in, maxContractFile+1))
	if err != nil {
		return nil, fmt.Errorf("read contract: %w", err)
	}
	if len(raw) > maxContractFile {
		return nil, fmt.Errorf("read contract: %s has more than %d bytes", name, maxContractFile)
	}
	return raw, nil
}

// envelopeIn finds the envelope: the text itself, or in a Contract resource.
func envelopeIn(raw []byte) ([]byte, error) {
	asJSON, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, errors.New("this is neither an envelope nor a Contract: it is not JSON or YAML")
	}
	var shape struct {
		Payload *string `json:"payload"`
		Kind    string  `json:"kind"`
		Spec    struct {
			Envelope string `json:"envelope"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(asJSON, &shape); err != nil {
		return nil, errors.New("this is neither an envelope nor a Contract")
	}
	switch {
	case shape.Payload != nil:
		return asJSON, nil
	case shape.Kind == "Contract" && shape.Spec.Envelope != "":
		return []byte(shape.Spec.Envelope), nil
	}
	return nil, errors.New("this is neither an envelope nor a Contract with one")
}

// verify verifies an envelope and prints its terms.
func (a *app) verify(envelope []byte, consumer, provider string) error {
	e, err := peering.ParseEnvelope(envelope)
	if err != nil {
		return err
	}
	terms, err := e.Verify()
	if err != nil {
		return fmt.Errorf("NOT valid: %w", err)
	}
	for _, want := range []struct {
		role string
		id   string
		got  peering.ClusterID
	}{{"consumer", consumer, terms.Consumer.ID}, {"provider", provider, terms.Provider.ID}} {
		if want.id != "" && want.id != string(want.got) {
			return fmt.Errorf("NOT the expected parties: the %s is %s, not %s", want.role, want.got, want.id)
		}
	}
	w := table(a.out)
	row(w, "Contract", terms.ContractID)
	row(w, "Revision", fmt.Sprint(terms.Revision))
	row(w, "Consumer", string(terms.Consumer.ID), "signed")
	row(w, "Provider", string(terms.Provider.ID), "signed")
	row(w, "Resources", terms.Resources.String())
	row(w, "From", terms.NotBefore.Format(time.RFC3339))
	row(w, "Until", terms.NotAfter.Format(time.RFC3339), a.validity(terms))
	row(w, "Network", map[bool]string{true: "tunnel", false: "none"}[terms.Network])
	row(w, "Pod security", string(terms.PodSecurity))
	row(w, "Payload", e.Hash().String())
	return w.Flush()
}

func (a *app) validity(t peering.Terms) string {
	now := a.now()
	switch {
	case now.Before(t.NotBefore):
		return "not in force yet"
	case now.After(t.NotAfter):
		return "over"
	}
	return humanDuration(t.NotAfter.Sub(now)) + " left, unless it was ended"
}

func humanDuration(d time.Duration) string { return duration.HumanDuration(d) }

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

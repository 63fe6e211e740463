package main

import (
	"strings"

	"github.com/spf13/cobra"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// askFlags is what can be asked of a provider.
type askFlags struct {
	resources    resourceFlags
	duration     positive
	priceCeiling string
	nodeSelector map[string]string
	storage      []string
	runtime      []string
	noNetwork    bool
	noRenewal    bool
}

func (f *askFlags) add(cmd *cobra.Command) {
	f.resources.add(cmd)
	cmd.Flags().Var(&f.duration, "duration", "For how long to ask (default: as the provider's terms say)")
	cmd.Flags().StringVar(&f.priceCeiling, "price-ceiling", "", "The most that all of it may cost an hour, as \"EUR 0.5\" (default: any price)")
	cmd.Flags().StringToStringVar(&f.nodeSelector, "node-selector", nil, "Labels that the provider's nodes must have, as kubernetes.io/arch=arm64")
	cmd.Flags().StringSliceVar(&f.storage, "storage-class", nil, "A storage class that the provider must have; may be repeated")
	cmd.Flags().StringSliceVar(&f.runtime, "runtime-class", nil, "A runtime class that the provider must have; may be repeated")
	cmd.Flags().BoolVar(&f.noNetwork, "no-network", false, "Do without the tunnel")
}

func (f *askFlags) addRenewal(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.noRenewal, "no-renewal", false, "Let the contract end instead of renewing it")
}

// request is what the flags ask for, without the peer.
func (f *askFlags) request() (*ententev1.CreatePeeringRequest, error) {
	req := &ententev1.CreatePeeringRequest{
		NoNetwork: f.noNetwork, NoRenewal: f.noRenewal,
		Duration: f.duration.proto(), NodeSelector: f.nodeSelector, StorageClasses: f.storage, RuntimeClasses: f.runtime,
	}
	var err error
	if req.Resources, err = f.resources.list(); err != nil {
		return nil, err
	}
	if req.PriceCeiling, err = parseMoney("--price-ceiling", f.priceCeiling); err != nil {
		return nil, err
	}
	return req, nil
}

// anything says whether a request asks for anything in particular.
func anything(r *ententev1.CreatePeeringRequest) bool {
	return len(r.GetResources().GetAmounts()) > 0 || r.GetDuration() != nil || r.GetPriceCeiling() != nil ||
		len(r.GetNodeSelector()) > 0 || len(r.GetStorageClasses()) > 0 || len(r.GetRuntimeClasses()) > 0 ||
		r.GetNoNetwork() || r.GetNoRenewal()
}

// whomFlags is who is asked, if not one peer.
type whomFlags struct {
	any      bool
	selector map[string]string
}

func (f *whomFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.any, "any", false, "Ask all trusted peers, and take the cheapest that fits, of equal ones the nearest")
	cmd.Flags().StringToStringVar(&f.selector, "peer-selector", nil, "As --any, but only peers whose ForeignCluster has these labels")
}

func (f *whomFlags) given() bool { return f.any || len(f.selector) > 0 }

// anyPeer stands for whichever peer fits best.
const anyPeer = "-"

// parseMoney reads an amount as people write it: EUR 0.5.
func parseMoney(flag, s string) (*ententev1.Money, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // none is an answer
	}
	words := strings.Fields(s)
	if len(words) != 2 || !isCurrency(words[0]) {
		return nil, usageError("%s %q: want a currency and an amount, as \"EUR 0.5\"", flag, s)
	}
	amount := words[1]
	if strings.Contains(amount, ".") {
		amount = strings.TrimSuffix(strings.TrimRight(amount, "0"), ".")
	}
	d, err := peering.ParseDecimal(amount)
	if err != nil {
		return nil, usageError("%s %q: %w", flag, s, err)
	}
	return &ententev1.Money{Currency: words[0], Amount: d.String()}, nil
}

func isCurrency(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

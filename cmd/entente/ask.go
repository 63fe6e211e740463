package main

import (
	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// askFlags are the parts of a request to a provider.
type askFlags struct {
	resources    flags.Resources
	duration     flags.Duration
	priceCeiling flags.Money
	ask          ententev1.CreatePeeringRequest
}

func (f *askFlags) add(cmd *cobra.Command) {
	f.resources.Add(cmd.Flags())
	cmd.Flags().Var(&f.duration, "duration", "The duration to ask for (default: the provider's)")
	cmd.Flags().Var(&f.priceCeiling, "price-ceiling", "The most that all of it may cost per hour, such as \"EUR 0.5\" (default: any price)")
	cmd.Flags().StringVar(&f.ask.Pool, "pool", "", "The pool of the provider's nodes, by the provider's name for it (default: its pool named default, or all nodes if it has no pools)")
	cmd.Flags().StringToStringVar(&f.ask.NodeSelector, "node-selector", nil, "Labels that the provider's nodes must have, such as kubernetes.io/arch=arm64")
	cmd.Flags().StringSliceVar(&f.ask.StorageClasses, "storage-class", nil, "A storage class that the provider must have; may be repeated")
	cmd.Flags().StringSliceVar(&f.ask.RuntimeClasses, "runtime-class", nil, "A runtime class that the provider must have; may be repeated")
	cmd.Flags().BoolVar(&f.ask.NoNetwork, "no-network", false, "Ask for no tunnel")
}

func (f *askFlags) addRenewal(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.ask.NoRenewal, "no-renewal", false, "Let the contract end instead of renewing it")
}

// request is what the flags ask for, without the peer.
func (f *askFlags) request() *ententev1.CreatePeeringRequest {
	f.ask.Resources, f.ask.Duration, f.ask.PriceCeiling = f.resources.Proto(), f.duration.Proto(), f.priceCeiling.Amount
	return &f.ask
}

// whomFlags say which peers to ask, if not a single one.
type whomFlags struct {
	any      bool
	selector map[string]string
}

func (f *whomFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.any, "any", false, "Ask all trusted peers, and take the cheapest that fits; among equals, the nearest")
	cmd.Flags().StringToStringVar(&f.selector, "peer-selector", nil, "Like --any, but only peers whose ForeignCluster has these labels")
}

func (f *whomFlags) given() bool { return f.any || len(f.selector) > 0 }

package main

import (
	"strings"

	"github.com/spf13/cobra"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// resourceFlags is amounts of resources.
type resourceFlags struct {
	cpu, memory, pods string
	resources         []string
}

func (f *resourceFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.resources, "resources", nil, "How much of what, as cpu=4,memory=8Gi,nvidia.com/gpu=1; may be repeated")
	cmd.Flags().StringVar(&f.cpu, "cpu", "", "How much CPU, as 4 or 500m: short for --resources cpu=4")
	cmd.Flags().StringVar(&f.memory, "memory", "", "How much memory, as 8Gi: short for --resources memory=8Gi")
	cmd.Flags().StringVar(&f.pods, "pods", "", "How many pods: short for --resources pods=20")
}

func (f *resourceFlags) amounts() (map[string]string, error) {
	given := map[string]string{}
	put := func(flag, name, amount string) error {
		if _, twice := given[name]; twice {
			return usageError("%s: %s is given twice", flag, name)
		}
		q, err := peering.ParseQuantity(amount)
		if err != nil {
			return usageError("%s: %s: %w", flag, name, err)
		}
		given[name] = q.String()
		return nil
	}
	for _, r := range f.resources {
		name, amount, ok := strings.Cut(r, "=")
		if !ok || name == "" || amount == "" {
			return nil, usageError("--resources %q: want name=amount, as cpu=4,memory=8Gi", r)
		}
		if err := put("--resources", name, amount); err != nil {
			return nil, err
		}
	}
	for _, short := range []struct{ name, amount string }{{"cpu", f.cpu}, {"memory", f.memory}, {"pods", f.pods}} {
		if short.amount == "" {
			continue
		}
		if err := put("--"+short.name, short.name, short.amount); err != nil {
			return nil, err
		}
	}
	return given, nil
}

// list is the flags as the API has them; nil is that none was given.
func (f *resourceFlags) list() (*ententev1.ResourceList, error) {
	given, err := f.amounts()
	if err != nil || len(given) == 0 {
		return nil, err
	}
	return &ententev1.ResourceList{Amounts: given}, nil
}

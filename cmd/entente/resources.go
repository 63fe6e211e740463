package main

import (
	"fmt"
	"slices"
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

// amounts lists resources by name, the usual ones first.
func amounts(r *ententev1.ResourceList) string { return listed(r.GetAmounts()) }

// briefly is CPU and memory, and how many other resources there are besides pods.
func briefly(r *ententev1.ResourceList) string {
	var parts []string
	others := 0
	for _, name := range resourceNames(r.GetAmounts()) {
		switch amount := r.GetAmounts()[name]; name {
		case "cpu":
			parts = append(parts, amount+" CPU")
		case "memory":
			parts = append(parts, amount)
		case "pods":
		default:
			others++
		}
	}
	if others > 0 {
		parts = append(parts, fmt.Sprintf("+%d", others))
	}
	if len(parts) == 0 {
		return amounts(r)
	}
	return strings.Join(parts, ", ")
}

// listed lists amounts by name, the usual ones first.
func listed(amounts map[string]string) string {
	var parts []string
	for _, name := range resourceNames(amounts) {
		parts = append(parts, name+" "+amounts[name])
	}
	return orNone(strings.Join(parts, ", "), "nothing")
}

func resourceNames(amounts map[string]string) []string {
	rank := map[string]int{"cpu": -3, "memory": -2, "pods": -1}
	names := make([]string, 0, len(amounts))
	for name := range amounts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if rank[a] != rank[b] {
			return rank[a] - rank[b]
		}
		return strings.Compare(a, b)
	})
	return names
}

package market

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Problems returns everything that is wrong with a policy, which offers nothing because of it.
func (p *Policy) Problems() []string { return p.problems }

// Doubts returns what a policy names and this cluster does not have. It may have it later, so that is not wrong.
func (p *Policy) Doubts(runtimeClasses, storageClasses []string) []string {
	var out []string
	missing := func(kind string, names, exist []string) {
		for _, name := range names {
			if !slices.Contains(exist, name) {
				out = append(out, fmt.Sprintf("this cluster has no %s %s", kind, name))
			}
		}
	}
	missing("runtime class", p.Value.RuntimeClasses, runtimeClasses)
	storage := slices.Clone(p.Value.StorageClasses)
	for i := range p.pools {
		storage = append(storage, p.pools[i].value.StorageClasses...)
	}
	slices.Sort(storage)
	missing("storage class", slices.Compact(storage), storageClasses)
	return out
}

// readSelector reads which clusters a policy selects; nil selects all. It calls fail if that is wrong.
func readSelector(s *metav1.LabelSelector, fail func(what string, err error)) labels.Selector {
	if s == nil {
		return labels.Everything()
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		fail("clusterSelector", err)
		return labels.Nothing()
	}
	return selector
}

// checkDurations calls fail for each duration that makes no sense. The API server refuses them; a policy may be older
// than that.
func checkDurations(policy *peering.Policy, fail func(what string, err error)) {
	if policy.Duration < time.Second {
		fail("contractDuration", fmt.Errorf("it is %s, less than 1s", policy.Duration))
	}
	if policy.Notice < 0 {
		fail("notice", fmt.Errorf("it is %s, below zero", policy.Notice))
	}
}

// checkNames calls fail for each name that no resource has. A limit or price by such a name would have no
// effect.
func checkNames(what string, names []string, fail func(what string, err error)) {
	for _, name := range names {
		if !isResource(name) {
			fail(what, fmt.Errorf("nodes have no resource %q: a name is cpu, memory, ephemeral-storage, pods, hugepages-SIZE, or one with a domain, such as nvidia.com/gpu", name))
		}
	}
}

// isResource reports whether nodes can have a resource of this name.
func isResource(name string) bool {
	return slices.Contains([]string{"cpu", "memory", "ephemeral-storage", peering.Pods}, name) || strings.HasPrefix(name, "hugepages-") || strings.Contains(name, "/")
}

// readPrices reads what use costs. It calls fail for each thing that is wrong.
func readPrices(list *v1alpha1.PriceList, what string, fail func(what string, err error)) peering.PriceList {
	prices, err := store.Prices(list)
	fail(what, err)
	if list != nil {
		checkNames(what, slices.Sorted(maps.Keys(list.PerHour)), fail)
	}
	return prices
}

// readLimitRange reads a limit range. It calls fail for each thing that is wrong.
func readLimitRange(l *v1alpha1.LimitRange, fail func(what string, err error)) peering.LimitRange {
	out, err := store.LimitRange(l)
	if problems := out.Problems(); len(problems) > 0 {
		err = nil
		for _, p := range problems {
			fail("limitRange", errors.New(p))
		}
	}
	fail("limitRange", err)
	return out
}

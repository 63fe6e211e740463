// Package usage counts what is used of contracts: what pods use, the meters of that, and the
// statements that a provider makes of it and its consumer checks.
package usage

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/limitrange"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
)

// OfPods returns what pods on a virtual node use, and how many have not ended. A pod
// counts from when its provider accepted it until it ended or is gone, with what the
// scheduler counts for it except the overhead, which is the provider's own, and with the
// contract's defaults for containers without requests. Pods of DaemonSets do not count: they
// never run on virtual nodes.
func OfPods(pods []corev1.Pod, limits *v1alpha1.LimitRange) (used corev1.ResourceList, left int) {
	used = corev1.ResourceList{}
	for i := range pods {
		needs, is := ofPod(&pods[i], limits)
		if is {
			left++
		}
		AddTo(used, needs)
	}
	return used, left
}

// ofPod returns what a pod uses, and whether it has not ended.
func ofPod(p *corev1.Pod, limits *v1alpha1.LimitRange) (needs corev1.ResourceList, left bool) {
	if owner := metav1.GetControllerOf(p); podEnded(p) || owner != nil && owner.Kind == "DaemonSet" {
		return nil, false
	}
	if !podTaken(p) {
		return nil, true
	}
	if limits != nil {
		p = &corev1.Pod{Spec: *limitrange.Filled(&p.Spec, limits)}
	}
	needs = resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
	needs[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	maps.DeleteFunc(needs, func(_ corev1.ResourceName, amount resource.Quantity) bool { return amount.IsZero() })
	return needs, true
}

func podEnded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func podTaken(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == v1alpha1.PodOffloaded && c.Status == corev1.ConditionTrue
	})
}

// Changes reports whether an update of a pod may change what its node uses.
func Changes(before, after *corev1.Pod) bool {
	return after.Spec.NodeName != "" && (before.Spec.NodeName != after.Spec.NodeName || before.Generation != after.Generation ||
		podEnded(before) != podEnded(after) || podTaken(before) != podTaken(after))
}

// Using converts what is in use for a meter. Amounts finer than a meter counts are
// rounded up.
func Using(list corev1.ResourceList) peering.Resources {
	out := peering.Resources{}
	for name, amount := range list {
		if amount.Sign() <= 0 {
			continue
		}
		if q, err := peering.ParseQuantity(amount.String()); err == nil {
			out[string(name)] = q
			continue
		}
		out[string(name)] = peering.Whole(amount.Value())
	}
	return out
}

// Meters is the newest readings of contracts' meters. Those stored in the contracts'
// status are older, so that not every reading is a write.
type Meters struct{ of sync.Map } // readings by the name of the contract

// Reading is a meter, and the time until which the stored one had counted.
type Reading struct {
	UID   types.UID
	Meter meter.Meter
	Kept  time.Time
}

// Resume returns the newest reading of a contract's meter: the one in memory if it
// continues the stored one, else the stored one. Since use was not observed after that,
// what was in use then counts only as far as it is in use now.
func (m *Meters) Resume(stored *v1alpha1.Contract, terms peering.Terms, using peering.Resources) (meter.Meter, error) {
	kept, err := store.Meter(stored, terms)
	if err != nil {
		return kept, err
	}
	if r := m.Of(stored.Name); r.UID == stored.UID && r.Kept.Equal(kept.Until) && r.Meter.Sequence == kept.Sequence {
		r.Meter.Period = kept.Period
		return r.Meter, nil
	}
	for name, amount := range kept.Using {
		kept.Using[name] = amount.Min(using[name])
	}
	return kept, nil
}

// Note remembers a reading of a contract's meter, and which reading is stored.
func (m *Meters) Note(stored *v1alpha1.Contract, meter meter.Meter) {
	if stored.Status.Usage != nil {
		m.of.Store(stored.Name, Reading{UID: stored.UID, Meter: meter, Kept: stored.Status.Usage.Until.Time})
	}
}

// Forget forgets the reading of a contract that is gone.
func (m *Meters) Forget(contract string) { m.of.Delete(contract) }

// Of returns the newest reading of a contract.
func (m *Meters) Of(contract string) Reading {
	r, _ := m.of.Load(contract)
	known, _ := r.(Reading)
	return known
}

// All returns the readings that are newer than the stored ones and count more: while
// nothing is in use, time adds nothing.
func (m *Meters) All() map[string]Reading {
	out := map[string]Reading{}
	for name := range m.of.Range {
		if r := m.Of(name.(string)); r.Meter.Until.After(r.Kept) && len(r.Meter.Using) > 0 {
			out[name.(string)] = r
		}
	}
	return out
}

// Read makes a meter observe what is in use now, or ends it because the contract
// closed. It returns the periods that ended.
func Read(m meter.Meter, c peering.Contract, now time.Time, using peering.Resources) (meter.Meter, []meter.Period) {
	var all []meter.Period
	for {
		var ended []meter.Period
		if c.State == peering.Closed {
			m, ended = m.End(c.ClosedAt)
		} else {
			m, ended = m.Observe(now, using)
		}
		all = append(all, ended...)
		if len(ended) < peering.MaxPeriods {
			return m, all
		}
	}
}

// AddPeriods adds periods to the consumer's own count, which keeps the newest.
func AddPeriods(usage *v1alpha1.Usage, ended []meter.Period) {
	for _, p := range ended[max(len(ended)-MaxKept, 0):] {
		usage.Periods = append(usage.Periods, v1alpha1.UsagePeriod{
			Since: metav1.NewMicroTime(p.From), Until: metav1.NewMicroTime(p.To), UnitSeconds: p.Used.Strings(),
		})
	}
	usage.Periods = usage.Periods[max(len(usage.Periods)-MaxKept, 0):]
}

// AddTo adds more to a sum.
func AddTo(sum, more corev1.ResourceList) {
	for name, amount := range more {
		total := sum[name]
		total.Add(amount)
		sum[name] = total
	}
}

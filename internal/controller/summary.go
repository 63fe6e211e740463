package controller

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/usage"
)

// The columns of `kubectl get` sum up the status. They are coarse, so that they do not change, and are not written,
// with each pod.

// summaryStep is the step of the percentage in use.
const summaryStep = 5

// grantedAndUsed sums up the contracts with a peer that are not closed: what they grant, and how much of it is in
// use. What the peer provides comes first.
func grantedAndUsed(contracts []v1alpha1.Contract) (granted, used string) {
	var amounts, shares []string
	for _, side := range []v1alpha1.ContractRole{v1alpha1.ContractConsumer, v1alpha1.ContractProvider} {
		all, inUse := corev1.ResourceList{}, corev1.ResourceList{}
		for i := range contracts {
			c := &contracts[i]
			if c.Spec.Role != side || store.Closed(c) {
				continue
			}
			usage.AddTo(all, c.Spec.Resources)
			usage.AddTo(inUse, c.Status.Used)
		}
		if len(all) > 0 {
			amounts = append(amounts, amountsText(all))
			shares = append(shares, fmt.Sprintf("%d%%", percentUsed(all, inUse)))
		}
	}
	return strings.Join(amounts, " / "), strings.Join(shares, " / ")
}

// amountsText formats CPU and memory, and how many other resources there are except pods, which every contract has.
func amountsText(all corev1.ResourceList) string {
	var parts []string
	if cpu, ok := all[corev1.ResourceCPU]; ok {
		parts = append(parts, cpu.String()+" CPU")
	}
	if memory, ok := all[corev1.ResourceMemory]; ok {
		parts = append(parts, memory.String())
	}
	others := 0
	for name := range all {
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourcePods {
			others++
		}
	}
	switch pods, ok := all[corev1.ResourcePods]; {
	case others > 0:
		parts = append(parts, fmt.Sprintf("+%d", others))
	case len(parts) == 0 && ok:
		parts = append(parts, pods.String()+" pods")
	}
	return strings.Join(parts, ", ")
}

// percentUsed is the share in use, rounded up, of the most used resource.
func percentUsed(all, used corev1.ResourceList) int64 {
	most := 0.0
	for name, total := range all {
		if share, ok := shareOf(used[name], total); ok {
			most = max(most, share)
		}
	}
	steps := int64(most * 100 / summaryStep)
	if float64(steps*summaryStep) < most*100 {
		steps++
	}
	return steps * summaryStep
}

func shareOf(used, total resource.Quantity) (float64, bool) {
	whole := total.AsApproximateFloat64()
	return used.AsApproximateFloat64() / whole, whole > 0
}

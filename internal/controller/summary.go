package controller

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
<<<<<<< HEAD
=======
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
>>>>>>> e2b71f8 (internal/placement, vk, agent: label virtual nodes with latency and price, and select by what nodes have)

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/usage"
)

// What `kubectl get` shows in one line sums up what the status has in full. Each is
// coarse, so that it does not change, and is not written, with each pod.

// summaryStep is the step of the percentage in use.
const summaryStep = 5

// grantedAndUsed sums up the contracts in force with a peer: what they grant, and how
// much of it is in use. What the peer provides comes first.
func grantedAndUsed(contracts []v1alpha1.Contract) (granted, used string) {
	var amounts, shares []string
	for _, side := range []v1alpha1.ContractRole{v1alpha1.ContractConsumer, v1alpha1.ContractProvider} {
		all, inUse := corev1.ResourceList{}, corev1.ResourceList{}
		for i := range contracts {
			c := &contracts[i]
			if c.Spec.Role != side || !store.InForce(c) {
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

// amountsText is CPU and memory, and how many other resources there are besides pods,
// which every contract has.
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

// percentUsed is the share in use of the resource of which most is, rounded up.
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
<<<<<<< HEAD
=======

// The states that sum up where an offloaded namespace is.
const (
	namespaceReady      = "Ready"
	namespacePending    = "Pending"
	namespaceRefused    = "Refused"
	namespaceNoProvider = "NoProvider"
)

// namespaceState sums up how a namespace is at its providers, given all ForeignClusters.
// What runs elsewhere already may be at one that the selector selects no longer.
func namespaceState(of *metav1.LabelSelector, clusters []v1alpha1.NamespaceInCluster, all []v1alpha1.ForeignCluster) (state, message string) {
	which := "no cluster"
	selected, lost := selects(of, all)
	if of != nil {
		which = "no cluster that spec.clusterSelector selects"
		if !selected && lost != "" {
			return namespaceNoProvider, lost
		}
		if !selected {
			return namespaceNoProvider, "spec.clusterSelector selects no ForeignCluster, so new pods run here or wait: compare it with `kubectl get foreignclusters --show-labels`"
		}
	}
	if len(clusters) == 0 {
		return namespaceNoProvider, which + " provides resources to this one: see `kubectl get peeringrequests`"
	}
	for _, state := range []string{namespaceRefused, namespacePending} {
		i := slices.IndexFunc(clusters, func(c v1alpha1.NamespaceInCluster) bool { return c.State == state })
		if i >= 0 {
			return state, strings.TrimSuffix(clusters[i].ForeignCluster+": "+clusters[i].Message, ": ")
		}
	}
	return namespaceReady, lost
}

// selects says whether a selector selects any of these ForeignClusters, as far as their labels
// say, and which label that it names counts for nothing.
func selects(of *metav1.LabelSelector, all []v1alpha1.ForeignCluster) (selected bool, lost string) {
	byPeer := placement.ByPeer(of)
	for i := range all {
		fc := &all[i]
		node, without := placement.NodeLabels(fc.Labels, map[string]string{v1alpha1.LabelPeer: fc.Spec.ClusterID})
		selected = selected || placement.Selects(byPeer, node)
		for _, key := range placement.SelectedKeys(of) {
			if why := without[key]; why != "" && lost == "" {
				lost = fmt.Sprintf("label %s of ForeignCluster %s selects no node: %s", key, fc.Name, why)
			}
		}
	}
	return selected, lost
}
>>>>>>> e2b71f8 (internal/placement, vk, agent: label virtual nodes with latency and price, and select by what nodes have)

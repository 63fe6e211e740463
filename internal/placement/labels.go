package placement

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// homeKeys is labels that home itself puts on virtual nodes, under the key that a selector of ForeignClusters names.
// Labels of a ForeignCluster with these keys have no effect.
func homeKeys() []string {
	return []string{v1alpha1.LabelPeer, v1alpha1.LabelLatency, v1alpha1.LabelPrice, v1alpha1.LabelCurrency, v1alpha1.LabelPool, v1alpha1.LabelGPU}
}

// describedKeys is labels by which the provider describes its nodes in a contract, under the key that a selector of
// ForeignClusters names. A label of the ForeignCluster with such a key takes precedence: home decides what it believes.
func describedKeys() []string {
	return []string{
		corev1.LabelArchStable, corev1.LabelTopologyRegion, corev1.LabelTopologyZone,
		"nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product",
	}
}

// nodeKey returns the key under which a virtual node has what a selector of ForeignClusters names.
func nodeKey(key string) string {
	if slices.Contains(homeKeys(), key) || slices.Contains(describedKeys(), key) {
		return key
	}
	return peerKey(key)
}

// peerKey returns the key under which a virtual node has a label of its ForeignCluster. A key has at most one slash.
func peerKey(key string) string { return v1alpha1.PrefixPeerLabel + strings.ReplaceAll(key, "/", "_") }

// NodeLabels returns the labels of a virtual node that selectors of ForeignClusters match: those of its
// ForeignCluster, its own, and those of its contract that describe the provider's nodes. lost has labels that cannot
// be on a node, and why: a selector that names one selects no node.
func NodeLabels(peer, own, contract map[string]string) (node, lost map[string]string) {
	node, lost = map[string]string{}, map[string]string{}
	from := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(peer)) {
		to := peerKey(key)
		switch other, taken := from[to]; {
		case slices.Contains(homeKeys(), key):
		case len(validation.IsQualifiedName(to)) > 0:
			lost[key] = "it is too long for a label of nodes, with the prefix " + v1alpha1.PrefixPeerLabel
		case taken && peer[other] != peer[key]:
			why := "nodes have " + other + " and " + key + " under one key, " + to + ", and the values differ"
			lost[key], lost[other] = why, why
			delete(node, to)
		default:
			from[to], node[to] = key, peer[key]
		}
	}
	for _, key := range homeKeys() {
		if value, ok := own[key]; ok {
			node[key] = value
		}
	}
	for _, key := range describedKeys() {
		delete(lost, key)
		for _, described := range []map[string]string{peer, contract} {
			if value, ok := described[key]; ok && len(validation.IsValidLabelValue(value)) == 0 {
				node[key] = value
				break
			}
		}
	}
	return node, lost
}

// GPU returns the label of a virtual node by what GPUs its contract grants: the domains of their resources, as
// nvidia.com; none without GPUs.
func GPU(resources corev1.ResourceList) map[string]string {
	domains := map[string]bool{}
	for name, amount := range resources {
		domain, device, qualified := strings.Cut(string(name), "/")
		if qualified && amount.Sign() > 0 && (strings.Contains(device, "gpu") || strings.HasPrefix(domain, "gpu.") || domain == "nvidia.com" && strings.HasPrefix(device, "mig-")) &&
			len(validation.IsValidLabelValue(domain)) == 0 {
			domains[domain] = true
		}
	}
	if len(domains) == 0 {
		return nil
	}
	value := strings.Join(slices.Sorted(maps.Keys(domains)), "_")
	if len(value) > validation.LabelValueMaxLength {
		value = slices.Min(slices.Collect(maps.Keys(domains)))
	}
	return map[string]string{v1alpha1.LabelGPU: value}
}

// Selects reports whether a selector of ForeignClusters selects a virtual node with these labels, as the scheduler
// does.
func Selects(s *metav1.LabelSelector, node map[string]string) bool {
	for _, r := range Selector(s) {
		is, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values},
		}})
		if err != nil || !is.Matches(labels.Set(node)) {
			return false
		}
	}
	return true
}

// ByPeer returns the part of a selector about the peer: latency, price and what nodes it has are properties of one
// contract with it.
func ByPeer(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return nil
	}
	ofContract := func(key string) bool { return key != v1alpha1.LabelPeer && nodeKey(key) == key }
	out := s.DeepCopy()
	maps.DeleteFunc(out.MatchLabels, func(key, _ string) bool { return ofContract(key) })
	out.MatchExpressions = slices.DeleteFunc(out.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool { return ofContract(e.Key) })
	return out
}

// SelectedKeys returns the keys that a selector names.
func SelectedKeys(s *metav1.LabelSelector) []string {
	if s == nil {
		return nil
	}
	keys := slices.Collect(maps.Keys(s.MatchLabels))
	for _, e := range s.MatchExpressions {
		keys = append(keys, e.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// latencies is the classes of round trips, by their upper bounds in milliseconds.
func latencies() []int { return []int{2, 5, 10, 20, 50, 100, 200, 500, 10_000} }

// Latency returns the class of a round trip: the smallest that it fits into. It stays in its current class while it
// is at most a fifth beyond the bound, so that one at the border does not alternate.
func Latency(was string, roundTrip time.Duration) string {
	all := latencies()
	if i := slices.Index(all, milliseconds(was)); i >= 0 {
		below := time.Duration(0)
		if i > 0 {
			below = time.Duration(all[i-1]) * time.Millisecond
		}
		if roundTrip <= time.Duration(all[i])*time.Millisecond*6/5 && roundTrip >= below*4/5 {
			return was
		}
	}
	for _, most := range all {
		if roundTrip <= time.Duration(most)*time.Millisecond {
			return strconv.Itoa(most)
		}
	}
	return strconv.Itoa(all[len(all)-1])
}

// IsLatency reports whether a text is a class of round trips.
func IsLatency(s string) bool { return slices.Contains(latencies(), milliseconds(s)) }

func milliseconds(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || strconv.Itoa(n) != s {
		return -1
	}
	return n
}

// Price returns the labels of a virtual node with what a pod of one core and 4 GiB costs an hour by a price list:
// in thousandths of a currency, rounded up to a whole number, by which nodes can be compared. What is free has the
// price 0 and no currency.
func Price(list peering.PriceList) map[string]string {
	share, err := peering.ParseResources(map[string]string{
		string(corev1.ResourceCPU): "1", string(corev1.ResourceMemory): "4Gi", string(corev1.ResourcePods): "1",
	})
	if err != nil {
		return nil
	}
	cost, err := list.Hourly(share)
	if err != nil {
		return nil // beyond all numbers
	}
	if list.IsFree() {
		return map[string]string{v1alpha1.LabelPrice: "0"}
	}
	return map[string]string{v1alpha1.LabelPrice: strconv.FormatInt(cost.Amount.CeilMilli(), 10), v1alpha1.LabelCurrency: cost.Currency}
}

package offload

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

const (
	// recordName is the ConfigMap, in each namespace of ours, that records which contracts use the
	// namespace.
	recordName = "entente-namespace"
	// bindingName is the RoleBinding that gives the agent its rights there.
	bindingName = "entente-agent"
	// heldPrefix begins the annotations that record which contracts hold an object, and with which
	// hash. Contracts of one peer share its namespaces, so several may hold an object.
	heldPrefix = "held.entente.dev/"
	// noteContent is a hash of what the agent wrote into a ConfigMap or Secret.
	noteContent = "entente.dev/content"
	// noteDropped names endpoints that could not be translated.
	noteDropped = "entente.dev/dropped-endpoints"
	// noteGrace keeps the grace period with which an OffloadedPod is deleted, in
	// seconds.
	noteGrace = "entente.dev/grace-seconds"
	// noteResizing says that an OffloadedPod's pod is being resized: until that is done, it counts
	// the larger of its old and new resources.
	noteResizing = "entente.dev/resizing"
)

// RemoteNamespace returns the name of a consumer's namespace at its provider.
func RemoteNamespace(consumer peering.ClusterID, name string, want peering.NamespaceObject) (string, error) {
	mapping := api.NameMapping(want.Mapping)
	if want.Name != "" && mapping != api.MappingChosen {
		return "", fmt.Errorf("a name can be chosen with the mapping %s only, not with %q", api.MappingChosen, mapping)
	}
	switch mapping {
	case api.MappingSuffixed:
		remote := name + suffixOf(consumer)
		if len(remote) > validation.DNS1123LabelMaxLength {
			// Cut, with a hash of the whole so that two long names stay different.
			sum := sha256.Sum256([]byte(name))
			tail := "-" + endpoints.Short(sum[:]) + suffixOf(consumer)
			remote = strings.TrimRight(name[:validation.DNS1123LabelMaxLength-len(tail)], "-") + tail
		}
		return remote, nil
	case api.MappingSame, api.MappingChosen:
		if mapping == api.MappingChosen {
			name = want.Name
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return "", fmt.Errorf("invalid namespace name %q: %s", peering.Text(name, validation.DNS1123LabelMaxLength), strings.Join(problems, "; "))
		}
		if strings.HasPrefix(name, "kube-") {
			return "", fmt.Errorf("names that begin with kube- are this cluster's own; use the mapping %s", api.MappingSuffixed)
		}
		return name, nil
	}
	return "", fmt.Errorf("mapping %q is not %s, %s or %s", mapping, api.MappingSuffixed, api.MappingSame, api.MappingChosen)
}

// granted reports whether a policy allows a name for a consumer's namespaces.
func granted(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		beginning, open := strings.CutSuffix(n, "*")
		return n == name || open && beginning != "" && strings.HasPrefix(name, beginning)
	})
}

// suffixOf returns the suffix by which the mapping Suffixed separates a consumer's namespaces from those of
// others.
func suffixOf(consumer peering.ClusterID) string { return "-" + consumer.Short() }

// anothers returns the cluster, other than the consumer, whose suffix this name has.
func anothers(name string, consumer peering.ClusterID, clusters []peering.ClusterID) (peering.ClusterID, bool) {
	i := slices.IndexFunc(clusters, func(id peering.ClusterID) bool {
		return id != consumer && strings.HasSuffix(name, suffixOf(id))
	})
	if i < 0 {
		return "", false
	}
	return clusters[i], true
}

// heldKey is the annotation with which a contract holds an object.
func heldKey(contract string) string { return heldPrefix + contract }

// checkContract checks that a contract's ID can be a label and part of an annotation's key.
func checkContract(id string) error {
	if problems := validation.IsValidLabelValue(id); id == "" || len(problems) > 0 {
		return fmt.Errorf("contract ID %q cannot be a label: %s", id, strings.Join(problems, "; "))
	}
	return nil
}

// ours reports whether the agent created an object for the peer.
func ours(o metav1.Object, peer peering.ClusterID) bool {
	l := o.GetLabels()
	return l[api.LabelManaged] == api.Manager && l[api.LabelPeer] == string(peer)
}

func holders(o metav1.Object) (contracts []string) {
	for k := range o.GetAnnotations() {
		if id, ok := strings.CutPrefix(k, heldPrefix); ok {
			contracts = append(contracts, id)
		}
	}
	return contracts
}

// firstHolder returns the contract for which an object counts: the first, by ID, of those that hold
// it.
func firstHolder(o metav1.Object) string {
	all := holders(o)
	if len(all) == 0 {
		return ""
	}
	return slices.Min(all)
}

// heldBy returns the hash with which a contract holds an object. A hash that cannot be parsed is
// zero: the consumer then applies the object again.
func heldBy(o metav1.Object, contract string) (peering.Hash, bool) {
	s, ok := o.GetAnnotations()[heldKey(contract)]
	h, _ := peering.ParseHash(s)
	return h, ok
}

// noteBytes is the annotation with the number of bytes that an object counts, so that it can be
// counted without being read.
const noteBytes = "entente.dev/bytes"

// notedBytes reads noteBytes; without it an object counts 0 bytes.
func notedBytes(annotations map[string]string) int {
	n, err := strconv.Atoi(annotations[noteBytes])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// PodAt returns the consumer's pod here that has an address, unless two seem to have it.
func (p *Provider) PodAt(address netip.Addr) (api.OffloadedPodSpec, bool) {
	found := indexed[*api.OffloadedPod](p.inv.offloads, byAddress, address.Unmap().WithZone("").String())
	if len(found) != 1 {
		return api.OffloadedPodSpec{}, false
	}
	return found[0].Spec, true
}

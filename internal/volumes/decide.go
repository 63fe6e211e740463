package volumes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

// namePrefix begins the names of volumes, in both clusters.
const namePrefix = "entente-"

// Name is the name of a claim's volume: of the PersistentVolume at home and of the
// PersistentVolumeClaim at the provider. It has the claim's UID, so a later claim of the same name
// gets another volume.
func Name(claimUID string) string { return namePrefix + strings.ToLower(claimUID) }

// Share is what volumes need to know about a contract.
type Share struct {
	Peer     peering.ClusterID
	Contract string
	// Hold is the annotation by which the contract holds an object here.
	Hold string
	// Resources are the granted resources, storage of classes included.
	Resources corev1.ResourceList
	// AcceptNew means that it takes new volumes, and expands volumes.
	AcceptNew bool
}

func refuse(reason peering.RefusalReason, retryable bool, format string, args ...any) *peering.Refusal {
	return &peering.Refusal{Reason: reason, Retryable: retryable, Message: fmt.Sprintf(format, args...)}
}

// read decodes and checks a consumer's volume.
func read(o peering.Object) (peering.ClaimObject, *peering.Refusal) {
	invalid := func(format string, args ...any) (peering.ClaimObject, *peering.Refusal) {
		return peering.ClaimObject{}, refuse(peering.RefusedInvalid, false, "%s: "+format, append([]any{o.Ref}, args...)...)
	}
	if o.Ref.Name != Name(o.Ref.UID) {
		return invalid("its name is not %s", Name(o.Ref.UID))
	}
	if len(o.JSON) > maxClaimBytes {
		return invalid("%d bytes; the limit is %d", len(o.JSON), maxClaimBytes)
	}
	var c peering.ClaimObject
	if err := json.Unmarshal(o.JSON, &c); err != nil {
		return invalid("%v", err)
	}
	if c.Bytes <= 0 || c.Bytes > maxBytes {
		return invalid("its size is not from 1 to %d bytes", maxBytes)
	}
	if c.StorageClass == "" {
		return invalid("the claim has no storage class: set spec.storageClassName")
	}
	if err := peering.CheckClasses([]string{c.StorageClass}); err != nil {
		return invalid("storage %v", err)
	}
	if len(c.AccessModes) == 0 || len(c.AccessModes) > maxAccessModes {
		return invalid("a volume has 1 to %d access modes", maxAccessModes)
	}
	for _, mode := range c.AccessModes {
		switch corev1.PersistentVolumeAccessMode(mode) {
		case corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod:
		default:
			return invalid("unknown access mode %.32q", mode)
		}
	}
	c.Claim = peering.Text(c.Claim, peering.MaxLabelKeyLen)
	return c, nil
}

// size is the requested size of a claim.
func size(c *corev1.PersistentVolumeClaim) int64 {
	q := c.Spec.Resources.Requests[corev1.ResourceStorage]
	return q.Value()
}

func classOf(c *corev1.PersistentVolumeClaim) string {
	return ptr.Deref(c.Spec.StorageClassName, "")
}

// counts reports whether a claim counts against a contract, which it does while the contract holds it.
func counts(c *corev1.PersistentVolumeClaim, s Share) bool {
	_, held := c.Annotations[s.Hold]
	return held || c.Labels[api.LabelContract] == s.Contract && c.Labels[api.LabelRetained] == ""
}

// Usage returns the storage of each class that the claims of a contract use.
func Usage(claims []*corev1.PersistentVolumeClaim, contract, hold string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, c := range claims {
		if !counts(c, Share{Contract: contract, Hold: hold}) {
			continue
		}
		name := corev1.ResourceName(peering.StorageResource(classOf(c)))
		sum := out[name]
		sum.Add(*resource.NewQuantity(size(c), resource.BinarySI))
		out[name] = sum
	}
	return out
}

// room checks the number of the other volumes against a limit, before one more in a namespace here. A volume that exists
// need not leave room to other namespaces.
func room(others []*corev1.PersistentVolumeClaim, namespace string, exists bool, most int, limit string) *peering.Refusal {
	here := 1
	for _, c := range others {
		if c.Namespace == namespace {
			here++
		}
	}
	switch n := len(others); {
	case n >= most:
		return refuse(peering.RefusedQuota, true, limit, most)
	case !exists && !stock.LeavesRoom(n, n+1, here, most):
		return refuse(peering.RefusedQuota, true, limit+", and what is left of that is for other namespaces; have fewer in this one", most)
	}
	return nil
}

// fits checks a wanted volume, in a namespace here, against the contract; all are the consumer's volumes.
func fits(s Share, all []*corev1.PersistentVolumeClaim, namespace string, want peering.ClaimObject, have *corev1.PersistentVolumeClaim) *peering.Refusal {
	others := slices.DeleteFunc(slices.Clone(all), func(c *corev1.PersistentVolumeClaim) bool { return have != nil && c.UID == have.UID })
	mine := slices.DeleteFunc(slices.Clone(others), func(c *corev1.PersistentVolumeClaim) bool { return !counts(c, s) })
	if refusal := room(others, namespace, have != nil, maxPerPeer, "a consumer has at most %d volumes at the provider, kept ones included"); refusal != nil {
		return refusal
	}
	if refusal := room(mine, namespace, have != nil, maxPerContract, "a contract has at most %d volumes"); refusal != nil {
		return refusal
	}
	name := corev1.ResourceName(peering.StorageResource(want.StorageClass))
	most, granted := s.Resources[name]
	if !granted {
		return refuse(peering.RefusedQuota, false, "the contract grants no storage of class %s; ask for a contract with %s", want.StorageClass, name)
	}
	used := Usage(mine, s.Contract, s.Hold)[name]
	sum := used.DeepCopy()
	sum.Add(*resource.NewQuantity(want.Bytes, resource.BinarySI))
	if sum.Cmp(most) > 0 {
		asked := resource.NewQuantity(want.Bytes, resource.BinarySI)
		return refuse(peering.RefusedQuota, true,
			"the contract grants %s of storage class %s, of which other volumes have %s; this one asks for %s; delete some, or ask for a larger contract",
			most.String(), want.StorageClass, used.String(), asked.String())
	}
	return nil
}

// step is what to do about a volume that a consumer wants.
type step uint8

const (
	stepCreate step = iota
	// stepHold records that the contract holds it, with its current hash.
	stepHold
	// stepGrow requests a larger size, if the class can be expanded.
	stepGrow
)

// elsewhere returns a refusal if one of the consumer's volumes has a UID, and so is in another namespace
// than the one asked for.
func elsewhere(all []*corev1.PersistentVolumeClaim, uid string) *peering.Refusal {
	for _, c := range all {
		if c.Labels[api.LabelOriginUID] == uid {
			return refuse(peering.RefusedInvalid, true,
				"it is in namespace %s of the provider, for pods of your namespace %s, and stays there; bind its PersistentVolume to a claim of namespace %[2]s",
				c.Namespace, c.Annotations[api.LabelOriginNamespace])
		}
	}
	return nil
}

// decide decides about a wanted volume in a namespace here, that of the claim with a UID. have is the existing volume or nil, all
// are the consumer's volumes, and expands is whether the class can be expanded.
func decide(s Share, all []*corev1.PersistentVolumeClaim, namespace, uid string, want peering.ClaimObject, have *corev1.PersistentVolumeClaim, expands bool) (step, *peering.Refusal) {
	if have == nil {
		if refusal := elsewhere(all, uid); refusal != nil {
			return 0, refusal
		}
		if want.Exists {
			return 0, refuse(peering.RefusedInvalid, true,
				"it is not at the provider any more: it is gone, with its data, unless the provider's owner restores it; for a new, empty one delete the claim and its PersistentVolume")
		}
		if !s.AcceptNew {
			return 0, refuse(peering.RefusedContract, false, "contract %s is ending and takes no new volumes; ask for a new one", s.Contract)
		}
		return stepCreate, fits(s, all, namespace, want, nil)
	}
	if have.DeletionTimestamp != nil {
		return 0, refuse(peering.RefusedInternal, true, "the volume is being deleted at the provider")
	}
	if classOf(have) != want.StorageClass {
		return 0, refuse(peering.RefusedInvalid, false, "the volume is of storage class %s, which never changes", classOf(have))
	}
	grows := want.Bytes > size(have)
	if !grows {
		want.Bytes = size(have) // it never shrinks
	}
	if grows || !counts(have, s) {
		if refusal := fits(s, all, namespace, want, have); refusal != nil {
			return 0, refusal
		}
	}
	got := have.Status.Capacity[corev1.ResourceStorage]
	switch {
	case !grows && (have.Status.Phase != corev1.ClaimBound || got.Value() >= size(have)):
		return stepHold, nil
	case !grows:
		return 0, refuse(peering.RefusedInternal, true, "the volume is being expanded, and still has %s", got.String())
	case !expands:
		return 0, refuse(peering.RefusedInvalid, false, "volumes of storage class %s cannot be expanded", want.StorageClass)
	case !s.AcceptNew:
		return 0, refuse(peering.RefusedContract, false, "contract %s is ending and expands no volumes; ask for a new one", s.Contract)
	case have.Status.Phase != corev1.ClaimBound:
		return 0, refuse(peering.RefusedInternal, true, "the volume is not mounted yet, and is expanded once it is")
	}
	return stepGrow, nil
}

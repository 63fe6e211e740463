package volumes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

const (
	// annotationProvisioner names the provisioner of a claim, and annotationNode the node, once its
	// pod was placed. Kubernetes sets both.
	annotationProvisioner = "volume.kubernetes.io/storage-provisioner"
	annotationNode        = "volume.kubernetes.io/selected-node"
	annotationBy          = "pv.kubernetes.io/provisioned-by"
	// parameterClass is the storage class's parameter with the provider's class, and parameterHome
	// the one with the class for pods that run at home.
	parameterClass = "class"
	parameterHome  = "homeClass"
	// attributeClass is the volume's attribute with its class abroad.
	attributeClass = "class"
)

// Reasons of events of claims.
const (
	reasonFailed      = "ProvisioningFailed"
	reasonProvisioned = "ProvisioningSucceeded"
	reasonGrown       = "VolumeResizeSuccessful"
	reasonNotGrown    = "VolumeResizeFailed"
	reasonNotDeleted  = "VolumeFailedDelete"
	reasonUnavailable = "VolumeUnavailable"
)

const (
	// Pauses before a claim or volume is reconciled again: again while it waits for a contract or a response,
	// refused after a refusal that can be retried, and inStep if it waits for nothing.
	again   = 10 * time.Second
	refused = time.Minute
	inStep  = 5 * time.Minute
)

// Contract is a contract that runs.
type Contract struct {
	ID        string
	Resources corev1.ResourceList
}

// Providers are the providers of this cluster.
type Providers interface {
	// Contracts returns the contracts that run with a peer, by their IDs.
	Contracts(peer peering.ClusterID) []Contract
	// Want asks the provider of a contract for a volume, Unwant asks it to delete the volume.
	// Home.Ack gets the acknowledgements.
	Want(contract string, o peering.Object)
	Unwant(contract string, ref peering.ObjectRef)
}

// Home provisions the claims of this cluster. Fields are required.
type Home struct {
	Client    client.Client
	Reader    client.Reader
	Providers Providers
	Events    events.EventRecorder
	// Changed is called with contracts whose use by volumes may have changed.
	Changed func(contract string)
	// Namespace is the agent's own.
	Namespace string

	mu      sync.Mutex
	acks    map[request]ack
	claims  chan event.GenericEvent
	volumes chan event.GenericEvent
}

// SetupWithManager registers the reconcilers of claims and volumes of our storage classes.
func (h *Home) SetupWithManager(mgr ctrl.Manager) error {
	h.acks = map[request]ack{}
	h.claims, h.volumes = make(chan event.GenericEvent, 64), make(chan event.GenericEvent, 64)
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetAnnotations()[annotationProvisioner] == api.VolumeDriver })
	abroad := predicate.NewPredicateFuncs(func(o client.Object) bool { return peerOf(o.(*corev1.PersistentVolume)) != "" })
	err := ctrl.NewControllerManagedBy(mgr).Named("volumeclaims").
		For(&corev1.PersistentVolumeClaim{}, builder.WithPredicates(ours)).
		WatchesRawSource(source.Channel(h.claims, &handler.EnqueueRequestForObject{})).
		Complete(reconcile.Func(h.reconcileClaim))
	if err != nil {
		return fmt.Errorf("set up the controller of claims: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("volumes").
		For(&corev1.PersistentVolume{}, builder.WithPredicates(abroad)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			if name := o.(*corev1.PersistentVolumeClaim).Spec.VolumeName; name != "" {
				return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: name}}}
			}
			return nil
		}), builder.WithPredicates(ours)).
		WatchesRawSource(source.Channel(h.volumes, &handler.EnqueueRequestForObject{})).
		Complete(reconcile.Func(h.reconcileVolume))
	if err != nil {
		return fmt.Errorf("set up the controller of volumes: %w", err)
	}
	return nil
}

// peerOf returns the peer that has a volume, or "" for a volume of another driver.
func peerOf(pv *corev1.PersistentVolume) peering.ClusterID {
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != api.VolumeDriver {
		return ""
	}
	return peering.ClusterID(pv.Spec.CSI.VolumeAttributes[api.VolumePeer])
}

// object is a volume in the form in which it is sent: of the claim with a UID.
func object(namespace, uid string, c peering.ClaimObject, modes []corev1.PersistentVolumeAccessMode) (peering.Object, error) {
	for _, m := range modes {
		c.AccessModes = append(c.AccessModes, string(m))
	}
	data, err := json.Marshal(c)
	if err != nil {
		return peering.Object{}, fmt.Errorf("write volume %s as JSON: %w", Name(uid), err)
	}
	return peering.Object{Ref: peering.ObjectRef{Kind: peering.KindClaim, Namespace: namespace, Name: Name(uid), UID: uid}, JSON: data}, nil
}

// portable returns why a claim cannot be provisioned abroad, or "".
func portable(claim *corev1.PersistentVolumeClaim) string {
	s := &claim.Spec
	switch {
	case s.VolumeMode != nil && *s.VolumeMode != corev1.PersistentVolumeFilesystem:
		return "block devices do not cross to another cluster; use volumeMode Filesystem"
	case s.VolumeAttributesClassName != nil && *s.VolumeAttributesClassName != "":
		return "the VolumeAttributesClasses of this cluster are not known in another one"
	case size(claim) <= 0:
		return "the claim asks for no storage"
	}
	return transferable(claim)
}

// transferable returns why a claim cannot get a volume that is made for another claim, or "": that at the provider,
// or the stand-in at home. What these fields name is in the claim's own namespace, or selects volumes for it alone.
func transferable(claim *corev1.PersistentVolumeClaim) string {
	switch s := &claim.Spec; {
	case s.DataSource != nil || s.DataSourceRef != nil:
		return "a volume of this storage class begins empty; remove dataSource, or use a storage class of this cluster's own"
	case s.Selector != nil:
		return "a volume that is created for a claim has no labels to select; remove selector"
	}
	return ""
}

// remoteClass chooses the provider's storage class for a claim: the one that its own class
// names, or the only one that the contract grants.
func remoteClass(class *storagev1.StorageClass, granted corev1.ResourceList) (name, problem string) {
	var classes []string
	for resource := range granted {
		if c := peering.StorageClass(string(resource)); c != "" {
			classes = append(classes, c)
		}
	}
	slices.Sort(classes)
	named := class.Parameters[parameterClass]
	switch {
	case len(classes) == 0:
		return "", fmt.Sprintf("the contract with this provider grants no storage; ask for some, as %s", peering.StorageResource("CLASS"))
	case named != "" && !slices.Contains(classes, named):
		return "", fmt.Sprintf("the contract grants storage of %s, and none of class %s, which storage class %s names", strings.Join(classes, ", "), named, class.Name)
	case named != "":
		return named, ""
	case len(classes) > 1:
		return "", fmt.Sprintf("the contract grants storage of %s; use a storage class that names one of them by its parameter %q", strings.Join(classes, ", "), parameterClass)
	}
	return classes[0], ""
}

// reclaim is a volume's reclaim policy: that of the class, or Delete if the claim was created for
// one pod.
func reclaim(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) corev1.PersistentVolumeReclaimPolicy {
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		return corev1.PersistentVolumeReclaimDelete
	}
	return ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
}

// newVolume is the PersistentVolume at home for a volume at a peer. Only pods on the virtual nodes
// of that peer can use it.
func newVolume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, peer peering.ClusterID, remote string) *corev1.PersistentVolume {
	filesystem := corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(string(claim.UID)), Annotations: map[string]string{annotationBy: api.VolumeDriver},
			Labels: map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: string(peer)},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size(claim), resource.BinarySI)},
			AccessModes: slices.Clone(claim.Spec.AccessModes),
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: api.VolumeDriver, VolumeHandle: Name(string(claim.UID)),
				VolumeAttributes: map[string]string{api.VolumePeer: string(peer), attributeClass: remote},
			}},
			PersistentVolumeReclaimPolicy: reclaim(claim, class),
			StorageClassName:              class.Name,
			VolumeMode:                    &filesystem,
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: api.LabelPeer, Operator: corev1.NodeSelectorOpIn, Values: []string{string(peer)}}},
			}}}},
		},
	}
}

func (h *Home) reconcileClaim(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := h.Client.Get(ctx, req.NamespacedName, claim); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read claim %s: %w", req, err)
	} else if err != nil {
		if err := h.dropLocal(ctx, req.NamespacedName, ""); err != nil {
			return reconcile.Result{}, err
		}
		return h.drop(ctx, req.NamespacedName, request{})
	}
	if claim.Annotations[annotationProvisioner] != api.VolumeDriver || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return h.drop(ctx, req.NamespacedName, request{}) // once it is bound, its volume is reconciled
	}
	class := &storagev1.StorageClass{}
	if err := h.Client.Get(ctx, client.ObjectKey{Name: classOf(claim)}, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	name := claim.Annotations[annotationNode]
	if name == "" {
		if class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
			h.warn(claim, reasonFailed, fmt.Sprintf("storage class %s has to have volumeBindingMode WaitForFirstConsumer: the volume follows the pod", class.Name))
		}
		return h.drop(ctx, req.NamespacedName, request{})
	}
	node := &corev1.Node{}
	if err := h.Client.Get(ctx, client.ObjectKey{Name: name}, node); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read node %s: %w", name, err)
	} else if err != nil {
		return reconcile.Result{}, h.reschedule(ctx, claim, "node "+name+" is gone")
	}
	if home := class.Parameters[parameterHome]; node.Labels[api.LabelVirtualNode] == "" && home != "" {
		if problem := transferable(claim); problem != "" {
			return reconcile.Result{}, h.reschedule(ctx, claim, problem)
		}
		if _, err := h.drop(ctx, req.NamespacedName, request{}); err != nil {
			return reconcile.Result{}, err
		}
		return h.provisionLocally(ctx, claim, class, name, home)
	}
	if node.Labels[api.LabelVirtualNode] == "" {
		return reconcile.Result{}, h.reschedule(ctx, claim, fmt.Sprintf(
			"the pod was put on node %s of this cluster, and storage class %s names no class for that: annotate the template of the pods with %s: %s for a pod and volume in another cluster, "+
				"or set storage.homeClass of the chart (%s of the class) for both here",
			name, class.Name, api.AnnotationPodStrategy, api.StrategyRemote, parameterHome))
	}
	return h.provision(ctx, claim, class, node)
}

// provision asks the provider behind a virtual node for a volume, and then creates the
// PersistentVolume for it at home.
func (h *Home) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node) (reconcile.Result, error) {
	if problem := portable(claim); problem != "" {
		return reconcile.Result{}, h.reschedule(ctx, claim, problem)
	}
	peer := peering.ClusterID(node.Labels[api.LabelPeer])
	contract, ok := chosen(h.Providers.Contracts(peer), node.Labels[api.LabelContract])
	if !ok {
		return reconcile.Result{RequeueAfter: again}, nil
	}
	remote, problem := remoteClass(class, contract.Resources)
	if problem != "" {
		return reconcile.Result{}, h.reschedule(ctx, claim, problem)
	}
	key, name := request{string(claim.UID), contract.ID}, client.ObjectKeyFromObject(claim)
	if pv, err := h.volumeOf(ctx, key.uid); err != nil || pv != nil {
		return reconcile.Result{}, err // Kubernetes binds them
	}
	// The claim may have been asked for elsewhere before. The same provider would delete what it is asked for now.
	if _, err := h.drop(ctx, name, key); err != nil || h.dropping(key, name, peer) {
		return reconcile.Result{RequeueAfter: again}, err
	}
	o, err := object(claim.Namespace, key.uid, peering.ClaimObject{Claim: claim.Name, StorageClass: remote, Bytes: size(claim)}, claim.Spec.AccessModes)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch a := h.ask(contract.ID, o.Ref, &o, ack{claim: name, peer: peer}); {
	case a.refusal != nil && a.refusal.Retryable:
		if why := a.shown.Why(); why != nil {
			h.warn(claim, reasonFailed, "the provider cannot create the volume now: "+why.Message)
		}
		return reconcile.Result{RequeueAfter: refused}, nil // the mirror retries by itself, unless nothing was sent
	case a.refusal != nil:
		// The volume does not exist, or was never used.
		if _, err := h.drop(ctx, name, request{}); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, h.reschedule(ctx, claim, "the provider refuses the volume: "+a.refusal.Message)
	case !a.done:
		return reconcile.Result{RequeueAfter: again}, nil
	}
	h.give(key)
	return reconcile.Result{}, h.makeVolume(ctx, claim, class, peer, remote)
}

// makeVolume creates the PersistentVolume of a volume that a provider has.
func (h *Home) makeVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, peer peering.ClusterID, remote string) error {
	pv := newVolume(claim, class, peer, remote)
	err := h.Client.Create(ctx, pv, client.FieldOwner(api.Manager))
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create volume %s: %w", pv.Name, err)
	}
	h.Events.Eventf(claim, nil, corev1.EventTypeNormal, reasonProvisioned, "Provision", "volume %s is at cluster %s, of its storage class %s", pv.Name, peer, remote)
	return nil
}

// chosen returns the running contract with an ID.
func chosen(all []Contract, id string) (Contract, bool) {
	i := slices.IndexFunc(all, func(c Contract) bool { return c.ID == id })
	if i < 0 {
		return Contract{}, false
	}
	return all[i], true
}

// reschedule records why a claim is not provisioned where its pod was placed, and returns it to the
// scheduler, which may choose another node.
func (h *Home) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim, problem string) error {
	h.warn(claim, reasonFailed, problem)
	before := claim.DeepCopy()
	claim.Annotations = maps.Clone(claim.Annotations)
	delete(claim.Annotations, annotationNode)
	if err := h.Client.Patch(ctx, claim, client.MergeFrom(before), client.FieldOwner(api.Manager)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("return claim %s/%s to the scheduler: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

func (h *Home) warn(o client.Object, reason, message string) {
	h.Events.Eventf(o, nil, corev1.EventTypeWarning, reason, "Provision", "%s", peering.Text(message, 1000))
}

package offload

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podsecurity"
	"github.com/entente-dev/entente/internal/recent"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

// Labels of a namespace by which the API server enforces Pod Security.
const (
	labelEnforce        = "pod-security.kubernetes.io/enforce"
	labelEnforceVersion = "pod-security.kubernetes.io/enforce-version"
)

// peerNamespaces lists the namespaces here of a peer.
func (p *Provider) peerNamespaces(ctx context.Context, peer peering.ClusterID) (out []*corev1.Namespace, err error) {
	var list corev1.NamespaceList
	if err := p.client.List(ctx, &list, client.MatchingLabels{
		api.LabelManaged: api.Manager, api.LabelPeer: string(peer),
	}); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// findNamespace returns the namespace here of the peer's namespace with this name, and its record;
// both may be nil. With a uid, the peer's namespace must have it. A namespace that is being deleted
// counts as well.
func (p *Provider) findNamespace(ctx context.Context, peer peering.ClusterID, name, uid string) (*corev1.Namespace, *corev1.ConfigMap, error) {
	ns := matchNamespace(p.inv.namespaces(), peer, name, uid)
	if ns == nil {
		list, err := p.peerNamespaces(ctx, peer)
		if err != nil {
			return nil, nil, err
		}
		if ns = matchNamespace(list, peer, name, uid); ns == nil {
			return nil, nil, nil
		}
	}
	record, err := p.readRecord(ctx, ns.Name)
	// In a namespace that was just deleted, or just created, the agent has no rights.
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, nil, err
	}
	return ns, record, nil
}

// readRecord returns the record of a namespace, or nil.
func (p *Provider) readRecord(ctx context.Context, namespace string) (*corev1.ConfigMap, error) {
	record := &corev1.ConfigMap{}
	err := p.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: recordName}, record)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nil means no record
	}
	if err != nil {
		return nil, fmt.Errorf("read record of namespace %s: %w", namespace, err)
	}
	return record, nil
}

func matchNamespace(list []*corev1.Namespace, peer peering.ClusterID, name, uid string) *corev1.Namespace {
	for _, ns := range list {
		if ours(ns, peer) && ns.Labels[api.LabelOriginNamespace] == name && (uid == "" || ns.Labels[api.LabelOriginUID] == uid) {
			return ns
		}
	}
	return nil
}

func namespaceLock(peer peering.ClusterID, name string) string {
	return "namespace/" + string(peer) + "/" + name
}

// applyNamespace creates the namespace, gives the agent its rights in it, and records that the
// contract uses it.
func (p *Provider) applyNamespace(ctx context.Context, contract string, c Contract, o peering.Object) error {
	var want peering.NamespaceObject
	if err := json.Unmarshal(o.JSON, &want); err != nil {
		return refuse(peering.RefusedInvalid, false, "read %s: %v", o.Ref, err)
	}
	remote, err := RemoteNamespace(c.Peer, o.Ref.Name, want)
	if err != nil {
		return refuse(peering.RefusedNamespace, false, "%s: %v", o.Ref, err)
	}
	if err := checkClusterDomain(want.ClusterDomain); err != nil {
		return refuse(peering.RefusedInvalid, false, "%s: %v", o.Ref, err)
	}
	if err := p.checkFence(c, o.Ref, want.FenceSeconds); err != nil {
		return err
	}
	// A name must be allowed: other pods here would resolve the Services in it.
	if api.NameMapping(want.Mapping) != api.MappingSuffixed && !granted(c.NamespaceNames, remote) {
		// The policy may change, so the consumer retries.
		return refuse(peering.RefusedNamespace, true,
			"%s may not be called %s at the provider; use the mapping %s, or ask the provider to list the name in namespaceNames of its PeeringPolicy", o.Ref, remote, api.MappingSuffixed)
	}
	release, err := p.locks.Lock(ctx, namespaceLock(c.Peer, o.Ref.Name))
	if err != nil {
		return err
	}
	defer release()
	list, err := p.peerNamespaces(ctx, c.Peer)
	if err != nil {
		return err
	}
	ns := matchNamespace(list, c.Peer, o.Ref.Name, "")
	if ns == nil {
		if ns, err = p.makeNamespace(ctx, c, o.Ref, want, remote); err != nil {
			return err
		}
	}
	if refusal := refuseNamespace(ns, o.Ref, remote); refusal != nil {
		return refusal
	}
	if err := p.takeUp(ctx, ns, o.Ref.UID); err != nil {
		return err
	}
	if err := p.noteClusterDomain(ctx, ns, want.ClusterDomain); err != nil {
		return err
	}
	if err := p.noteFence(ctx, ns, contract, want.FenceSeconds); err != nil {
		return err
	}
	if err := p.grant(ctx, ns); err != nil {
		return err
	}
	have, err := p.record(ctx, contract, ns, o)
	if err != nil {
		return err
	}
	return p.enforce(ctx, ns, have)
}

// refuseNamespace returns why a namespace here cannot be used for the one that a consumer offloads,
// or nil.
func refuseNamespace(ns *corev1.Namespace, ref peering.ObjectRef, remote string) error {
	switch {
	case ns.DeletionTimestamp != nil:
		return refuse(peering.RefusedNamespace, true, "namespace %s is being deleted at the provider; %s follows", ns.Name, ref)
	case ns.Labels[api.LabelOriginUID] != ref.UID && ns.Labels[api.LabelRetained] == "":
		return refuse(peering.RefusedNamespace, true, "the remainder of an older namespace %s, UID %s, is still here; %s follows",
			ref.Name, ns.Labels[api.LabelOriginUID], ref)
	case ns.Name != remote:
		return refuse(peering.RefusedNamespace, false, "%s is here as %s; its mapping never changes, so stop offloading it first", ref, ns.Name)
	}
	return nil
}

// enforce sets the Pod Security level of a namespace to the loosest of the contracts that use it.
// Each pod is checked against its own contract's level before it gets there.
func (p *Provider) enforce(ctx context.Context, ns *corev1.Namespace, record *corev1.ConfigMap) error {
	level := podsecurity.Restricted
	for _, id := range holders(record) {
		if k, ok := p.cfg.Contracts(id); ok {
			level = podsecurity.Looser(level, podsecurity.Level(k.PodSecurity))
		}
	}
	if ns.Labels[labelEnforce] == string(level) {
		return nil
	}
	now := &corev1.Namespace{}
	if err := p.client.Get(ctx, client.ObjectKeyFromObject(ns), now); err != nil {
		return fmt.Errorf("read namespace %s: %w", ns.Name, err)
	}
	if now.UID != ns.UID || now.Labels[labelEnforce] == string(level) {
		return nil
	}
	before := now.DeepCopy()
	now.Labels[labelEnforce] = string(level)
	if err := p.patch(ctx, now, before); err != nil {
		return fmt.Errorf("enforce Pod Security level %s in namespace %s: %w", level, ns.Name, err)
	}
	return nil
}

func (p *Provider) makeNamespace(ctx context.Context, c Contract, ref peering.ObjectRef, want peering.NamespaceObject, remote string) (*corev1.Namespace, error) {
	// This is checked for new namespaces only: one that is here stays when a cluster with such a suffix comes
	// later.
	if refusal := p.refuseAnothers(c, ref, want, remote); refusal != nil {
		return nil, refusal
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: remote}}
	setOrigin(ns, c.Peer, ref.UID)
	ns.Labels[api.LabelOriginNamespace] = ref.Name
	ns.Labels[labelEnforce] = string(c.PodSecurity)
	ns.Labels[labelEnforceVersion] = "latest"
	if want.ClusterDomain != "" {
		setAnnotation(ns, api.AnnotationClusterDomain, want.ClusterDomain)
	}
	undo, refusal := p.stock.Admit(stock.Key{Kind: peering.KindNamespace, Name: remote}, stock.Item{Peer: c.Peer})
	if refusal != nil {
		return nil, refusal
	}
	err := p.client.Create(ctx, ns, client.FieldOwner(api.Manager))
	if err != nil {
		undo()
	}
	if apierrors.IsAlreadyExists(err) {
		return nil, p.refuseTaken(ctx, c, remote)
	}
	if err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", remote, err)
	}
	return ns, nil
}

// refuseAnothers refuses a chosen name with the suffix of another cluster, to which the mapping Suffixed
// may give it.
func (p *Provider) refuseAnothers(c Contract, ref peering.ObjectRef, want peering.NamespaceObject, remote string) error {
	if api.NameMapping(want.Mapping) == api.MappingSuffixed {
		return nil
	}
	other, ok := anothers(remote, c.Peer, p.cfg.Trusted())
	if !ok {
		return nil
	}
	return refuse(peering.RefusedNamespace, true, "%s may not be called %s at the provider: names that end in %s belong to another cluster; use the mapping %s, or another name",
		ref, remote, suffixOf(other), api.MappingSuffixed)
}

// refuseTaken returns the refusal of a name that another namespace has.
func (p *Provider) refuseTaken(ctx context.Context, c Contract, name string) error {
	const or = "use the mapping " + string(api.MappingSuffixed) + ", or another name"
	ns := &corev1.Namespace{}
	if err := p.client.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		return fmt.Errorf("read namespace %s: %w", name, err)
	}
	if ours(ns, c.Peer) {
		return refuse(peering.RefusedNamespace, true, "the consumer's namespace %s is called %s here; %s", ns.Labels[api.LabelOriginNamespace], name, or)
	}
	// It does not reveal whether that is the provider's or another consumer's.
	return refuse(peering.RefusedNamespace, true, "the provider has a namespace %s that is not the consumer's, and it is not touched; %s", name, or)
}

// grant gives the agent its rights in a namespace that it created, and waits until it has them.
func (p *Provider) grant(ctx context.Context, ns *corev1.Namespace) error {
	if err := p.bind(ctx, ns); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, grantTimeout, fmt.Errorf(
		"the agent got no rights in namespace %s within %s", ns.Name, grantTimeout))
	defer cancel()
	return p.awaitGrant(ctx, ns.Name)
}

// bind creates the RoleBinding that gives the agent its rights in a namespace.
func (p *Provider) bind(ctx context.Context, ns *corev1.Namespace) error {
	have := &rbacv1.RoleBinding{}
	err := p.client.Get(ctx, types.NamespacedName{Namespace: ns.Name, Name: bindingName}, have)
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read role binding in %s: %w", ns.Name, err)
	}
	b := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: bindingName, Labels: map[string]string{
			api.LabelManaged: api.Manager, api.LabelPeer: ns.Labels[api.LabelPeer],
		}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: p.cfg.ClusterRole},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.cfg.Namespace, Name: p.cfg.ServiceAccount}},
	}
	if err := p.client.Create(ctx, b, client.FieldOwner(api.Manager)); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create role binding in %s: %w", ns.Name, err)
	}
	return nil
}

// awaitGrant waits until the agent may work in a namespace: a new role binding
// takes a moment to reach every API server.
func (p *Provider) awaitGrant(ctx context.Context, namespace string) error {
	pauses := wait.Backoff{Duration: grantPoll, Factor: 2, Steps: 10, Cap: 2 * time.Second}
	return pauses.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := p.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: recordName}, &corev1.ConfigMap{})
		if err == nil || apierrors.IsNotFound(err) {
			return true, nil
		}
		if ctx.Err() == nil && !apierrors.IsForbidden(err) {
			p.cfg.Log.Debug("look into namespace", "namespace", namespace, "err", err)
		}
		return false, nil
	})
}

// record records that the contract uses the namespace, and returns the record.
func (p *Provider) record(ctx context.Context, contract string, ns *corev1.Namespace, o peering.Object) (*corev1.ConfigMap, error) {
	have, err := p.readRecord(ctx, ns.Name)
	if err != nil {
		return nil, err
	}
	missing := have == nil
	if missing {
		have = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: recordName}}
	}
	if hash, ok := heldBy(have, contract); ok && hash == o.Hash() {
		return have, nil
	}
	setOrigin(have, peering.ClusterID(ns.Labels[api.LabelPeer]), o.Ref.UID)
	setAnnotation(have, heldKey(contract), o.Hash().String())
	if missing {
		err = p.client.Create(ctx, have, client.FieldOwner(api.Manager))
	} else {
		err = p.client.Update(ctx, have, client.FieldOwner(api.Manager))
	}
	if err != nil {
		return nil, fmt.Errorf("write record of namespace %s: %w", ns.Name, err)
	}
	return have, nil
}

// deleteNamespace removes the contract from a namespace, and deletes the namespace when no other
// contract uses it.
func (p *Provider) deleteNamespace(ctx context.Context, contract string, c Contract, ref peering.ObjectRef) error {
	ns, _, err := p.findNamespace(ctx, c.Peer, ref.Name, ref.UID)
	if err != nil || ns == nil {
		return err
	}
	var pods api.OffloadedPodList
	if err := p.client.List(ctx, &pods, client.InNamespace(ns.Name), client.MatchingLabels{api.LabelContract: contract}); err != nil {
		return fmt.Errorf("list offloaded pods: %w", err)
	}
	if n := len(pods.Items); n > 0 {
		return refuse(peering.RefusedNamespace, true, "%d pods of %s are still here and have to go first", n, ref)
	}
	return p.vacate(ctx, contract, ns)
}

// vacate removes everything but pods that a contract holds in a namespace, and the namespace itself
// when no other contract holds it.
func (p *Provider) vacate(ctx context.Context, contract string, ns *corev1.Namespace) error {
	peer := peering.ClusterID(ns.Labels[api.LabelPeer])
	release, err := p.locks.Lock(ctx, namespaceLock(peer, ns.Labels[api.LabelOriginNamespace]))
	if err != nil {
		return err
	}
	defer release()
	p.holds.Forget(func(h recent.Binding) bool { return h.Namespace == ns.Name })
	// From the API server, not the cache: a younger namespace of the same name is another one.
	uid := ns.UID
	now := &corev1.Namespace{}
	if err := p.client.Get(ctx, client.ObjectKeyFromObject(ns), now); err != nil {
		return client.IgnoreNotFound(err)
	}
	if now.UID != uid || now.DeletionTimestamp != nil || !ours(now, peer) {
		return nil
	}
	// The process that created the namespace may have died before it got its rights there.
	if err := p.grant(ctx, now); err != nil {
		return err
	}
	record, err := p.readRecord(ctx, ns.Name)
	if err != nil {
		return err
	}
	others := record != nil && slices.ContainsFunc(holders(record), func(id string) bool { return id != contract })
	if !others {
		// Pods of any contract keep a namespace, whatever its record says.
		var pods api.OffloadedPodList
		if err := p.client.List(ctx, &pods, client.InNamespace(ns.Name), client.Limit(1)); err != nil {
			return fmt.Errorf("list offloaded pods: %w", err)
		}
		if len(pods.Items) > 0 {
			return refuse(peering.RefusedNamespace, true, "pods are still in namespace %s and have to go first", ns.Name)
		}
	}
	if kept, err := p.keepVolumes(ctx, contract, now, !others); err != nil {
		return err
	} else if others || kept {
		return p.leave(ctx, contract, now, record)
	}
	if err := p.client.Delete(ctx, now, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete namespace %s: %w", ns.Name, err)
	}
	return nil
}

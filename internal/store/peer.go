package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// Condition returns a condition without a transition time.
func Condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// TunnelPasses reports whether traffic with a peer passes, by its condition Network: also if pods on some nodes of
// one of the two clusters are cut off. Nil means that the condition is not known.
func TunnelPasses(network *metav1.Condition) bool {
	return network != nil && (network.Status == metav1.ConditionTrue || network.Reason == v1alpha1.ReasonNodesCutOff || network.Reason == v1alpha1.ReasonPodsUnreachable)
}

// RevokedByPeer is the reason of a Trusted condition that is False because the peer reported, over a connection
// that proved its identity, that it no longer trusts this cluster. It stays until trust is made again.
const RevokedByPeer = "RevokedByPeer"

// ReasonJoined is the reason of a Trusted condition that became True by a token.
const ReasonJoined = "Joined"

// ReasonEndedByProvider is why a PeeringRequest that names its provider is not Accepted.
const ReasonEndedByProvider = "EndedByProvider"

// Known returns which of several ForeignClusters represents a cluster, or nil: of those with its ID the trusted
// one, otherwise the one that an administrator wrote, otherwise the oldest.
func Known(items []v1alpha1.ForeignCluster, id peering.ClusterID) *v1alpha1.ForeignCluster {
	var found *v1alpha1.ForeignCluster
	for i := range items {
		fc := &items[i]
		if id == "" || fc.Spec.ClusterID != string(id) {
			continue
		}
		if found == nil || precedes(fc, found) {
			found = fc
		}
	}
	return found
}

// KnownAll returns what Known chooses, for each cluster.
func KnownAll(items []v1alpha1.ForeignCluster) map[peering.ClusterID]*v1alpha1.ForeignCluster {
	out := make(map[peering.ClusterID]*v1alpha1.ForeignCluster, len(items))
	for i := range items {
		fc, id := &items[i], peering.ClusterID(items[i].Spec.ClusterID)
		if id != "" && (out[id] == nil || precedes(fc, out[id])) {
			out[id] = fc
		}
	}
	return out
}

// Find asks the API server for the ForeignCluster that represents a cluster; nil if none does. It selects by a
// label, so that its cost does not grow with their number. Only one that was just written by hand may not have the
// label yet.
func Find(ctx context.Context, c client.Reader, id peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
	var list v1alpha1.ForeignClusterList
	if err := c.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelPeer: string(id)}); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	return Known(list.Items, id), nil
}

func precedes(a, b *v1alpha1.ForeignCluster) bool {
	if at, bt := a.Spec.TrustBundle != "", b.Spec.TrustBundle != ""; at != bt {
		return at
	}
	if ap, bp := Pending(a), Pending(b); ap != bp {
		return bp
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// Pending reports whether a ForeignCluster exists only because its cluster introduced itself, or this one did, or
// because discovery found it, and is not decided yet.
func Pending(fc *v1alpha1.ForeignCluster) bool {
	return fc.Labels[v1alpha1.LabelManaged] == v1alpha1.Manager &&
		fc.Status.Source != v1alpha1.SourceToken && fc.Status.Source != v1alpha1.SourceManual &&
		fc.Spec.TrustBundle == "" && fc.Spec.Decision == "" && fc.Spec.JoinToken == nil
}

// Revoked reports whether the peer reported that it no longer trusts this cluster.
func Revoked(fc *v1alpha1.ForeignCluster) bool {
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == RevokedByPeer
}

// AddPeer records that a cluster is trusted by a token, and returns the name of its ForeignCluster. A token is
// consent: it ends a denial, and what the peer revoked. A known cluster keeps its name. wanted overrides the name
// that the cluster gives itself; if another cluster has the name here, a wanted one is refused, and otherwise
// extended.
//
// With a cache of ForeignClusters, the API server is asked only for the one of this cluster, as many may join at
// once, and the status of a new one is left to its reconciler. With a nil cache it is asked for all.
func AddPeer(ctx context.Context, c client.Client, cache client.Reader, id peering.ClusterID, info identity.ClusterInfo, wanted string) (string, error) {
	return addPeer(ctx, c, cache, id, info, wanted, false)
}

// AddPeerAgain is AddPeer for a token that the same cluster used before. It completes what a lost response left
// undone, and does not end a denial.
func AddPeerAgain(ctx context.Context, c client.Client, id peering.ClusterID, info identity.ClusterInfo) (string, error) {
	return addPeer(ctx, c, nil, id, info, "", true)
}

func addPeer(ctx context.Context, c client.Client, cache client.Reader, id peering.ClusterID, info identity.ClusterInfo, wanted string, again bool) (string, error) {
	fc, hint, made, err := place(ctx, c, cache, id, info, wanted, func(fc *v1alpha1.ForeignCluster) error {
		if fc.Spec.Decision == v1alpha1.DecisionDenied {
			if again {
				return peering.Errorf(peering.ReasonTokenInvalid, "the token was used before an administrator of this cluster denied yours: ask for a new one")
			}
			fc.Spec.Decision = ""
		}
		fc.TakeFromPolicy()
		fc.Spec.TrustBundle = info.PEM()
		if fc.Spec.InBand == nil {
			fc.Spec.Endpoints = info.Endpoints
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if made && cache != nil && len(hint) == 0 {
		return fc.Name, nil // a new object without a status counts as joined
	}
	return fc.Name, editStatus(ctx, c, fc, func(status *v1alpha1.ForeignClusterStatus) {
		joined(fc, status)
		inherit(status, hint)
	})
}

// RecordJoined records that a token made trust, which ends whatever was wrong with it before.
func RecordJoined(ctx context.Context, c client.Client, fc *v1alpha1.ForeignCluster) error {
	return editStatus(ctx, c, fc, func(status *v1alpha1.ForeignClusterStatus) { joined(fc, status) })
}

func joined(fc *v1alpha1.ForeignCluster, status *v1alpha1.ForeignClusterStatus) {
	if status.Source != v1alpha1.SourceManual || fc.Spec.JoinToken != nil {
		status.Source = v1alpha1.SourceToken
	}
	status.Introduction = nil
	// Refusals from before this moment do not count.
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionTrue, Reason: ReasonJoined, Message: "the two clusters joined",
	})
}

// inherit copies to a ForeignCluster the sightings of its cluster from when it was a hint: new sightings come
// minutes apart.
func inherit(status *v1alpha1.ForeignClusterStatus, hint []v1alpha1.Sighting) {
	if len(status.Sightings) == 0 {
		status.Sightings = hint
	}
}

// Introduction is the record of an introduction.
type Introduction struct {
	ID   peering.ClusterID
	Info identity.ClusterInfo
	// Code is the short authentication string; empty if no commitment was opened.
	Code string
	// Time is when it took place.
	Time time.Time
	// Endpoint is where this cluster dialled; empty if the other one did.
	Endpoint string
	// Name is what to call it here; empty means its own name.
	Name string
	// Approve decides to trust it, in the name of the administrator who asked.
	Approve bool
	// MayCreate, if set, is called before a ForeignCluster is created for it, and its error is returned: a cluster
	// that was known may have been forgotten during a call.
	MayCreate func() error
	// Policy is the PeeringPolicy that decides to trust it, if no decision was made before, and By is why; see
	// v1alpha1.AnnotationAutomaticBy.
	Policy, By string
}

// Introduce stores the introduction of a cluster that is not trusted, for an administrator to decide, and returns
// the name of its ForeignCluster. If the decision was made before, the cluster is trusted now, as it proved its ID.
// Errors have the reasons TRUST_DENIED, PEER_NAME_TAKEN and CONFLICT.
func Introduce(ctx context.Context, c client.Client, i Introduction) (string, error) {
	fc, hint, _, err := place(ctx, c, nil, i.ID, i.Info, i.Name, func(fc *v1alpha1.ForeignCluster) error {
		if fc.ResourceVersion == "" && i.MayCreate != nil {
			if err := i.MayCreate(); err != nil {
				return err
			}
		}
		switch {
		case i.Approve:
			fc.Spec.Decision = v1alpha1.DecisionApproved
			fc.TakeFromPolicy()
		case i.Policy != "" && (fc.ResourceVersion == "" || Pending(fc)):
			ByPolicy(fc, i.Policy, i.By)
		case fc.Spec.Decision == v1alpha1.DecisionDenied:
			return peering.Errorf(peering.ReasonTrustDenied, "this cluster itself denied that one: `entente approve %s` here ends that, or a token of either side", i.ID)
		}
		if fc.Spec.Decision == v1alpha1.DecisionApproved && fc.Spec.TrustBundle == "" {
			fc.Spec.TrustBundle = i.Info.PEM()
		}
		if fc.Spec.InBand == nil && (len(fc.Spec.Endpoints) == 0 || i.Endpoint != "") {
			fc.Spec.Endpoints = endpoints(i.Endpoint, slices.Concat(i.Info.Endpoints, fc.Spec.Endpoints))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return fc.Name, editStatus(ctx, c, fc, func(status *v1alpha1.ForeignClusterStatus) {
		if status.Source == "" && fc.Labels[v1alpha1.LabelManaged] == v1alpha1.Manager {
			status.Source = v1alpha1.SourceIntroduction
		}
		status.Introduction = &v1alpha1.Introduction{
			Time: metav1.NewTime(i.Time), Code: i.Code, Name: i.Info.Name, Bundle: i.Info.PEM(),
		}
		inherit(status, hint)
	})
}

// ByPolicy makes a ForeignCluster without a decision trusted in the name of a policy, and records that in the same
// write. It has the finalizer from then on, since deleting it forgets a trusted cluster.
func ByPolicy(fc *v1alpha1.ForeignCluster, policy, by string) {
	fc.Spec.Decision = v1alpha1.DecisionApproved
	metav1.SetMetaDataLabel(&fc.ObjectMeta, v1alpha1.LabelAutomatic, policy)
	metav1.SetMetaDataLabel(&fc.ObjectMeta, v1alpha1.LabelNamespacesOf, policy)
	metav1.SetMetaDataAnnotation(&fc.ObjectMeta, v1alpha1.AnnotationAutomaticBy, by)
	delete(fc.Annotations, v1alpha1.AnnotationAutomaticEnded)
	controllerutil.AddFinalizer(fc, v1alpha1.Finalizer)
}

// Sight creates a ForeignCluster for a cluster that discovery found and that is not known, and reports whether it
// did: an existing one has better data. The name ends with the beginning of the ID: any other name would be chosen
// by a stranger, who could take it from others. If one with another ID has that name, the whole ID is used.
func Sight(ctx context.Context, c client.Client, id peering.ClusterID, label string, sightings []v1alpha1.Sighting) (fc *v1alpha1.ForeignCluster, made bool, err error) {
	for _, end := range []string{id.Short(), string(id)} {
		fc, made, err = sight(ctx, c, id, cmp.Or(label[:min(len(label), 63-1-len(end))], "peer")+"-"+end, sightings)
		if !apierrors.IsAlreadyExists(err) {
			return fc, made, err
		}
		var has v1alpha1.ForeignCluster
		if err := c.Get(ctx, client.ObjectKeyFromObject(fc), &has); err != nil || has.Spec.ClusterID == "" || has.Spec.ClusterID == string(id) {
			return fc, false, client.IgnoreNotFound(err)
		}
	}
	return fc, false, nil
}

// HintName reports whether a name has the form of those that Sight chooses for a cluster.
func HintName(name string, id peering.ClusterID) bool {
	return id != "" && (strings.HasSuffix(name, "-"+id.Short()) || strings.HasSuffix(name, "-"+string(id)))
}

func sight(ctx context.Context, c client.Client, id peering.ClusterID, name string, sightings []v1alpha1.Sighting) (fc *v1alpha1.ForeignCluster, made bool, err error) {
	fc = newPeer(id, name)
	fc.Annotations = map[string]string{v1alpha1.AnnotationDiscovered: "true"}
	fc.Spec.Endpoints = SightedEndpoints(sightings)
	if err := c.Create(ctx, fc, client.FieldOwner(v1alpha1.Manager)); err != nil {
		return fc, false, fmt.Errorf("create foreign cluster %s: %w", fc.Name, err)
	}
	return fc, true, editStatus(ctx, c, fc, func(status *v1alpha1.ForeignClusterStatus) {
		status.Source, status.Sightings = sightings[0].Source, sightings
	})
}

// SightedEndpoints returns where discovery finds a cluster, without duplicates, at most as many endpoints as a
// cluster may have, taking one of each place in turn.
func SightedEndpoints(sightings []v1alpha1.Sighting) []string {
	var all []string
	for i := range peering.MaxEndpoints {
		for _, s := range sightings {
			if i < len(s.Endpoints) {
				all = append(all, s.Endpoints[i])
			}
		}
	}
	return endpoints("", all)
}

// endpoints returns first, if it is not empty, and then the others, without duplicates.
func endpoints(first string, others []string) []string {
	var out []string
	for _, e := range append([]string{first}, others...) {
		if e != "" && !slices.Contains(out, e) && len(out) < peering.MaxEndpoints {
			out = append(out, e)
		}
	}
	return out
}

// UpdateBundle stores a peer's new roots. They have to follow from the current ones; otherwise the error is
// BUNDLE_INVALID.
func UpdateBundle(ctx context.Context, c client.Client, id peering.ClusterID, info identity.ClusterInfo) error {
	return retryOnConflict(func() error {
		fc, _, err := lookUp(ctx, c, id)
		if err != nil {
			return err
		}
		if fc == nil || fc.Spec.TrustBundle == "" || fc.Spec.Decision == v1alpha1.DecisionDenied {
			return peering.Errorf(peering.ReasonPeerNotTrusted, "this cluster no longer trusts yours")
		}
		// A malformed bundle is replaced.
		current, err := identity.ReadBundlePEM(id, []byte(fc.Spec.TrustBundle))
		if err == nil {
			err = identity.Supersedes(current, info.Bundle)
			if err != nil {
				return &peering.Error{Reason: peering.ReasonBundleInvalid, Message: err.Error() + "; if the old key may be in other hands, join again with a token", Err: err}
			}
		}
		before := fc.DeepCopy()
		fc.Spec.TrustBundle = info.PEM()
		return PatchLocked(ctx, c, before, fc)
	})
}

// RecordRevoked records that a peer no longer trusts this cluster, and returns its ForeignCluster; nil if it is not
// trusted here either, or if that was recorded before.
func RecordRevoked(ctx context.Context, c client.Client, id peering.ClusterID, message string, now time.Time) (*v1alpha1.ForeignCluster, error) {
	fc, _, err := lookUp(ctx, c, id)
	if err != nil || fc == nil || fc.Spec.TrustBundle == "" || Revoked(fc) {
		return nil, err
	}
	return fc, editStatus(ctx, c, fc, func(status *v1alpha1.ForeignClusterStatus) { SetRevoked(status, message, now) })
}

// SetRevoked sets in a status what RecordRevoked writes.
func SetRevoked(status *v1alpha1.ForeignClusterStatus, message string, now time.Time) {
	text := "the peer ended its trust in this cluster"
	if message = strings.TrimSpace(message); message != "" {
		text += ", saying: " + message
	}
	if t := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTrusted); t != nil && t.Reason != RevokedByPeer {
		// This is a transition, whatever was wrong before.
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionTrusted)
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionFalse, Reason: RevokedByPeer,
		Message:            text + "; contracts with it ended. To be trusted again: `entente join` with a new token of either side, or have an administrator there approve this cluster",
		LastTransitionTime: metav1.NewTime(now),
	})
}

// lookUp finds the ForeignCluster of a cluster, and returns all ForeignClusters by name.
func lookUp(ctx context.Context, c client.Reader, id peering.ClusterID, opts ...client.ListOption) (*v1alpha1.ForeignCluster, map[string]*v1alpha1.ForeignCluster, error) {
	var list v1alpha1.ForeignClusterList
	if err := c.List(ctx, &list, opts...); err != nil {
		return nil, nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	byName := make(map[string]*v1alpha1.ForeignCluster, len(list.Items))
	for i := range list.Items {
		byName[list.Items[i].Name] = &list.Items[i]
	}
	return Known(list.Items, id), byName, nil
}

// lookUpCached is lookUp without asking the API server for all. If the cache does not show yet that another cluster
// has a name, creating the ForeignCluster does.
func lookUpCached(ctx context.Context, c client.Client, cache client.Reader, id peering.ClusterID) (*v1alpha1.ForeignCluster, map[string]*v1alpha1.ForeignCluster, error) {
	fc, err := Find(ctx, c, id)
	if err != nil || fc != nil {
		return fc, nil, err
	}
	fc, byName, err := lookUp(ctx, cache, id, client.UnsafeDisableDeepCopy) // to read only
	if fc != nil {
		// It has no label yet, or is gone by now.
		return lookUp(ctx, c, id)
	}
	return nil, byName, err
}

// place finds or creates the ForeignCluster of a cluster, changed by edit, and reports whether it created it. hint
// is what discovery found of it, if it was a hint. With a cache it asks the API server for that one only.
func place(ctx context.Context, c client.Client, cache client.Reader, id peering.ClusterID, info identity.ClusterInfo, wanted string,
	edit func(*v1alpha1.ForeignCluster) error,
) (out *v1alpha1.ForeignCluster, hint []v1alpha1.Sighting, created bool, err error) {
	err = retryOnConflict(func() error {
		var taken map[string]*v1alpha1.ForeignCluster
		if cache == nil || wanted != "" {
			out, taken, err = lookUp(ctx, c, id)
		} else {
			out, taken, err = lookUpCached(ctx, c, cache, id)
		}
		if err != nil {
			return err
		}
		if out != nil && (wanted != "" && wanted != out.Name && Pending(out) || out.Hint()) {
			// Strangers choose the names of hints and introductions that they cause; an administrator who wants one
			// of these names gets it. And a cluster that announces its own name and endpoints needs no hints.
			if err := yield(ctx, c, out); err != nil {
				return err
			}
			delete(taken, out.Name)
			hint, out = out.Status.Sightings, nil
		}
		if out != nil {
			return change(ctx, c, out, wanted, edit)
		}
		name, err := freeName(ctx, c, id, info.Name, wanted, taken)
		if err != nil {
			return err
		}
		out = newPeer(id, name)
		if wanted != "" {
			confirmName(out)
		}
		if err := edit(out); err != nil {
			return err
		}
		if out.Spec.TrustBundle != "" {
			controllerutil.AddFinalizer(out, v1alpha1.Finalizer)
		}
		err = c.Create(ctx, out, client.FieldOwner(v1alpha1.Manager))
		created = err == nil
		switch {
		case apierrors.IsAlreadyExists(err) && cache != nil:
			cache = nil // it did not show which cluster has the name
			return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("foreignclusters").GroupResource(), name, err)
		case apierrors.IsAlreadyExists(err):
			return peering.Errorf(peering.ReasonConflict, "another cluster just took the name %s; try again", name)
		case err != nil:
			return fmt.Errorf("create foreign cluster %s: %w", name, err)
		}
		return nil
	})
	return out, hint, created, err
}

// change writes a ForeignCluster, changed by edit.
func change(ctx context.Context, c client.Client, fc *v1alpha1.ForeignCluster, wanted string, edit func(*v1alpha1.ForeignCluster) error) error {
	if !fc.DeletionTimestamp.IsZero() {
		return peering.Errorf(peering.ReasonConflict, "cluster %s is being forgotten here as %s; try again in a moment", peering.ClusterID(fc.Spec.ClusterID).Short(), fc.Name)
	}
	before := fc.DeepCopy()
	if wanted == fc.Name {
		confirmName(fc)
	}
	if err := edit(fc); err != nil {
		return err
	}
	return PatchLocked(ctx, c, before, fc)
}

// newPeer returns a ForeignCluster that this cluster creates for another one.
func newPeer(id peering.ClusterID, name string) *v1alpha1.ForeignCluster {
	return &v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelPeer: string(id), v1alpha1.LabelManaged: v1alpha1.Manager}},
		Spec:       v1alpha1.ForeignClusterSpec{ClusterID: string(id)},
	}
}

// confirmName records that an administrator chose the name of a ForeignCluster.
func confirmName(fc *v1alpha1.ForeignCluster) {
	metav1.SetMetaDataAnnotation(&fc.ObjectMeta, v1alpha1.AnnotationNameConfirmed, "true")
}

// freeName returns a free name for a cluster that is not known.
func freeName(ctx context.Context, c client.Client, id peering.ClusterID, own, wanted string, taken map[string]*v1alpha1.ForeignCluster) (string, error) {
	if wanted != "" {
		switch other := taken[wanted]; {
		case other == nil:
		case Pending(other):
			if err := yield(ctx, c, other); err != nil {
				return "", err
			}
		default:
			return "", peering.Errorf(peering.ReasonPeerNameTaken, "another cluster is called %s here: choose another name", wanted)
		}
		return wanted, nil
	}
	own = cmp.Or(own, "peer-"+id.Short())
	if taken[own] != nil {
		own = own[:min(len(own), 63-1-len(id.Short()))] + "-" + id.Short()
	}
	return own, nil
}

// yield deletes a ForeignCluster that is not decided yet.
func yield(ctx context.Context, c client.Client, fc *v1alpha1.ForeignCluster) error {
	err := c.Delete(ctx, fc, client.Preconditions{UID: &fc.UID, ResourceVersion: &fc.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the introduction of %s: %w", fc.Name, err)
	}
	return nil
}

// editStatus changes a ForeignCluster's current status.
func editStatus(ctx context.Context, c client.Client, fc *v1alpha1.ForeignCluster, edit func(*v1alpha1.ForeignClusterStatus)) error {
	first := true
	return retryOnConflict(func() error {
		if !first {
			if err := c.Get(ctx, client.ObjectKeyFromObject(fc), fc); err != nil {
				return fmt.Errorf("read foreign cluster %s: %w", fc.Name, err)
			}
		}
		first = false
		before := fc.DeepCopy()
		edit(&fc.Status)
		return PatchStatusLocked(ctx, c, before, fc)
	})
}

package sightings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// Sightings keeps a ForeignCluster for each cluster that discovery finds. All of them are hints:
// they make no trust, and are not dialled.
type Sightings struct {
	// Client reads from a cache, and writes.
	Client client.Client
	// Self is this cluster, which finds itself, too.
	Self   peering.ClusterID
	Events events.EventRecorder
	Log    *slog.Logger
	Now    func() time.Time
	// Budget is the budget of writes that peers cause. All hints together count as one peer.
	Budget *store.WriteBudget
	// Snapshot returns what discovery finds now. It is called in each pass.
	Snapshot func() Snapshot
	// Wake notifies of changes.
	Wake <-chan struct{}

	// began is when the first pass was, last when each cluster was last found at a place, and
	// changed when its ForeignCluster was last changed.
	began   time.Time
	last    map[lastSeen]time.Time
	changed map[peering.ClusterID]time.Time
	// made is when the hints younger than minHintLife were created.
	made map[peering.ClusterID]time.Time
	// full means that there was no room for all in the last pass.
	full bool
}

type lastSeen struct {
	id peering.ClusterID
	at Place
}

// Snapshot is what discovery finds at one time.
type Snapshot struct {
	// Found has no order. Seen is when each was last announced.
	Found []Sighted
	// Places has the places that are browsed. It is true for those where that has not completed
	// since this process began: what was found there before is kept.
	Places map[Place]bool
	// missing reports whether a cluster was not found at a place for long enough to count as gone.
	// If nil, one pass is enough.
	missing func(lastSeen) bool
	// young reports whether a cluster's hint was created a moment ago. If nil, no hint was.
	young func(peering.ClusterID) bool
}

// keeps reports whether a sighting at a place is kept although the place does not have it now.
// Responses of a domain come one by one, and a missing one may be late. On a LAN a cluster that
// leaves says goodbye, or did not answer four queries. Any host can send a goodbye, so a new hint
// is kept for a while: then hints that come and go all the time cost little.
func (l Snapshot) keeps(id peering.ClusterID, at Place) bool {
	starting, snapshot := l.Places[at]
	if at.Source == v1alpha1.SourceLAN {
		return snapshot && (starting || l.young != nil && l.young(id))
	}
	return snapshot && (starting || l.missing != nil && !l.missing(lastSeen{id, at}))
}

// Sighted is one cluster at one place.
type Sighted struct {
	ID peering.ClusterID
	v1alpha1.Sighting
}

// Place is a network interface of a node, or a domain.
type Place struct {
	Source      v1alpha1.Source
	Where, Node string
}

func placeOf(s v1alpha1.Sighting) Place { return Place{s.Source, s.Location, s.Node} }

// sightingPlan has the writes that follow from a snapshot.
type sightingPlan struct {
	// make has the clusters that are not known, the expected ones first; expected is the number of
	// these.
	make     []newHint
	expected int
	// change has the changes of ForeignClusters, by their names.
	change map[string]hintChange
	// remove has the names of those that existed only because they were found.
	remove []string
	// left is how many clusters were found for which there is no room.
	left int
}

type newHint struct {
	id        peering.ClusterID
	name      string
	sightings []v1alpha1.Sighting
}

type hintChange struct {
	sightings []v1alpha1.Sighting
	// endpoints are the new ones of the spec; nil leaves it unchanged.
	endpoints []string
	impostor  *metav1.Condition
}

// Expected returns the IDs of at most maxExpected clusters that have precedence in discovery, in
// order: those that policies list, then those about which an administrator decided, then those
// that a policy trusts. Invented clusters of strangers cannot displace these.
func Expected(policies []v1alpha1.PeeringPolicy, all []v1alpha1.ForeignCluster) []string {
	listed, decided, others := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range policies {
		if p := &policies[i]; p.Spec.Automatic != nil && p.DeletionTimestamp.IsZero() {
			for _, id := range p.Spec.Automatic.ClusterIDs {
				listed[id] = true
			}
		}
	}
	for i := range all {
		fc := &all[i]
		id, err := peering.ParseClusterID(fc.Spec.ClusterID)
		switch {
		case err != nil, listed[string(id)], store.Pending(fc), fc.Spec.Decision == v1alpha1.DecisionDenied:
		case store.PeerOfPolicy(fc) != "":
			others[string(id)] = true
		default:
			decided[string(id)] = true
		}
	}
	out := slices.Sorted(maps.Keys(listed))
	out = append(out, slices.Sorted(maps.Keys(decided))...)
	out = append(out, slices.Sorted(maps.Keys(others))...)
	out = out[:min(len(out), maxExpected)]
	slices.Sort(out)
	return out
}

// planSightings decides what to write for a snapshot, given all ForeignClusters and the IDs of
// the expected clusters, in order.
func planSightings(self peering.ClusterID, expected []string, snapshot Snapshot, all []v1alpha1.ForeignCluster) sightingPlan {
	found := gather(self, snapshot.Found)
	known := store.KnownAll(all)
	plan := sightingPlan{change: map[string]hintChange{}}
	kept := 0
	at := map[Place]int{}
	trusted := slices.DeleteFunc(slices.Clone(all), func(fc v1alpha1.ForeignCluster) bool { return fc.Spec.TrustBundle == "" })
	slices.SortFunc(trusted, func(a, b v1alpha1.ForeignCluster) int { return cmp.Compare(a.Name, b.Name) })
	for i := range all {
		fc := &all[i]
		id := peering.ClusterID(fc.Spec.ClusterID)
		if known[id] != fc {
			continue
		}
		now := mergeSightings(id, found[id], fc.Status.Sightings, snapshot)
		delete(found, id)
		if !fc.DeletionTimestamp.IsZero() {
			continue
		}
		if fc.Hint() {
			if len(now) == 0 {
				plan.remove = append(plan.remove, fc.Name)
				continue
			}
			if !isExpected(expected, id) {
				kept++
				at[placeOf(now[0])]++
			}
		}
		if change, differs := changeOf(fc, now, trust.Impostor(fc, now, trusted)); differs {
			plan.change[fc.Name] = change
		}
	}
	for _, id := range inTurn(found, expected) {
		place := placeOf(found[id][0])
		switch {
		case isExpected(expected, id): // these are few
			plan.expected++
		case kept >= maxHints || at[place] >= maxHintsOfPlace:
			plan.left++
			continue
		default:
			kept++
			at[place]++
		}
		plan.make = append(plan.make, newHint{id: id, name: ownName(found[id]), sightings: found[id]})
	}
	slices.Sort(plan.remove)
	return plan
}

// inTurn returns the clusters that were found in the order in which hints are created, since
// there may not be room for all: expected clusters first, then those found at several places,
// since one place alone is easier to fill, and of equals those of each place in turn.
func inTurn(found map[peering.ClusterID][]v1alpha1.Sighting, expected []string) []peering.ClusterID {
	rank := func(id peering.ClusterID) int {
		if isExpected(expected, id) {
			return 0
		}
		return 1
	}
	first := func(a, b peering.ClusterID) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len(found[b]), len(found[a])))
	}
	ids := slices.SortedFunc(maps.Keys(found), func(a, b peering.ClusterID) int { return cmp.Or(first(a, b), cmp.Compare(a, b)) })
	turn, of := map[peering.ClusterID]int{}, map[Place]int{}
	for _, id := range ids {
		place := placeOf(found[id][0])
		turn[id] = of[place]
		of[place]++
	}
	slices.SortStableFunc(ids, func(a, b peering.ClusterID) int { return cmp.Or(first(a, b), turn[a]-turn[b]) })
	return ids
}

// isExpected reports whether an ID is one of the expected ones, which are sorted.
func isExpected(expected []string, id peering.ClusterID) bool {
	_, there := slices.BinarySearch(expected, string(id))
	return there
}

// gather returns what was found of each cluster but this one, in a fixed order, at most maxPlaces
// of each.
func gather(self peering.ClusterID, found []Sighted) map[peering.ClusterID][]v1alpha1.Sighting {
	out := map[peering.ClusterID][]v1alpha1.Sighting{}
	for _, s := range found {
		if s.ID != self && len(s.Endpoints) > 0 {
			out[s.ID] = append(out[s.ID], s.Sighting)
		}
	}
	for id, list := range out {
		slices.SortFunc(list, compareSightings)
		list = onePerPlace(list)
		out[id] = list[:min(len(list), maxPlaces)]
	}
	return out
}

// onePerPlace merges the sightings of a cluster under several names at one place, so that none
// replaces another: any host there can announce any ID. The list is sorted.
func onePerPlace(list []v1alpha1.Sighting) (out []v1alpha1.Sighting) {
	for len(list) > 0 {
		n := slices.IndexFunc(list, func(s v1alpha1.Sighting) bool { return placeOf(s) != placeOf(list[0]) })
		if n < 0 {
			n = len(list)
		}
		one := list[0]
		if n > 1 {
			one.Endpoints = store.SightedEndpoints(list[:n])
			for _, s := range list[1:n] {
				one.Name = cmp.Or(one.Name, s.Name)
			}
		}
		out, list = append(out, one), list[n:]
	}
	return out
}

func compareSightings(a, b v1alpha1.Sighting) int {
	return cmp.Or(
		// A LAN comes before a domain.
		-cmp.Compare(a.Source, b.Source), cmp.Compare(a.Location, b.Location), cmp.Compare(a.Node, b.Node),
		cmp.Compare(a.Name, b.Name), slices.Compare(a.Endpoints, b.Endpoints),
	)
}

// mergeSightings returns the sightings of a cluster: those that were found, and those before that
// are kept. The time at which it was seen is only written once in seenPace, since each cluster
// announces itself all the time.
func mergeSightings(id peering.ClusterID, found, before []v1alpha1.Sighting, snapshot Snapshot) []v1alpha1.Sighting {
	out := slices.Clone(found)
	for _, b := range before {
		i := slices.IndexFunc(out, func(s v1alpha1.Sighting) bool { return placeOf(s) == placeOf(b) })
		switch {
		case i >= 0 && out[i].LastSeenTime.Sub(b.LastSeenTime.Time) < seenPace:
			out[i].LastSeenTime = b.LastSeenTime
		case i < 0 && snapshot.keeps(id, placeOf(b)) && len(out) < maxPlaces:
			out = append(out, b)
		}
	}
	slices.SortFunc(out, compareSightings)
	return out
}

func changeOf(fc *v1alpha1.ForeignCluster, now []v1alpha1.Sighting, impostor *metav1.Condition) (hintChange, bool) {
	change := hintChange{sightings: now, impostor: impostor}
	if fc.Hint() {
		if endpoints := store.SightedEndpoints(now); !slices.Equal(endpoints, fc.Spec.Endpoints) {
			change.endpoints = endpoints
		}
	}
	was := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionImpostor)
	same := was == nil && impostor == nil || was != nil && impostor != nil && was.Reason == impostor.Reason && was.Message == impostor.Message
	differs := change.endpoints != nil || !same || !(len(now) == 0 && len(fc.Status.Sightings) == 0 || equality.Semantic.DeepEqual(now, fc.Status.Sightings))
	return change, differs
}

// ownName returns the name that a cluster announces, if it is a valid one here.
func ownName(sightings []v1alpha1.Sighting) string {
	for _, s := range sightings {
		if len(validation.IsDNS1123Label(s.Name)) == 0 {
			return s.Name
		}
	}
	return ""
}

// Start implements manager.Runnable. It reconciles when discovery found a change, and each
// resyncInterval, since others may change objects.
func (r *Sightings) Start(ctx context.Context) error {
	again := time.NewTicker(resyncInterval)
	defer again.Stop()
	for {
		if err := r.reconcile(ctx); err != nil && ctx.Err() == nil {
			r.Log.Warn("keep what discovery found", "err", err)
		}
		// Changes that a network announces all the time are handled once a second.
		if !notify.Pause(ctx, sightingsPace) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.Wake:
		case <-again.C:
		}
	}
}

// reconcile writes what is found now. Failed writes are tried again in the next pass.
func (r *Sightings) reconcile(ctx context.Context) error {
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list foreign clusters: %w", err)
	}
	byName := make(map[string]*v1alpha1.ForeignCluster, len(list.Items))
	for i := range list.Items {
		byName[list.Items[i].Name] = &list.Items[i]
	}
	var policies v1alpha1.PeeringPolicyList
	if err := r.Client.List(ctx, &policies, client.UnsafeDisableDeepCopy); err != nil { // they are only read
		return fmt.Errorf("list peering policies: %w", err)
	}
	expected := Expected(policies.Items, list.Items)
	plan := planSightings(r.Self, expected, r.snapshot(), list.Items)
	// Expected clusters do not wait for those of strangers.
	unexpected := func(name string) bool { return !isExpected(expected, peering.ClusterID(byName[name].Spec.ClusterID)) }
	names := slices.Sorted(maps.Keys(plan.change))
	errs := r.makeHints(ctx, plan.make[:plan.expected])
	errs = append(errs, r.changeHints(ctx, byName, plan.change, slices.DeleteFunc(slices.Clone(names), unexpected))...)
	errs = append(errs, r.changeHints(ctx, byName, plan.change, slices.DeleteFunc(names, func(name string) bool { return !unexpected(name) }))...)
	// New hints come last, so that changes of known clusters do not wait for them.
	errs = append(errs, r.makeHints(ctx, plan.make[plan.expected:])...)
	for _, name := range plan.remove[:min(len(plan.remove), hintsAtOnce)] {
		fc := byName[name]
		err := r.Client.Delete(ctx, fc, client.Preconditions{UID: &fc.UID, ResourceVersion: &fc.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("remove %s, which is no longer found: %w", name, err))
		}
	}
	if full := plan.left > 0; full != r.full {
		r.full = full
		if full {
			r.Log.Warn("discovery finds more clusters than are kept", "left", plan.left, "kept", maxHints, "ofPlace", maxHintsOfPlace)
		}
	}
	// A conflicting change is seen in the next pass.
	errs = slices.DeleteFunc(errs, apierrors.IsConflict)
	return errors.Join(errs...)
}

// changeHints writes the changes of the clusters with these names, as far as the budget allows.
func (r *Sightings) changeHints(ctx context.Context, byName map[string]*v1alpha1.ForeignCluster, changes map[string]hintChange, names []string) (errs []error) {
	most := hintsAtOnce
	for _, name := range names {
		fc := byName[name]
		id := peering.ClusterID(fc.Spec.ClusterID)
		if most == 0 || r.Now().Sub(r.changed[id]) < changePace {
			continue // a later pass writes what is found then
		}
		if _, over := store.Later(r.Budget.Take(store.Hints, fc)); over {
			break
		}
		most--
		r.changed[id] = r.Now()
		errs = append(errs, r.change(ctx, fc, changes[name]))
	}
	return errs
}

// makeHints creates the ForeignClusters of clusters that are not known, as far as the budget
// allows.
func (r *Sightings) makeHints(ctx context.Context, list []newHint) (errs []error) {
	for _, hint := range list[:min(len(list), hintsAtOnce)] {
		if _, over := store.Later(r.Budget.TakeBytes(store.Hints, hintCost)); over {
			break
		}
		fc, made, err := store.Sight(ctx, r.Client, hint.id, hint.name, hint.sightings)
		if errs = append(errs, err); !made {
			continue
		}
		r.made[hint.id] = r.Now()
		r.Log.Info("discovery found a cluster", "peer", fc.Name, "id", hint.id, "source", hint.sightings[0].Source, "location", hint.sightings[0].Location)
	}
	return errs
}

// snapshot returns what is found now, and which clusters were found a moment ago: responses come
// one by one, and a cluster that moves is missing for a while.
func (r *Sightings) snapshot() Snapshot {
	out, now := r.Snapshot(), r.Now()
	if r.last == nil {
		r.began = now
		r.last, r.changed, r.made = map[lastSeen]time.Time{}, map[peering.ClusterID]time.Time{}, map[peering.ClusterID]time.Time{}
	}
	for _, s := range out.Found {
		if key := (lastSeen{s.ID, placeOf(s.Sighting)}); r.last[key] != (time.Time{}) || len(r.last) < maxLast {
			r.last[key] = now
		}
	}
	maps.DeleteFunc(r.last, func(_ lastSeen, at time.Time) bool { return now.Sub(at) >= missingAfter })
	maps.DeleteFunc(r.changed, func(_ peering.ClusterID, at time.Time) bool { return now.Sub(at) >= changePace })
	maps.DeleteFunc(r.made, func(_ peering.ClusterID, at time.Time) bool { return now.Sub(at) >= minHintLife })
	out.young = func(id peering.ClusterID) bool { return r.made[id] != (time.Time{}) }
	out.missing = func(key lastSeen) bool { return r.last[key] == (time.Time{}) && now.Sub(r.began) >= missingAfter }
	return out
}

func (r *Sightings) change(ctx context.Context, fc *v1alpha1.ForeignCluster, change hintChange) error {
	before := fc.DeepCopy()
	if change.endpoints != nil {
		fc.Spec.Endpoints = change.endpoints
	}
	if err := store.PatchLocked(ctx, r.Client, before, fc); err != nil {
		return err
	}
	before = fc.DeepCopy()
	fc.Status.Sightings = change.sightings
	was := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionImpostor)
	if change.impostor == nil {
		meta.RemoveStatusCondition(&fc.Status.Conditions, v1alpha1.ConditionImpostor)
	} else {
		meta.SetStatusCondition(&fc.Status.Conditions, *change.impostor)
	}
	if err := store.PatchStatus(ctx, r.Client, before, fc); err != nil {
		return err
	}
	if change.impostor != nil && was == nil {
		r.Events.Eventf(fc, nil, corev1.EventTypeWarning, "Impostor", "Discover", "%s", change.impostor.Message)
	}
	return nil
}

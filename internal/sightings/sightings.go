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

// Sightings keeps a ForeignCluster for each cluster that discovery finds. Whatever is
// found is a hint: it makes no trust, and nothing is dialled because of it.
type Sightings struct {
	// Client reads from a cache, and writes.
	Client client.Client
	// Self is this cluster, which finds itself, too.
	Self   peering.ClusterID
	Events events.EventRecorder
	Log    *slog.Logger
	Now    func() time.Time
	// Budget is that of what peers have written. All hints together are one of those
	// who share it.
	Budget *store.WriteBudget
	// Look returns what discovery finds now. It is called for each look.
	Look func() Looked
	// Wake says that something changed.
	Wake <-chan struct{}

	// began is when it was looked first, last when each cluster was found at a place
	// last, and changed when its ForeignCluster was.
	began   time.Time
	last    map[lastSeen]time.Time
	changed map[peering.ClusterID]time.Time
	// made is when the hints were made that are not hintStands old.
	made map[peering.ClusterID]time.Time
	// full says that there was no room for all with the last look.
	full bool
}

type lastSeen struct {
	id peering.ClusterID
	at Place
}

// Looked is what discovery finds at a time.
type Looked struct {
	// Found is by no order. Seen is when each was said last.
	Found []Sighted
	// Places is those that are looked at; true are those that were not looked at to an
	// end since this process began. What was found there before stands.
	Places map[Place]bool
	// missing says that a cluster was not found at a place for long enough to believe
	// it. Nil is that one look is enough.
	missing func(lastSeen) bool
	// young says whether a cluster's hint was made a moment ago. Nil is that none was.
	young func(peering.ClusterID) bool
}

// stands says whether what was known of a place that does not tell it now is to be kept.
// Answers of a domain come one by one, and one that is missing may be late; on a LAN
// who goes says goodbye, or was asked for four times without an answer. Anybody can say
// it, so a new hint stands for a while: what comes and goes all the time costs little then.
func (l Looked) stands(id peering.ClusterID, at Place) bool {
	starting, looked := l.Places[at]
	if at.Source == v1alpha1.FoundLAN {
		return looked && (starting || l.young != nil && l.young(id))
	}
	return looked && (starting || l.missing != nil && !l.missing(lastSeen{id, at}))
}

// Sighted is one cluster at one place.
type Sighted struct {
	ID peering.ClusterID
	v1alpha1.Sighting
}

// Place is a network interface of a node, or a domain.
type Place struct {
	Source      v1alpha1.Found
	Where, Node string
}

func placeOf(s v1alpha1.Sighting) Place { return Place{s.Source, s.Where, s.Node} }

// sightingPlan is what is to be done about what was found.
type sightingPlan struct {
	// make is clusters that are not known, and expected how many of them are: those are
	// the first.
	make     []newHint
	expected int
	// change is what is known of ForeignClusters, by their names, where it differs.
	change map[string]hintChange
	// remove is the names of those that were there for nothing else.
	remove []string
	// left is how many clusters were found that there is no room for.
	left int
}

type newHint struct {
	id        peering.ClusterID
	name      string
	sightings []v1alpha1.Sighting
}

type hintChange struct {
	sightings []v1alpha1.Sighting
	// endpoints is what the spec says then; nil leaves it.
	endpoints []string
	impostor  *metav1.Condition
}

// Expected returns the IDs of clusters that come first with discovery, in order, at most
// maxExpected: those that policies list before those about which a person decided, and
// these before those that a policy trusts. Strangers who invent clusters keep none out.
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

// planSightings decides what follows from what was found, given all ForeignClusters and
// the IDs of those that are expected, in order.
func planSightings(self peering.ClusterID, expected []string, looked Looked, all []v1alpha1.ForeignCluster) sightingPlan {
	found := gather(self, looked.Found)
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
		now := settleSightings(id, found[id], fc.Status.Sightings, looked)
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

// inTurn returns the clusters that were found in the order in which they are made, as not
// all may be made at once: those that are expected, then those that were named by several
// places, as one place alone is easier to fill, and of equals those of each place in turn.
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

// isExpected says whether an ID is one of those that are expected, which are in order.
func isExpected(expected []string, id peering.ClusterID) bool {
	_, there := slices.BinarySearch(expected, string(id))
	return there
}

// gather brings together what was found of each cluster but this one, in an order that
// is always the same, at most maxPlaces of each.
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

// onePerPlace brings together what is said under several names at one place, as anybody
// there can say any ID: none replaces another. The list is in order.
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
		// A LAN is nearer than a domain.
		-cmp.Compare(a.Source, b.Source), cmp.Compare(a.Where, b.Where), cmp.Compare(a.Node, b.Node),
		cmp.Compare(a.Name, b.Name), slices.Compare(a.Endpoints, b.Endpoints),
	)
}

// settleSightings returns what is to be known of a cluster: what was found, and what
// was known of places that were not looked at yet. When it was seen is written once in
// seenPace only, as each cluster says it all the time.
func settleSightings(id peering.ClusterID, found, before []v1alpha1.Sighting, looked Looked) []v1alpha1.Sighting {
	out := slices.Clone(found)
	for _, b := range before {
		i := slices.IndexFunc(out, func(s v1alpha1.Sighting) bool { return placeOf(s) == placeOf(b) })
		switch {
		case i >= 0 && out[i].Seen.Sub(b.Seen.Time) < seenPace:
			out[i].Seen = b.Seen
		case i < 0 && looked.stands(id, placeOf(b)) && len(out) < maxPlaces:
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

// ownName is what a cluster calls itself, if it may be called so here.
func ownName(sightings []v1alpha1.Sighting) string {
	for _, s := range sightings {
		if len(validation.IsDNS1123Label(s.Name)) == 0 {
			return s.Name
		}
	}
	return ""
}

// Start implements manager.Runnable. It looks when something changed, and each so often
// as objects may be changed by others.
func (r *Sightings) Start(ctx context.Context) error {
	again := time.NewTicker(sightingsLook)
	defer again.Stop()
	for {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.Log.Warn("keep what discovery found", "err", err)
		}
		// What a network says all the time is looked at once a second.
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

// look does what follows from what is found now. What cannot be done is tried again
// with the next look.
func (r *Sightings) look(ctx context.Context) error {
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
	plan := planSightings(r.Self, expected, r.looked(), list.Items)
	// What is expected does not wait for what strangers say.
	unexpected := func(name string) bool { return !isExpected(expected, peering.ClusterID(byName[name].Spec.ClusterID)) }
	names := slices.Sorted(maps.Keys(plan.change))
	errs := r.makeHints(ctx, plan.make[:plan.expected])
	errs = append(errs, r.changeHints(ctx, byName, plan.change, slices.DeleteFunc(slices.Clone(names), unexpected))...)
	errs = append(errs, r.changeHints(ctx, byName, plan.change, slices.DeleteFunc(names, func(name string) bool { return !unexpected(name) }))...)
	// What is made comes last: what is told of those that are known is not to wait for it.
	errs = append(errs, r.makeHints(ctx, plan.make[plan.expected:])...)
	for _, name := range plan.remove[:min(len(plan.remove), hintsAtOnce)] {
		fc := byName[name]
		err := r.Client.Delete(ctx, fc, client.Preconditions{UID: &fc.UID, ResourceVersion: &fc.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("forget %s, which is not found any more: %w", name, err))
		}
	}
	if full := plan.left > 0; full != r.full {
		r.full = full
		if full {
			r.Log.Warn("discovery finds more clusters than are kept", "left", plan.left, "kept", maxHints, "ofPlace", maxHintsOfPlace)
		}
	}
	// What somebody else wrote meanwhile is seen with the next look.
	errs = slices.DeleteFunc(errs, apierrors.IsConflict)
	return errors.Join(errs...)
}

// changeHints writes what is known of the clusters with these names, as far as there is
// room.
func (r *Sightings) changeHints(ctx context.Context, byName map[string]*v1alpha1.ForeignCluster, changes map[string]hintChange, names []string) (errs []error) {
	most := hintsAtOnce
	for _, name := range names {
		fc := byName[name]
		id := peering.ClusterID(fc.Spec.ClusterID)
		if most == 0 || r.Now().Sub(r.changed[id]) < changePace {
			continue // what is found then counts
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

// makeHints makes the ForeignClusters of clusters that are not known, as far as there is
// room.
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
		r.Log.Info("discovery found a cluster", "peer", fc.Name, "id", hint.id, "source", hint.sightings[0].Source, "where", hint.sightings[0].Where)
	}
	return errs
}

// looked is what is found now, with what was found a moment ago: answers come one by
// one, and what moves is away for a while.
func (r *Sightings) looked() Looked {
	out, now := r.Look(), r.Now()
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
	maps.DeleteFunc(r.made, func(_ peering.ClusterID, at time.Time) bool { return now.Sub(at) >= hintStands })
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

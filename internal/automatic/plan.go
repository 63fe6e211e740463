package automatic

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// basis is why a policy trusts a cluster, as v1alpha1.AnnotationAutomaticBy records it. A new basis needs its place
// in rank, policyRule.trusts, optionsFor and approves.
type basis string

const (
	byClusterID basis = "ClusterID"
	byFirstUse  basis = "FirstUse"
	byGroup     basis = "Group/"
)

func groupBasis(name string) basis { return byGroup + basis(name) }

// rank orders bases, the surest first.
func (b basis) rank() int {
	if b == byFirstUse {
		return 2
	}
	if b == byClusterID {
		return 0
	}
	return 1 // by a group
}

// policyRule is a PeeringPolicy with spec.automatic.
type policyRule struct {
	name string
	v1alpha1.AutomaticPeering
	// revision changes with everything that may change the outcome of a try: the policy and the group's secret.
	revision string
	// problem is why its group cannot be used; empty if it can.
	problem trust.Attempt
}

func (p *policyRule) lists(id string) bool { return slices.Contains(p.ClusterIDs, id) }

func (p *policyRule) sources() []v1alpha1.Source {
	if len(p.Sources) > 0 {
		return p.Sources
	}
	return []v1alpha1.Source{v1alpha1.SourceLAN, v1alpha1.SourceDNS}
}

// stillTrusts reports whether it trusts a cluster for the reason for which it was trusted.
func (p *policyRule) stillTrusts(fc *v1alpha1.ForeignCluster) bool {
	return p.trusts(peering.ClusterID(fc.Spec.ClusterID), basis(fc.Annotations[v1alpha1.AnnotationAutomaticBy]))
}

// trusts reports whether it trusts a cluster for a reason.
func (p *policyRule) trusts(id peering.ClusterID, by basis) bool {
	switch {
	case by == byClusterID:
		return p.lists(string(id))
	case by == byFirstUse:
		return p.TrustOnFirstUse
	case strings.HasPrefix(string(by), string(byGroup)):
		return p.Group != nil && groupBasis(p.Group.Name) == by
	}
	return false
}

// endpoints returns where a cluster is found by the policy's sources, taking one of each place in turn.
func (p *policyRule) endpoints(fc *v1alpha1.ForeignCluster) []string {
	found := slices.DeleteFunc(slices.Clone(fc.Status.Sightings), func(s v1alpha1.Sighting) bool { return !slices.Contains(p.sources(), s.Source) })
	return store.SightedEndpoints(found)
}

// endpointsOf returns which endpoints a try dials: the next ones each time.
func endpointsOf(all []string, tries int) []string {
	out := make([]string, min(len(all), endpointsPerTry))
	for i := range out {
		out[i] = all[(tries*endpointsPerTry+i)%len(all)]
	}
	return out
}

// peerInput is what a plan follows from.
type peerInput struct {
	self peering.ClusterID
	// rules is sorted by name.
	rules []policyRule
	all   []v1alpha1.ForeignCluster
	// gone reports whether it is certain that a policy no longer peers by itself, and otherwise when it will be.
	gone func(policy string) (bool, time.Time)
	// forgotten reports whether a cluster was forgotten here, and whether by an administrator.
	forgotten func(peering.ClusterID) (forgotten, byPerson bool)
	// asked is the names of the ForeignClusters that an administrator's PeeringRequest asks.
	asked map[string]bool
	now   time.Time
	// random returns a duration below most.
	random func(most time.Duration) time.Duration
}

// peerPlan is what to do.
type peerPlan struct {
	dial []peerDial
	// approve is the clusters that introduced themselves.
	approve []peerApproval
	// declined is the clusters that policies do not trust on first use, as they imitate others.
	declined []peerRefusal
	// letGo is the names of the ForeignClusters that no policy asks for any more.
	letGo []string
	// lapsed is why a cluster is let go that a policy still asks for.
	lapsed map[string]string
	// stay is the names of those that were about to be let go, and no longer are: if one is forgotten from now on,
	// an administrator did it.
	stay []string
	// lift is the clusters that a policy forgot and that one peers with again.
	lift []peering.ClusterID
	// changed is the names of the ForeignClusters for which Attempt returns something else.
	changed []string
	// peers and waiting count clusters by policy.
	peers, waiting map[string]int
	// full is the policies that have reached the limit of trust on first use.
	full map[string]bool
	// again is when to reconcile again; 0 means never.
	again time.Duration
}

type peerDial struct {
	key       tryKey
	fc        string
	endpoints []string
}

type peerApproval struct {
	fc     string
	policy string
	by     basis
}

type peerRefusal struct{ fc, policy, why string }

// tryKey identifies a try: another reason makes another try.
type tryKey struct {
	id     peering.ClusterID
	policy string
	by     basis
}

// peerTry is the record of a try.
type peerTry struct {
	revision string
	running  bool
	// again is the earliest time of the next try, pause the pause before the last one.
	again time.Time
	pause time.Duration
	// tries is how many ended, unknown how many of the last ones failed because no policy there has the group.
	tries, unknown int
	outcome        trust.Attempt
}

// peerState is the state that is kept between reconciliations.
type peerState struct {
	tries map[tryKey]*peerTry
	// places is when an endpoint may be dialled again, whichever cluster is said to be there.
	places map[string]time.Time
	// missing is since when policies of existing peers are gone.
	missing map[string]time.Time
	// forgottenHere is the clusters that policies would peer with and an administrator forgot here.
	forgottenHere map[peering.ClusterID]bool
	// reported is what was reported about clusters with the last plan.
	reported map[peering.ClusterID]trust.Attempt
	// away is since when policies' peers are neither found nor connected, without a contract or request.
	away    map[peering.ClusterID]time.Time
	running int
	limit   *rate.Limiter
}

// goneFor reports for policies that made something whether they no longer peer by themselves. A missing one may be
// about to be created again. exists is those that exist.
func (s *peerState) goneFor(made, exists map[string]bool, now time.Time) func(string) (bool, time.Time) {
	if s.missing == nil {
		s.missing = map[string]time.Time{}
	}
	for name := range made {
		if _, known := s.missing[name]; !known && !exists[name] {
			s.missing[name] = now
		}
	}
	maps.DeleteFunc(s.missing, func(name string, _ time.Time) bool { return exists[name] || !made[name] })
	since := maps.Clone(s.missing)
	return func(name string) (bool, time.Time) {
		at, missing := since[name]
		at = at.Add(policyGone)
		return !missing || !at.After(now), at
	}
}

// planning is a plan that is being made.
type planning struct {
	*peerState
	peerInput
	out     peerPlan
	byName  map[string]*policyRule
	known   map[peering.ClusterID]*v1alpha1.ForeignCluster
	decided []v1alpha1.ForeignCluster
	// tried is the tries that policies want, ready those that are due.
	tried map[tryKey]bool
	ready []readyDial
	// forgottenPeers and awayPeers are forgottenHere and away of the next state.
	forgottenPeers map[peering.ClusterID]bool
	awayPeers      map[peering.ClusterID]time.Time
	// first counts, by policy, the clusters that it trusts, or tries, on first use.
	first map[string]int
}

type readyDial struct {
	peerDial
	at time.Time
}

// plan decides what to do now. A dial that it asks for counts as running until done.
func (s *peerState) plan(v peerInput) peerPlan {
	if s.limit == nil {
		s.tries, s.places, s.limit = map[tryKey]*peerTry{}, map[string]time.Time{}, rate.NewLimiter(callRate, callBurst)
	}
	p := &planning{
		peerState: s, peerInput: v,
		out:    peerPlan{peers: map[string]int{}, waiting: map[string]int{}, full: map[string]bool{}, lapsed: map[string]string{}},
		byName: make(map[string]*policyRule, len(v.rules)), known: store.KnownAll(v.all), decided: trustedAmong(v.all),
		tried: map[tryKey]bool{}, forgottenPeers: map[peering.ClusterID]bool{}, awayPeers: map[peering.ClusterID]time.Time{}, first: firstUsed(v.all),
	}
	for i := range v.rules {
		p.byName[v.rules[i].name] = &v.rules[i]
	}
	for key, t := range s.tries {
		if t.running && key.by == byFirstUse {
			p.first[key.policy]++
		}
	}
	for i := range v.all {
		fc := &v.all[i]
		id := peering.ClusterID(fc.Spec.ClusterID)
		switch {
		case !fc.DeletionTimestamp.IsZero():
		case store.PeerOfPolicy(fc) != "" && !store.Pending(fc):
			p.planPeer(fc, id)
		case id != v.self && store.Pending(fc) && p.known[id] == fc:
			p.planPending(fc, id)
		}
	}
	for _, rule := range v.rules {
		for _, text := range rule.ClusterIDs {
			id := peering.ClusterID(text)
			// If that cluster dials first, it would be refused because a policy forgot it.
			if forgotten, byPerson := v.forgotten(id); forgotten && !byPerson && !slices.Contains(p.out.lift, id) {
				p.out.lift = append(p.out.lift, id)
			}
		}
	}
	p.planDials()
	s.forgottenHere, s.away = p.forgottenPeers, p.awayPeers
	p.reportChanges()
	maps.DeleteFunc(s.places, func(_ string, at time.Time) bool { return !at.After(v.now) })
	maps.DeleteFunc(s.tries, func(key tryKey, t *peerTry) bool {
		// A cluster that comes and goes is not dialled more often.
		return !p.tried[key] && !t.running && (v.now.Sub(t.again) > longPause || len(s.tries) > maxTries)
	})
	slices.Sort(p.out.letGo)
	return p.out
}

// reportChanges finds the clusters whose Attempt changed. The outcome of tries that no policy wants any more is
// dropped.
func (p *planning) reportChanges() {
	for key, t := range p.tries {
		if !p.tried[key] && !t.running {
			t.outcome = trust.Attempt{}
		}
	}
	was := p.reported
	p.reported = p.attempts()
	for _, now := range []map[peering.ClusterID]trust.Attempt{was, p.reported} {
		for id := range now {
			if fc := p.known[id]; fc != nil && was[id] != p.reported[id] && !slices.Contains(p.out.changed, fc.Name) {
				p.out.changed = append(p.out.changed, fc.Name)
			}
		}
	}
	slices.Sort(p.out.changed)
}

// next schedules the next plan.
func (p *planning) next(at time.Time) {
	if wait := max(at.Sub(p.now), time.Millisecond); p.out.again == 0 || wait < p.out.again {
		p.out.again = wait
	}
}

// isFull reports whether a policy trusts as many on first use as it may.
func (p *planning) isFull(policy string, by basis) bool {
	full := by == byFirstUse && p.first[policy] >= maxFirstUse
	p.out.full[policy] = p.out.full[policy] || full
	return full
}

// planPeer decides whether a policy's peer stays.
func (p *planning) planPeer(fc *v1alpha1.ForeignCluster, id peering.ClusterID) {
	name := store.PeerOfPolicy(fc)
	rule, ending := p.byName[name], len(p.out.letGo)
	switch {
	case fc.Spec.Decision == v1alpha1.DecisionDenied: // an administrator decided
	case rule == nil:
		if gone, at := p.gone(name); gone {
			p.out.letGo = append(p.out.letGo, fc.Name)
		} else {
			p.next(at)
		}
	case !rule.stillTrusts(fc):
		p.out.letGo = append(p.out.letGo, fc.Name)
	default:
		p.out.peers[name]++
		if !isAway(fc) {
			break
		}
		since, known := p.away[id]
		if !known {
			since = p.now
		}
		p.awayPeers[id] = since
		switch at, why := lapses(fc, since, p.asked[fc.Name]); {
		case why == "":
		case at.After(p.now):
			p.next(at)
		default:
			p.out.letGo = append(p.out.letGo, fc.Name)
			p.out.lapsed[fc.Name] = why
		}
	}
	if fc.Annotations[v1alpha1.AnnotationAutomaticEnded] != "" && len(p.out.letGo) == ending {
		p.out.stay = append(p.out.stay, fc.Name)
	}
}

// planPending decides whether policies trust, or dial, a cluster that is not decided yet.
func (p *planning) planPending(fc *v1alpha1.ForeignCluster, id peering.ClusterID) {
	forgotten, byPerson := p.forgotten(id)
	options := optionsFor(p.rules, fc, p.decided)
	if len(options) == 0 {
		return
	}
	if byPerson {
		p.forgottenPeers[id] = true
		return
	}
	if forgotten && options[0].problem.Reason != trust.ReasonImpostor {
		p.out.lift = append(p.out.lift, id)
	}
	p.out.waiting[options[0].rule.name]++
	if approval, ok := approves(options, fc); ok && !p.isFull(approval.policy, approval.by) {
		if approval.by == byFirstUse {
			p.first[approval.policy]++
		}
		p.out.approve = append(p.out.approve, approval)
		p.decided = append(p.decided, *fc)
		return
	}
	for _, o := range options {
		p.tried[tryKey{id, o.rule.name, o.by}] = true
	}
	var best *readyDial
	for _, o := range options {
		key := tryKey{id, o.rule.name, o.by}
		try := p.try(key, o.rule.revision, p.peerInput)
		if o.problem.Reason == "" && !try.running && p.isFull(o.rule.name, o.by) {
			o.problem = firstUseFull()
		}
		switch {
		case o.problem.Reason != "":
			if o.problem.Reason == trust.ReasonImpostor && try.outcome.Reason != trust.ReasonImpostor {
				p.out.declined = append(p.out.declined, peerRefusal{fc.Name, o.rule.name, o.problem.Message})
			}
			try.outcome = o.problem
		case len(o.endpoints) == 0:
		case try.running:
			return
		case try.again.After(p.now):
			p.next(try.again)
		case best == nil:
			best = &readyDial{peerDial{key, fc.Name, endpointsOf(o.endpoints, try.tries)}, try.again}
		}
	}
	if best != nil {
		p.ready = append(p.ready, *best)
	}
}

// planDials decides which of the clusters that are ready to dial now.
func (p *planning) planDials() {
	// Any host can invent clusters that a group or first use is tried with, at the addresses of others: listed
	// clusters do not wait behind them.
	slices.SortFunc(p.ready, func(a, b readyDial) int {
		return cmp.Or(cmp.Compare(a.key.by.rank(), b.key.by.rank()), a.at.Compare(b.at), cmp.Compare(a.key.id, b.key.id))
	})
	for _, d := range p.ready {
		if p.running == maxCalls {
			break // one of them wakes it
		}
		if free := p.free(d.endpoints); free.After(p.now) {
			p.next(free)
			continue
		}
		if p.isFull(d.key.policy, d.key.by) {
			continue
		}
		if !p.limit.AllowN(p.now, 1) {
			p.next(p.now.Add(time.Second))
			break
		}
		for _, e := range d.endpoints {
			p.places[e] = p.now.Add(endpointPause)
		}
		p.running++
		p.tries[d.key].running = true
		if d.key.by == byFirstUse {
			p.first[d.key.policy]++
		}
		p.out.dial = append(p.out.dial, d.peerDial)
	}
}

// firstUsed counts, by policy, the clusters that it trusts on first use.
func firstUsed(all []v1alpha1.ForeignCluster) map[string]int {
	out := map[string]int{}
	for i := range all {
		if fc := &all[i]; fc.Annotations[v1alpha1.AnnotationAutomaticBy] == string(byFirstUse) && !store.Pending(fc) && fc.Spec.Decision != v1alpha1.DecisionDenied {
			out[store.PeerOfPolicy(fc)]++
		}
	}
	return out
}

// isAway reports whether a peer is neither found nor connected, without a contract.
func isAway(fc *v1alpha1.ForeignCluster) bool {
	return len(fc.Status.Sightings) == 0 && (fc.Status.Role == "" || fc.Status.Role == v1alpha1.RoleNone) &&
		!meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected)
}

// lapses returns from when a policy's peer that has been away since a time need no longer be known, and why; empty
// means never. asked means that an administrator's PeeringRequest asks it.
//
// A peer that no longer trusts this cluster has left for good: an uninstall ends like that, and it has another ID
// if it comes back. Others that were not listed by name may not come back; if they do, they are trusted as before.
func lapses(fc *v1alpha1.ForeignCluster, away time.Time, asked bool) (at time.Time, why string) {
	c := trust.TrustedOf(fc)
	switch {
	case c != nil && c.Status == metav1.ConditionFalse && (c.Reason == trust.ReasonForgottenByPeer || c.Reason == store.RevokedByPeer):
		if c.LastTransitionTime.After(away) {
			away = c.LastTransitionTime.Time
		}
		return away.Add(leftAfter), "it trusts this cluster no longer and is not found any more"
	case !asked && fc.Annotations[v1alpha1.AnnotationAutomaticBy] != string(byClusterID):
		return away.Add(vanishedAfter), fmt.Sprintf("it is neither found nor connected for %s, and nothing is agreed with it", vanishedAfter)
	}
	return time.Time{}, ""
}

// firstUseFull is the attempt of a policy that has reached the limit of trust on first use.
func firstUseFull() trust.Attempt {
	return trust.Attempt{Reason: "FirstUseFull", Message: fmt.Sprintf("the policy trusts %d clusters on first use, which is the limit: delete those that are not wanted, list others by their IDs, or use a group", maxFirstUse)}
}

// free returns from when all endpoints may be dialled.
func (s *peerState) free(endpoints []string) time.Time {
	var at time.Time
	for _, e := range endpoints {
		if s.places[e].After(at) {
			at = s.places[e]
		}
	}
	return at
}

// try returns the record of a try. The cluster with the lower ID dials at once, the other one leaves it a few
// seconds. After a change of the policy it starts again.
func (s *peerState) try(key tryKey, revision string, v peerInput) *peerTry {
	t := s.tries[key]
	if t == nil || !t.running && t.revision != revision {
		wait := v.random(firstSpread)
		if v.self > key.id {
			wait = laterAfter + v.random(laterSpread)
		}
		t = &peerTry{revision: revision, again: v.now.Add(wait)}
		s.tries[key] = t
	}
	return t
}

// retrySoon schedules an early try with a cluster that just began to prove what a policy trusts it for, and had
// refused that before. The cluster may refuse that proof for another reason.
func (s *peerState) retrySoon(id peering.ClusterID, by basis, now time.Time, random func(time.Duration) time.Duration) (sooner bool) {
	for key, t := range s.tries {
		if key.id != id || key.by != by {
			continue
		}
		switch t.outcome.Reason {
		case trust.ReasonGroupUnknown, trust.ReasonDeniedByPeer, trust.ReasonForgottenByPeer:
			// The other side's try may succeed meanwhile.
			if soon := now.Add(laterAfter + random(laterSpread)); soon.Before(t.again) {
				t.again, t.pause, sooner = soon, 0, true
			}
		}
	}
	return sooner
}

// done records the outcome of a try, and reports whether that is news. That a group is unknown there is news the
// second time: a cluster that starts may not have read its policies yet.
func (s *peerState) done(key tryKey, err error, now time.Time, random func(time.Duration) time.Duration) (outcome trust.Attempt, news bool) {
	s.running--
	t := s.tries[key]
	if t == nil {
		return outcome, false
	}
	t.running = false
	t.tries++
	if err == nil {
		news = t.outcome != outcome
		// Its ForeignCluster shows it in a moment.
		t.outcome, t.unknown, t.pause, t.again = trust.Attempt{}, 0, 0, now.Add(trust.RetryMax)
		return outcome, news
	}
	outcome, pause := outcomeOf(key, err)
	news = t.outcome != outcome
	if outcome.Reason != trust.ReasonGroupUnknown {
		t.unknown = 0
	} else if t.unknown++; t.unknown <= 2 {
		news = t.unknown == 2
		pause = min(pause, unknownPause)
	}
	if pause == 0 {
		t.pause = min(max(2*t.pause, trust.RetryMin), retryMax)
		pause = t.pause
	}
	t.again = now.Add(pause + random(pause/2))
	t.outcome = outcome
	return outcome, news
}

// attempt is why a cluster is not trusted yet; empty if it was not tried.
func (s *peerState) attempt(id peering.ClusterID) trust.Attempt { return s.attempts()[id] }

// attempts is attempt for all clusters that have one.
func (s *peerState) attempts() map[peering.ClusterID]trust.Attempt {
	out, of := map[peering.ClusterID]trust.Attempt{}, map[peering.ClusterID]tryKey{}
	for key, t := range s.tries {
		first, known := of[key.id]
		if t.outcome.Reason != "" && (!known || key.policy < first.policy || key.policy == first.policy && key.by < first.by) {
			of[key.id], out[key.id] = key, t.outcome
		}
	}
	for id := range s.forgottenHere {
		out[id] = trust.Attempt{Reason: "ForgottenHere", Message: "a policy would peer with it, and an administrator of this cluster forgot it: if it is to be trusted again, join it with a token of either side, or with `entente join` and one of its endpoints"}
	}
	return out
}

// option is one way for a policy to trust a cluster.
type option struct {
	rule      *policyRule
	by        basis
	endpoints []string
	problem   trust.Attempt
}

// optionsFor returns how policies may come to trust a cluster that is not decided yet, the surest way first: its ID
// is listed, it knows a secret, it is there. others is the trusted clusters.
func optionsFor(rules []policyRule, fc *v1alpha1.ForeignCluster, others []v1alpha1.ForeignCluster) []option {
	var out []option
	for i := range rules {
		if rule := &rules[i]; rule.lists(fc.Spec.ClusterID) {
			// A listed ID suffices.
			return []option{{rule: rule, by: byClusterID, endpoints: rule.endpoints(fc)}}
		}
	}
	for i := range rules {
		if rule := &rules[i]; rule.Group != nil {
			if at := rule.endpoints(fc); len(at) > 0 {
				out = append(out, option{rule: rule, by: groupBasis(rule.Group.Name), endpoints: at, problem: rule.problem})
			}
		}
	}
	if !slices.ContainsFunc(rules, func(rule policyRule) bool { return rule.TrustOnFirstUse }) {
		return out
	}
	// The condition is set only by a later reconciliation of what discovery finds.
	takes := takesAnothers(fc, nil, others)
	if c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionImpostor); takes == nil && c != nil && c.Status == metav1.ConditionTrue {
		takes = c
	}
	for i := range rules {
		if rule := &rules[i]; rule.TrustOnFirstUse {
			if at := rule.endpoints(fc); len(at) > 0 {
				o := option{rule: rule, by: byFirstUse, endpoints: at}
				if takes != nil {
					o.problem = imitates(rule.name, takes.Message)
				}
				out = append(out, o)
			}
		}
	}
	return out
}

// imitates is the attempt for a cluster that a policy does not trust on first use, as it takes the name or the
// address of another; why says which.
func imitates(policy, why string) trust.Attempt {
	return trust.Attempt{Reason: trust.ReasonImpostor, Message: fmt.Sprintf("the policy %s does not trust it on first use: %s. If it is the cluster that it says, join it with a token, or compare its code with its administrator and `entente approve` it; else `entente deny` it", policy, why)}
}

// imitationError is why a call to a cluster that takes another's name or address is refused.
type imitationError struct{ why string }

func (e *imitationError) Error() string { return e.why }

// trustedAmong returns those of all that are trusted, or will be.
func trustedAmong(all []v1alpha1.ForeignCluster) []v1alpha1.ForeignCluster {
	return slices.DeleteFunc(slices.Clone(all), func(fc v1alpha1.ForeignCluster) bool {
		return fc.Spec.Decision == v1alpha1.DecisionDenied || fc.Spec.TrustBundle == "" && fc.Spec.Decision != v1alpha1.DecisionApproved
	})
}

// takesAnothers checks whether a cluster that is not decided yet takes the name or the address of a trusted one: by
// what was found of it, by its introduction, or by info, which it sends now.
func takesAnothers(fc *v1alpha1.ForeignCluster, info *identity.ClusterInfo, others []v1alpha1.ForeignCluster) *metav1.Condition {
	reported := v1alpha1.Sighting{Endpoints: fc.Spec.Endpoints}
	if i := fc.Status.Introduction; i != nil {
		reported.Name = i.Name
	}
	all := append(slices.Clone(fc.Status.Sightings), reported)
	if info != nil {
		all = append(all, v1alpha1.Sighting{Name: info.Name, Endpoints: info.Endpoints})
	}
	return trust.Impostor(fc, all, others)
}

// approves reports whether a cluster that introduced itself is trusted for that: the introduction proved its ID,
// and nothing else.
func approves(options []option, fc *v1alpha1.ForeignCluster) (peerApproval, bool) {
	if fc.Status.Introduction == nil {
		return peerApproval{}, false
	}
	for _, o := range options {
		if o.problem.Reason == "" && (o.by == byClusterID || o.by == byFirstUse) {
			return peerApproval{fc.Name, o.rule.name, o.by}, true
		}
	}
	return peerApproval{}, false
}

// outcomeOf is the attempt that a failed try results in, and how long to wait before the next; 0 means a little
// longer than the last time.
func outcomeOf(key tryKey, err error) (trust.Attempt, time.Duration) {
	what := "policy " + key.policy + " peers with it "
	group, isGroup := strings.CutPrefix(string(key.by), string(byGroup))
	switch {
	case isGroup:
		what += "by the group " + group
	case key.by == byClusterID:
		what += "as its ID is listed"
	default:
		what += "as it was found"
	}
	if e, ok := errors.AsType[*imitationError](err); ok {
		return imitates(key.policy, e.why), longPause
	}
	e := peering.AsError(err)
	switch e.Reason { //nolint:exhaustive // the others are of tries of any kind
	case peering.ReasonTrustForgotten:
		return trust.Attempt{Reason: trust.ReasonForgottenByPeer, Message: what + ", and it refuses: " + trust.ForgottenByPeer}, longPause
	case peering.ReasonTrustDenied:
		return trust.Attempt{Reason: trust.ReasonDeniedByPeer, Message: what + ", and an administrator there denied this cluster: have it approved there, or join with a token"}, longPause
	case peering.ReasonGroupUnknown:
		return trust.Attempt{Reason: trust.ReasonGroupUnknown, Message: fmt.Sprintf("%s, and no policy there has that group: its administrator has to write spec.automatic.group.name: %s into a PeeringPolicy, with the same secret", what, group)}, retryMax
	case peering.ReasonGroupSecretMismatch:
		return trust.Attempt{Reason: "GroupSecretMismatch", Message: what + ", and the secrets of the two sides differ, or the connection is intercepted: compare the Secrets that spec.automatic.group.secretRef names here and there. It is tried again at once when the Secret here changes"}, longPause
	case peering.ReasonIntroductionsPending, peering.ReasonRateLimited, peering.ReasonTooManyCalls:
		return trust.Attempt{Reason: e.Reason.Condition(), Message: what + ": " + peering.Text(e.Error(), maxOutcome)}, max(e.RetryAfter, trust.RetryMax)
	}
	return trust.Attempt{Reason: e.Reason.Condition(), Message: what + ": " + peering.Text(e.Error(), maxOutcome)}, 0
}

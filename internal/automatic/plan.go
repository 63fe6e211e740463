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

// basis is why a policy trusts a cluster, as v1alpha1.AnnotationAutomaticBy says it. A new
// one needs its place in rank, policyRule.trusts, optionsFor and approves.
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
	return 1 // a group
}

// policyRule is a PeeringPolicy with spec.automatic.
type policyRule struct {
	name string
	v1alpha1.AutomaticPeering
	// revision changes with all that may change what a try comes to: the policy and the
	// group's secret.
	revision string
	// problem says why its group cannot be used; empty if it can.
	problem trust.Attempt
}

func (p *policyRule) lists(id string) bool { return slices.Contains(p.ClusterIDs, id) }

func (p *policyRule) sources() []v1alpha1.Found {
	if len(p.Sources) > 0 {
		return p.Sources
	}
	return []v1alpha1.Found{v1alpha1.FoundLAN, v1alpha1.FoundDNS}
}

// stands says whether it trusts a cluster for the reason for which it was trusted.
func (p *policyRule) stands(fc *v1alpha1.ForeignCluster) bool {
	return p.trusts(peering.ClusterID(fc.Spec.ClusterID), basis(fc.Annotations[v1alpha1.AnnotationAutomaticBy]))
}

// trusts says whether it trusts a cluster for a reason.
func (p *policyRule) trusts(id peering.ClusterID, by basis) bool {
	switch {
	case by == byClusterID:
		return p.lists(string(id))
	case by == byFirstUse:
		return p.FirstUse
	case strings.HasPrefix(string(by), string(byGroup)):
		return p.Group != nil && groupBasis(p.Group.Name) == by
	}
	return false
}

// endpoints returns where a cluster is found by the policy's sources, of each place in
// turn.
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

// peerView is what a plan follows from.
type peerView struct {
	self peering.ClusterID
	// rules is by name.
	rules []policyRule
	all   []v1alpha1.ForeignCluster
	// gone says of a policy that does not peer by itself whether that is so for certain,
	// and else when.
	gone func(policy string) (bool, time.Time)
	// forgotten says whether a cluster was forgotten here, and whether by a person.
	forgotten func(peering.ClusterID) (forgotten, byPerson bool)
	// asked is names of ForeignClusters that a person's PeeringRequest asks.
	asked map[string]bool
	now   time.Time
	// random returns a duration below most.
	random func(most time.Duration) time.Duration
}

// peerPlan is what is to be done.
type peerPlan struct {
	dial []peerDial
	// approve is clusters that introduced themselves.
	approve []peerApproval
	// declined is clusters that policies do not trust on first use, as they imitate others.
	declined []peerRefusal
	// letGo is names of ForeignClusters that no policy stands for any more.
	letGo []string
	// lapsed says of those for which a policy still stands why they are let go.
	lapsed map[string]string
	// stay is names of those that were about to be let go, and are not any more: who
	// forgets one from now on is a person.
	stay []string
	// lift is clusters that a policy forgot and that one peers with again.
	lift []peering.ClusterID
	// changed is names of ForeignClusters of which Attempt returns something else.
	changed []string
	// peers and waiting count by policy.
	peers, waiting map[string]int
	// full is policies that trust no more on first use.
	full map[string]bool
	// again is when to look again; 0 is never.
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

// tryKey is what is tried: another reason is another try.
type tryKey struct {
	id     peering.ClusterID
	policy string
	by     basis
}

// peerTry is what is remembered of trying.
type peerTry struct {
	revision string
	running  bool
	// again is not before when to try, pause how long was waited before.
	again time.Time
	pause time.Duration
	// tries is how many ended, unknown how many of the last did as no policy there has the
	// group.
	tries, unknown int
	outcome        trust.Attempt
}

// peerState is what is remembered from one look to the next.
type peerState struct {
	tries map[tryKey]*peerTry
	// places is when an endpoint may be dialled again, whoever is said to be there.
	places map[string]time.Time
	// missing is since when policies are gone that stand behind peers.
	missing map[string]time.Time
	// alone is the clusters that policies would peer with and a person forgot here.
	alone map[peering.ClusterID]bool
	// said is what there was to say of clusters with the last plan.
	said map[peering.ClusterID]trust.Attempt
	// away is since when policies' peers are neither found nor connected, and nothing is
	// agreed with them.
	away    map[peering.ClusterID]time.Time
	running int
	limit   *rate.Limiter
}

// goneFor says of policies that made something whether they do not peer by themselves any
// more. One that is missing may be about to be made again. exists says which there are.
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

// planning is the making of a plan.
type planning struct {
	*peerState
	peerView
	out     peerPlan
	byName  map[string]*policyRule
	known   map[peering.ClusterID]*v1alpha1.ForeignCluster
	decided []v1alpha1.ForeignCluster
	// tried is the tries that policies want, ready those that are due.
	tried map[tryKey]bool
	ready []readyDial
	// forgottenPeers and awayPeers are alone and away of the next state.
	forgottenPeers map[peering.ClusterID]bool
	awayPeers      map[peering.ClusterID]time.Time
	// first counts by policy whom it trusts, or tries, on first use.
	first map[string]int
}

type readyDial struct {
	peerDial
	at time.Time
}

// plan decides what to do now. What it says to dial counts as running until done.
func (s *peerState) plan(v peerView) peerPlan {
	if s.limit == nil {
		s.tries, s.places, s.limit = map[tryKey]*peerTry{}, map[string]time.Time{}, rate.NewLimiter(callRate, callBurst)
	}
	p := &planning{
		peerState: s, peerView: v,
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
			// One that dials this cluster first is refused for what a policy ended.
			if forgotten, byPerson := v.forgotten(id); forgotten && !byPerson && !slices.Contains(p.out.lift, id) {
				p.out.lift = append(p.out.lift, id)
			}
		}
	}
	p.planDials()
	s.alone, s.away = p.forgottenPeers, p.awayPeers
	p.say()
	maps.DeleteFunc(s.places, func(_ string, at time.Time) bool { return !at.After(v.now) })
	maps.DeleteFunc(s.tries, func(key tryKey, t *peerTry) bool {
		// Who comes and goes is not dialled more often for it.
		return !p.tried[key] && !t.running && (v.now.Sub(t.again) > longPause || len(s.tries) > maxTries)
	})
	slices.Sort(p.out.letGo)
	return p.out
}

// say finds out of which clusters there is something else to say than before. What came of
// tries that no policy wants any more is not said.
func (p *planning) say() {
	for key, t := range p.tries {
		if !p.tried[key] && !t.running {
			t.outcome = trust.Attempt{}
		}
	}
	was := p.said
	p.said = p.attempts()
	for _, now := range []map[peering.ClusterID]trust.Attempt{was, p.said} {
		for id := range now {
			if fc := p.known[id]; fc != nil && was[id] != p.said[id] && !slices.Contains(p.out.changed, fc.Name) {
				p.out.changed = append(p.out.changed, fc.Name)
			}
		}
	}
	slices.Sort(p.out.changed)
}

// next has the plan made again at a time.
func (p *planning) next(at time.Time) {
	if wait := max(at.Sub(p.now), time.Millisecond); p.out.again == 0 || wait < p.out.again {
		p.out.again = wait
	}
}

// isFull says whether a policy trusts as many on first use as it may.
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
	case fc.Spec.Decision == v1alpha1.DecisionDenied: // a person's word
	case rule == nil:
		if gone, at := p.gone(name); gone {
			p.out.letGo = append(p.out.letGo, fc.Name)
		} else {
			p.next(at)
		}
	case !rule.stands(fc):
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

// planPending decides whether policies trust, or dial, a cluster that nobody decided about.
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
		try := p.try(key, o.rule.revision, p.peerView)
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

// planDials decides whom of those that are ready to dial now.
func (p *planning) planDials() {
	// Anybody invents clusters that a group or first use is tried with, and at the addresses
	// of others: those that are listed do not wait behind them.
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

// firstUsed counts by policy whom it trusts on first use.
func firstUsed(all []v1alpha1.ForeignCluster) map[string]int {
	out := map[string]int{}
	for i := range all {
		if fc := &all[i]; fc.Annotations[v1alpha1.AnnotationAutomaticBy] == string(byFirstUse) && !store.Pending(fc) && fc.Spec.Decision != v1alpha1.DecisionDenied {
			out[store.PeerOfPolicy(fc)]++
		}
	}
	return out
}

// isAway says whether a peer is neither found nor connected, and nothing is agreed with it.
func isAway(fc *v1alpha1.ForeignCluster) bool {
	return len(fc.Status.Sightings) == 0 && (fc.Status.Role == "" || fc.Status.Role == v1alpha1.RoleNone) &&
		!meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected)
}

// lapses returns from when a policy's peer that is away since a time need not be known any
// more, and why; empty is never. asked says that a person asks it for something.
//
// One that trusts this cluster no longer left for good: an uninstall ends like that, and it
// has another ID if it comes back. Of others that were not listed by name nobody says that
// they come back; if they do, they are trusted as before.
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

// firstUseFull is what there is to say of a policy that trusts as many on first use as it may.
func firstUseFull() trust.Attempt {
	return trust.Attempt{Reason: "FirstUseFull", Message: fmt.Sprintf("the policy trusts %d clusters on first use, and no more: delete those that are not wanted, list others by their IDs, or use a group", maxFirstUse)}
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

// try returns what is remembered of a try. The cluster with the lower ID dials at once,
// the other one leaves it a few seconds. After a change it is as new.
func (s *peerState) try(key tryKey, revision string, v peerView) *peerTry {
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

// heard has a cluster tried again soon that just began to prove what a policy trusts it for,
// and had refused that before. What it is told by its own proof may be another reason.
func (s *peerState) heard(id peering.ClusterID, by basis, now time.Time, random func(time.Duration) time.Duration) (sooner bool) {
	for key, t := range s.tries {
		if key.id != id || key.by != by {
			continue
		}
		switch t.outcome.Reason {
		case trust.ReasonGroupUnknown, trust.ReasonDeniedByPeer, trust.ReasonForgottenByPeer:
			// Its own try may come to something meanwhile.
			if soon := now.Add(laterAfter + random(laterSpread)); soon.Before(t.again) {
				t.again, t.pause, sooner = soon, 0, true
			}
		}
	}
	return sooner
}

// done records how a try went, and says whether that is news. That a group is unknown there
// is news the second time: a cluster that starts may not have read its policies yet.
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

// attempt is what there is to say of a cluster that is not trusted yet; empty if it was
// not tried.
func (s *peerState) attempt(id peering.ClusterID) trust.Attempt { return s.attempts()[id] }

// attempts is attempt of all of which there is something to say.
func (s *peerState) attempts() map[peering.ClusterID]trust.Attempt {
	out, of := map[peering.ClusterID]trust.Attempt{}, map[peering.ClusterID]tryKey{}
	for key, t := range s.tries {
		first, known := of[key.id]
		if t.outcome.Reason != "" && (!known || key.policy < first.policy || key.policy == first.policy && key.by < first.by) {
			of[key.id], out[key.id] = key, t.outcome
		}
	}
	for id := range s.alone {
		out[id] = trust.Attempt{Reason: "ForgottenHere", Message: "a policy would peer with it, and an administrator of this cluster forgot it: if it is to be trusted again, join it with a token of either side, or with `entente join` and one of its endpoints"}
	}
	return out
}

// option is one way in which a policy may come to trust a cluster.
type option struct {
	rule      *policyRule
	by        basis
	endpoints []string
	problem   trust.Attempt
}

// optionsFor returns how policies may come to trust a cluster that nobody decided about,
// the surest way first: its ID is listed, it knows a secret, it is there. others is those that
// are trusted.
func optionsFor(rules []policyRule, fc *v1alpha1.ForeignCluster, others []v1alpha1.ForeignCluster) []option {
	var out []option
	for i := range rules {
		if rule := &rules[i]; rule.lists(fc.Spec.ClusterID) {
			// That is all there is to know.
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
	if !slices.ContainsFunc(rules, func(rule policyRule) bool { return rule.FirstUse }) {
		return out
	}
	// The condition comes only with a later look at what discovery finds.
	takes := takesAnothers(fc, nil, others)
	if c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionImpostor); takes == nil && c != nil && c.Status == metav1.ConditionTrue {
		takes = c
	}
	for i := range rules {
		if rule := &rules[i]; rule.FirstUse {
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

// imitates is what there is to say of a cluster that a policy does not trust on first use, as
// it takes the name or the address of another; why says which.
func imitates(policy, why string) trust.Attempt {
	return trust.Attempt{Reason: trust.ReasonImpostor, Message: fmt.Sprintf("the policy %s does not trust it on first use: %s. If it is the cluster that it says, join it with a token, or compare its code with its administrator and `entente approve` it; else `entente deny` it", policy, why)}
}

// imitationError is why a call of a cluster came to nothing that takes another's name or
// address.
type imitationError struct{ why string }

func (e *imitationError) Error() string { return e.why }

// trustedAmong returns those of all that are trusted, or are to be.
func trustedAmong(all []v1alpha1.ForeignCluster) []v1alpha1.ForeignCluster {
	return slices.DeleteFunc(slices.Clone(all), func(fc v1alpha1.ForeignCluster) bool {
		return fc.Spec.Decision == v1alpha1.DecisionDenied || fc.Spec.TrustBundle == "" && fc.Spec.Decision != v1alpha1.DecisionApproved
	})
}

// takesAnothers says whether a cluster that nobody decided about takes the name or the
// address of a trusted one: by what was found of it, by what it said when it introduced
// itself, or by info, what it says now.
func takesAnothers(fc *v1alpha1.ForeignCluster, info *identity.ClusterInfo, others []v1alpha1.ForeignCluster) *metav1.Condition {
	said := v1alpha1.Sighting{Endpoints: fc.Spec.Endpoints}
	if i := fc.Status.Introduction; i != nil {
		said.Name = i.Name
	}
	all := append(slices.Clone(fc.Status.Sightings), said)
	if info != nil {
		all = append(all, v1alpha1.Sighting{Name: info.Name, Endpoints: info.Endpoints})
	}
	return trust.Impostor(fc, all, others)
}

// approves says whether a cluster that introduced itself is trusted for that: it proved
// its ID by it, and nothing else.
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

// outcomeOf is what a failed try says to people, and how long to wait before the
// next; 0 is a little longer than the last time.
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
		return trust.Attempt{Reason: "GroupSecretMismatch", Message: what + ", and the secrets of the two sides differ, or somebody is in between: compare the Secrets that spec.automatic.group.secretRef names here and there. It is tried again at once when the Secret here changes"}, longPause
	case peering.ReasonIntroductionsPending, peering.ReasonRateLimited, peering.ReasonTooManyCalls:
		return trust.Attempt{Reason: e.Reason.Condition(), Message: what + ": " + peering.Text(e.Error(), maxOutcome)}, max(e.RetryAfter, trust.RetryMax)
	}
	return trust.Attempt{Reason: e.Reason.Condition(), Message: what + ": " + peering.Text(e.Error(), maxOutcome)}, 0
}

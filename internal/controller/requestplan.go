package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

const (
	// backdate is how far a contract begins before it is signed, so that a
	// provider whose clock is a little behind takes it up at once.
	backdate = time.Minute
	// leftOut is for how long a provider that ended a contract is not asked again by
	// a PeeringRequest that can choose.
	leftOut = 10 * time.Minute
)

// ConditionRenewed tells of a PeeringRequest whether its contract was renewed when
// that was last due.
const ConditionRenewed = "Renewed"

// reasonContracted is why a PeeringRequest is Accepted: its contract is as it asks.
const reasonContracted = "Contracted"

// course is what is to be done for a PeeringRequest.
type course uint8

const (
	// courseHold: nothing, until something changes.
	courseHold course = iota
	// courseAsk: ask for a contract.
	courseAsk
	// courseAmend: ask for the next revision, because the spec changed.
	courseAmend
	// courseRenew: ask for the next revision, because the contract nears its end.
	courseRenew
)

// heldContract is the contract of a PeeringRequest.
type heldContract struct {
	stored *v1alpha1.Contract
	state  peering.Contract
	terms  peering.Terms
}

// requestPlan is what is to be done for a PeeringRequest.
type requestPlan struct {
	course course
	// accepted says how things stand where there is nothing to do.
	accepted metav1.Condition
	// renewal says that the contract should be renewed now, whatever else is done.
	renewal bool
	// after is when to look again; zero is when something changes.
	after time.Duration
}

// planRequest decides what is to be done for a PeeringRequest that has a contract, or
// had one, or has none yet. peerGone says that the contract's ForeignCluster is
// gone or about to go; standing names a virtual node that is to go before another
// can come.
func planRequest(s *v1alpha1.PeeringRequest, h *heldContract, peerGone bool, standing string, now time.Time) requestPlan {
	if h == nil {
		return requestPlan{course: courseAsk}
	}
	hold := func(status metav1.ConditionStatus, reason, format string, args ...any) requestPlan {
		return requestPlan{accepted: condition(v1alpha1.ConditionAccepted, status, reason, fmt.Sprintf(format, args...))}
	}
	name, chooses := h.stored.Name, s.Spec.ClusterSelector != nil
	switch h.state.State {
	case peering.Closed:
		switch {
		case endedByPeer(h.stored) && !chooses:
			return hold(metav1.ConditionFalse, reasonEndedByProvider, "the provider ended contract %s; delete this PeeringRequest, and create another to ask again", name)
		case h.state.Reason == peering.EndedHere && chooses && !peerGone && !s.LeavesOut(h.stored.Spec.ForeignCluster):
			return hold(metav1.ConditionFalse, "EndedHere", "this cluster ended contract %s; delete this PeeringRequest, and create another to ask again", name)
		case h.state.Reason == peering.EndedByExpiry && s.Spec.Renewal == v1alpha1.RenewalNever:
			return hold(metav1.ConditionFalse, "Expired", "contract %s reached its end and spec.renewal is Never; delete this PeeringRequest, and create another to ask again", name)
		case standing != "":
			return hold(metav1.ConditionFalse, "TakingDown", "contract %s is over and node %s is being taken down", name, standing)
		}
		return requestPlan{course: courseAsk}
	case peering.Draining:
		return hold(metav1.ConditionTrue, "Draining", "contract %s is ending: %s", name, h.state.Reason)
	case peering.Nothing, peering.Active:
	}
	if h.stored.Spec.Termination != "" {
		return hold(metav1.ConditionTrue, "Draining", "contract %s is ending", name)
	}
	plan := hold(metav1.ConditionTrue, reasonContracted, "contract %s was signed by both", name)
	if at := peering.RenewAt(h.state); s.Spec.Renewal != v1alpha1.RenewalNever && !at.IsZero() {
		plan.renewal, plan.after = !now.Before(at), max(at.Sub(now), 0)
	}
	switch {
	case store.Fulfils(h.stored).Generation != s.Generation:
		plan.course = courseAmend
	case plan.renewal && h.terms.Renewable:
		plan.course = courseRenew
	}
	return plan
}

// AskOf returns what a PeeringRequest asks for.
func AskOf(s *v1alpha1.PeeringRequest) (peering.Ask, error) {
	resources, err := store.Resources(s.Spec.Resources)
	if err != nil {
		return peering.Ask{}, peering.Errorf(peering.ReasonRequestInvalid, "spec.resources: %s", err)
	}
	ceiling, err := store.Money(s.Spec.PriceCeiling)
	if err != nil {
		return peering.Ask{}, peering.Errorf(peering.ReasonRequestInvalid, "spec.priceCeiling: %s", err)
	}
	ask := peering.Ask{
		RequestID: string(s.UID), Resources: resources, Network: s.Spec.Network != v1alpha1.NetworkNone, PriceCeiling: ceiling,
		NodeSelector: s.Spec.NodeSelector, StorageClasses: sortedNames(s.Spec.StorageClasses), RuntimeClasses: sortedNames(s.Spec.RuntimeClasses),
	}
	if s.Spec.Duration != nil {
		ask.Duration = s.Spec.Duration.Duration.Truncate(time.Second)
	}
	return ask, nil
}

func sortedNames(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// nextAsk returns what a PeeringRequest asks for the next revision of its contract.
func nextAsk(ask peering.Ask, s *v1alpha1.PeeringRequest, h *heldContract, why course, now time.Time) peering.Ask {
	ask.ContractID, ask.RequestID = h.stored.Name, h.terms.RequestID
	fulfils := store.Fulfils(h.stored)
	if why == courseRenew {
		// What there is lasts on: an ask for all that is free would get what happens to
		// be, and a changed spec was refused.
		if fulfils.Generation != s.Generation {
			ask.Resources = nil
		}
		if fulfils.Generation != s.Generation {
			ask.Network, ask.RuntimeClasses, ask.StorageClasses = h.terms.Network, h.terms.RuntimeClasses, nil
		}
	}
	ask.Resources = ask.Resources.KeepUnnamed(h.terms.Resources)
	// Who wants no renewal wants none by the way.
	if s.Spec.Renewal == v1alpha1.RenewalNever && ask.Duration == fulfils.Duration {
		ask.Duration = max(h.terms.NotAfter.Sub(beginOf(now)), time.Second)
	}
	return ask
}

// beginOf is when a contract begins that is signed now.
func beginOf(now time.Time) time.Time { return now.UTC().Add(-backdate).Truncate(time.Second) }

// endOf is when a contract ends that an offer makes when it is signed now.
func endOf(offer peering.Advertisement, now time.Time) time.Time {
	end := beginOf(now).Add(offer.Duration)
	if !offer.NotAfter.IsZero() && offer.NotAfter.Before(end) {
		end = offer.NotAfter
	}
	return end
}

// termsOf returns the contract that an offer makes when it is signed now.
func termsOf(offer peering.Advertisement, consumer, provider peering.Party, now time.Time) peering.Terms {
	return peering.Terms{
		ContractID: offer.ContractID, RequestID: offer.RequestID, Revision: offer.Revision, Previous: offer.PreviousHash,
		Consumer: consumer, Provider: provider, NotBefore: beginOf(now), NotAfter: endOf(offer, now), Clauses: offer.Clauses,
	}
}

// agreed is what an offer is compared with besides the ask.
type agreed struct {
	// held is the contract that the offer revises; nil for a new one.
	held *peering.Terms
	// price is what the newest contract of the request with this provider costs; nil if
	// there was none.
	price *peering.PriceList
}

// agreedBefore is what a request agreed on before with a provider, where it has no
// contract with it now. Prices that cannot be read were agreed on by nobody.
func agreedBefore(s *v1alpha1.PeeringRequest, fc *v1alpha1.ForeignCluster) agreed {
	if s.Status.Agreed == nil || s.Status.Agreed.ClusterID != fc.Spec.ClusterID {
		return agreed{}
	}
	price, err := store.Prices(s.Status.Agreed.Price)
	if err != nil {
		price = peering.PriceList{}
	}
	return agreed{price: &price}
}

// unacceptable says in what an offer is worse than the ask, or than what was agreed
// before; nil is in nothing. The provider said that it decided by the ask; this is
// where it is not believed.
func unacceptable(ask peering.Ask, offer peering.Advertisement, before agreed, now time.Time) error {
	worse := worse(ask, offer.Grant, before.held)
	if worse == "" {
		worse = short(ask, offer, before.held, now)
	}
	if worse != "" {
		return peering.Errorf(peering.ReasonContractMismatch, "the provider offers something else than was asked for: %s", worse)
	}
	dear := tooDear(ask.PriceCeiling, offer.Grant)
	if dear == "" && ask.PriceCeiling.IsNone() && before.price != nil {
		dear = dearer(*before.price, offer.Grant)
	}
	if dear != "" {
		return peering.Errorf(peering.ReasonPriceAboveCeiling, "the provider offers it at another price: %s", dear)
	}
	return nil
}

// worse says in what a grant is worse than the ask, or than the contract that it is
// to revise; empty is in nothing.
func worse(ask peering.Ask, g peering.Grant, held *peering.Terms) string {
	for name, amount := range ask.Resources {
		if got := g.Resources[name]; got.Cmp(amount) != 0 {
			return fmt.Sprintf("%s of %s instead of %s", got, name, amount)
		}
	}
	// Pods that were not asked for limit what there is; anything else would be paid for.
	for name := range g.Resources {
		if _, named := ask.Resources[name]; !named && len(ask.Resources) > 0 && name != peering.Pods {
			return "resources that were not asked for"
		}
	}
	if _, bounded := g.Resources[peering.Pods]; !bounded {
		return "no number of pods"
	}
	switch {
	case g.Network != ask.Network:
		return "network differs"
	case ask.Duration > 0 && g.Duration > ask.Duration:
		return fmt.Sprintf("for %s instead of %s", g.Duration, ask.Duration)
	case held != nil && stricter(g.PodSecurity, held.PodSecurity):
		return fmt.Sprintf("Pod Security level %s instead of the %s that holds now: pods that run would be refused", g.PodSecurity, held.PodSecurity)
	}
	for key, value := range ask.NodeSelector {
		if got, ok := g.NodeSelector[key]; !ok || got != value {
			return fmt.Sprintf("nodes without the label %s=%s", key, value)
		}
	}
	for _, class := range ask.RuntimeClasses {
		if !slices.Contains(g.RuntimeClasses, class) {
			return "no runtime class " + class
		}
	}
	for _, class := range ask.StorageClasses {
		if !slices.Contains(g.StorageClasses, class) {
			return "no storage class " + class
		}
	}
	return ""
}

// short says that an offer is of a contract that ends before it can be of use, and
// would be renewed all the time; empty is that it is not. Who asks for less than
// minDuration gets it, and a contract in force may be revised up to its end.
func short(ask peering.Ask, offer peering.Advertisement, held *peering.Terms, now time.Time) string {
	least := minDuration
	if ask.Duration > 0 {
		least = min(least, ask.Duration)
	}
	if offer.Duration >= least && endOf(offer, now).Sub(beginOf(now)) >= least || held != nil && !endOf(offer, now).Before(held.NotAfter) {
		return ""
	}
	return fmt.Sprintf("for %s, and less than %s is taken only if spec.duration asks for it", max(endOf(offer, now).Sub(beginOf(now)), 0), least)
}

// dearer says in what a grant costs more than was agreed before; empty is in nothing.
// Each resource counts by itself: which of them are used is known later.
func dearer(before peering.PriceList, g peering.Grant) string {
	for _, name := range g.Resources.Names() {
		now, was := g.Price.PerHour[name], before.PerHour[name]
		switch {
		case now.IsZero():
		case was.IsZero():
			return fmt.Sprintf("%s %s an hour for %s, which was free of charge; set spec.priceCeiling to agree", g.Price.Currency, now, name)
		case g.Price.Currency != before.Currency:
			return fmt.Sprintf("in %s, and in %s before; set spec.priceCeiling to agree", g.Price.Currency, before.Currency)
		case now.Cmp(was) > 0:
			return fmt.Sprintf("%s %s an hour for %s, and %s before; set spec.priceCeiling to agree", g.Price.Currency, now, name, was)
		}
	}
	return ""
}

// tooDear says in what a grant costs more than the ceiling; empty is in nothing.
func tooDear(ceiling peering.Money, g peering.Grant) string {
	hourly, err := g.Price.Hourly(g.Resources)
	switch {
	case err != nil:
		return "a price that cannot be told: " + err.Error()
	case ceiling.IsNone() || hourly.Amount.IsZero():
		return ""
	case hourly.Currency != ceiling.Currency:
		return fmt.Sprintf("a price of %s an hour, and the ceiling is %s: they are of two currencies", hourly, ceiling)
	case hourly.Amount.Cmp(ceiling.Amount) > 0:
		return fmt.Sprintf("a price of %s an hour, more than the ceiling of %s", hourly, ceiling)
	}
	return ""
}

// stricter says whether a Pod Security level refuses more than another.
func stricter(a, b peering.PodSecurity) bool {
	levels := []peering.PodSecurity{peering.PodSecurityPrivileged, peering.PodSecurityBaseline, peering.PodSecurityRestricted}
	return slices.Index(levels, a) > slices.Index(levels, b)
}

// eligible returns the clusters that a PeeringRequest with a selector may ask now,
// by name, and why others that match are left out. contracts are those that it
// had.
func eligible(s *v1alpha1.PeeringRequest, peers []v1alpha1.ForeignCluster, contracts []*v1alpha1.Contract, now time.Time) (ask []*v1alpha1.ForeignCluster, not []string) {
	selector, err := metav1.LabelSelectorAsSelector(s.Spec.ClusterSelector)
	if err != nil {
		return nil, []string{"spec.clusterSelector: " + err.Error()}
	}
	sorted := slices.SortedFunc(slices.Values(peers), func(a, b v1alpha1.ForeignCluster) int { return cmp.Compare(a.Name, b.Name) })
	for i := range sorted {
		fc := &sorted[i]
		if !selector.Matches(labels.Set(fc.Labels)) {
			continue
		}
		if s.LeavesOut(fc.Name) {
			not = append(not, fmt.Sprintf("%s: it was unpeered from; take it off the annotation %s to have it asked again", fc.Name, v1alpha1.AnnotationLeftOut))
			continue
		}
		if why := unusable(fc); why != "" {
			not = append(not, fc.Name+": "+why)
			continue
		}
		if until := outUntil(fc, contracts); now.Before(until) {
			not = append(not, fmt.Sprintf("%s: it ended a contract and is left out until %s", fc.Name, until.UTC().Format(time.RFC3339)))
			continue
		}
		if len(ask) == maxCandidates {
			not = append(not, fmt.Sprintf("%s: %d others are compared, and that is the most", fc.Name, maxCandidates))
			continue
		}
		ask = append(ask, fc)
	}
	return ask, not
}

// unusable says why a cluster cannot be asked now; empty is that it can.
func unusable(fc *v1alpha1.ForeignCluster) string {
	switch {
	case !fc.DeletionTimestamp.IsZero():
		return "it is being forgotten"
	case fc.Spec.TrustBundle == "" || meta.IsStatusConditionFalse(fc.Status.Conditions, v1alpha1.ConditionTrusted):
		return "it is not trusted"
	case !meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected):
		return "there is no session with it"
	}
	return ""
}

// outUntil is until when a cluster is left out, because of contracts that it
// ended.
func outUntil(fc *v1alpha1.ForeignCluster, contracts []*v1alpha1.Contract) time.Time {
	var until time.Time
	for _, c := range contracts {
		if c.Spec.PeerID != fc.Spec.ClusterID || inForce(c) || !endedByPeer(c) || c.Status.ClosedAt == nil {
			continue
		}
		if t := c.Status.ClosedAt.Add(leftOut); t.After(until) {
			until = t
		}
	}
	return until
}

// sortContracts puts a request's contracts in order: first those in force, then
// those that are over, each newest first.
func sortContracts(contracts []*v1alpha1.Contract) {
	slices.SortFunc(contracts, func(a, b *v1alpha1.Contract) int {
		if inForce(a) != inForce(b) {
			if inForce(a) {
				return -1
			}
			return 1
		}
		return cmp.Or(b.Spec.NotBefore.Compare(a.Spec.NotBefore.Time), cmp.Compare(a.Name, b.Name))
	})
}

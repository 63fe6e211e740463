package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

const (
	// keepEvery is how often a meter is stored while what is in use stays the same.
	keepEvery = time.Minute
	// agreeWithin is by how many percent a statement and this cluster's own count may
	// differ: a change of use is seen at different moments on the two sides.
	agreeWithin = 1
	// agreeSlack is how long all that a contract lends may be in use before that is
	// more than two sides may differ by anyway.
	agreeSlack = time.Second
	// flushTimeout bounds storing all meters when the agent stops.
	flushTimeout = 5 * time.Second
)

// Conditions of a consumer's Contract.
const (
	// ConditionStatementsValid: the provider's statements of use are signed by it,
	// follow each other, and have the contract's prices.
	ConditionStatementsValid = "StatementsValid"
	// ConditionUsageAgrees: the newest statement agrees with what this cluster
	// counted.
	ConditionUsageAgrees = "UsageAgrees"
)

// byNode indexes pods by the node that they are on.
const byNode = "spec.nodeName"

func nodeOf(o client.Object) []string {
	if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		return []string{p.Spec.NodeName}
	}
	return nil
}

// podOffloaded is the condition of a pod that its provider took: it is True from
// then on.
const podOffloaded corev1.PodConditionType = "entente.dev/Offloaded"

// onNode returns what the pods on a virtual node and volumes use of its contract, by this
// cluster's own view, and how many pods there are that did not end.
func (r *Contracts) onNode(ctx context.Context, stored *v1alpha1.Contract, node string) (corev1.ResourceList, int, error) {
	var pods corev1.PodList
	// They are only read: there may be thousands, and this is done whenever one changes.
	if err := r.Client.List(ctx, &pods, client.MatchingFields{byNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, 0, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	used, left := UseOf(pods.Items)
	if r.Volumes != nil {
		volumes, err := r.Volumes(ctx, peering.ClusterID(stored.Spec.PeerID), stored.Name)
		if err != nil {
			return nil, 0, err
		}
		addTo(used, volumes)
	}
	return used, left, nil
}

// UseOf returns what pods on a virtual node use, and how many did not end. A pod
// counts from when its provider took it until it ended or is gone, with what the
// scheduler counts for it but for the overhead, which is the provider's own. Pods
// of DaemonSets never leave a node and do not run on this kind.
func UseOf(pods []corev1.Pod) (used corev1.ResourceList, left int) {
	used = corev1.ResourceList{}
	for i := range pods {
		p := &pods[i]
		if owner := metav1.GetControllerOf(p); podEnded(p) || owner != nil && owner.Kind == "DaemonSet" {
			continue
		}
		left++
		if !podTaken(p) {
			continue
		}
		needs := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})
		needs[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
		for name, amount := range needs {
			if amount.IsZero() {
				delete(needs, name)
			}
		}
		addTo(used, needs)
	}
	return used, left
}

func podEnded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func podTaken(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == podOffloaded && c.Status == corev1.ConditionTrue
	})
}

// changesUse says whether an update of a pod may change what its node uses.
func changesUse(before, after *corev1.Pod) bool {
	return after.Spec.NodeName != "" && (before.Spec.NodeName != after.Spec.NodeName || before.Generation != after.Generation ||
		podEnded(before) != podEnded(after) || podTaken(before) != podTaken(after))
}

// usingOf returns what is in use as a meter takes it. Amounts that are finer than
// a meter counts are rounded up.
func usingOf(list corev1.ResourceList) peering.Resources {
	out := peering.Resources{}
	for name, amount := range list {
		if amount.Sign() <= 0 {
			continue
		}
		if q, err := peering.ParseQuantity(amount.String()); err == nil {
			out[string(name)] = q
			continue
		}
		out[string(name)] = peering.Whole(amount.Value())
	}
	return out
}

// meters is the newest readings of contracts' meters. Those that are kept in the
// contracts' status are older, so that not every look is a write.
type meters struct{ of sync.Map } // readings by the name of the contract

// reading is a meter, and up to when the one that is kept had counted.
type reading struct {
	uid   types.UID
	meter peering.Meter
	kept  time.Time
}

// resume returns the newest reading of a contract's meter: the one in memory if it
// goes on from the one that is kept. Else that one, and since nobody was watching
// meanwhile, of what it says was in use only as much as is in use now.
func (m *meters) resume(stored *v1alpha1.Contract, terms peering.Terms, using peering.Resources) (peering.Meter, error) {
	kept, err := store.Meter(stored, terms)
	if err != nil {
		return kept, err
	}
	if r := m.reading(stored.Name); r.uid == stored.UID && r.kept.Equal(kept.Until) && r.meter.Sequence == kept.Sequence {
		r.meter.Period = kept.Period
		return r.meter, nil
	}
	for name, amount := range kept.Using {
		kept.Using[name] = amount.Min(using[name])
	}
	return kept, nil
}

// note remembers a reading of a contract's meter, as it is stored now.
func (m *meters) note(stored *v1alpha1.Contract, meter peering.Meter) {
	if stored.Status.Usage != nil {
		m.of.Store(stored.Name, reading{uid: stored.UID, meter: meter, kept: stored.Status.Usage.Until.Time})
	}
}

func (m *meters) reading(contract string) reading {
	r, _ := m.of.Load(contract)
	known, _ := r.(reading)
	return known
}

// all returns the readings that are newer than what is kept, and say more: while
// nothing is in use time adds nothing.
func (m *meters) all() map[string]reading {
	out := map[string]reading{}
	for name := range m.of.Range {
		if r := m.reading(name.(string)); r.meter.Until.After(r.kept) && len(r.meter.Using) > 0 {
			out[name.(string)] = r
		}
	}
	return out
}

// measure reads a contract's meter, keeps it in the status where that is due, and
// says there what the periods came to that have ended. It returns the reading, to
// be remembered once the status is written; nil is that nothing is counted.
func (r *Contracts) measure(
	c peering.Contract, terms peering.Terms, stored, before *v1alpha1.Contract, use corev1.ResourceList,
) (*peering.Meter, error) {
	if terms.StatementPeriod <= 0 || c.State == peering.Closed && stored.Status.Usage == nil {
		return nil, nil //nolint:nilnil // nothing is counted
	}
	using := usingOf(use)
	meter, err := r.meters.resume(stored, terms, using)
	if err != nil {
		// Somebody else wrote it. What was used until now is lost; counting goes on.
		r.Log.Error("cannot read the meter of a contract; counting begins again", "contract", stored.Name, "err", err)
		meter = peering.NewMeter(r.Now(), terms.StatementPeriod)
		meter.Sequence = lastStatement(stored).sequence
	}
	kept := stored.Status.Usage
	meter, ended := read(meter, c, r.Now(), using)
	due := kept == nil || len(ended) > 0 || len(meter.Using) > 0 && meter.Until.Sub(kept.Until.Time) >= keepEvery ||
		!equalStatus(before, stored)
	if !due {
		return &meter, nil
	}
	if err := store.KeepMeter(stored, meter); err != nil {
		return nil, err
	}
	if c.Role == peering.Provider {
		r.issueStatements(stored, terms, ended)
	} else {
		addPeriods(stored.Status.Usage, ended)
	}
	return &meter, nil
}

// read reads a meter: what is in use now, or that nothing is any more because the
// contract closed. It returns the periods that ended.
func read(meter peering.Meter, c peering.Contract, now time.Time, using peering.Resources) (peering.Meter, []peering.Period) {
	var all []peering.Period
	for {
		var ended []peering.Period
		if c.State == peering.Closed {
			meter, ended = meter.End(c.ClosedAt)
		} else {
			meter, ended = meter.Observe(now, using)
		}
		all = append(all, ended...)
		if len(ended) < peering.MaxPeriods {
			return meter, all
		}
	}
}

// addPeriods adds to the consumer's own count of the newest periods.
func addPeriods(usage *v1alpha1.Usage, ended []peering.Period) {
	for _, p := range ended[max(len(ended)-maxKept, 0):] {
		usage.Periods = append(usage.Periods, v1alpha1.UsagePeriod{
			Since: metav1.NewMicroTime(p.From), Until: metav1.NewMicroTime(p.To), UnitSeconds: p.Used.Strings(),
		})
	}
	usage.Periods = usage.Periods[max(len(usage.Periods)-maxKept, 0):]
}

// statementLink is the newest statement of a contract, which the next one follows.
type statementLink struct {
	sequence uint64
	hash     peering.Hash
	// statement is zero if there is none.
	statement peering.Statement
}

// lastStatement returns the newest statement that is kept.
func lastStatement(stored *v1alpha1.Contract) statementLink {
	n := len(stored.Status.Statements)
	if n == 0 {
		return statementLink{}
	}
	last := stored.Status.Statements[n-1]
	out := statementLink{sequence: uint64(max(last.Sequence, 0))}
	if e, err := peering.ParseEnvelope([]byte(last.Envelope)); err == nil {
		out.hash = e.Hash()
		if s, err := peering.ParseStatement(e.Payload); err == nil {
			out.statement = s
		}
	}
	return out
}

// issueStatements makes the provider's statements for periods that ended. Only those that
// are kept are signed; the chain goes through all. What cannot be stated is logged and left
// out: the contract goes on.
func (r *Contracts) issueStatements(stored *v1alpha1.Contract, terms peering.Terms, ended []peering.Period) {
	last := lastStatement(stored)
	for i, p := range ended {
		if p.Sequence <= last.sequence {
			continue
		}
		envelope, err := statementOf(terms, p, last.hash)
		if err == nil && len(ended)-i <= maxKept {
			err = r.sign(stored, p.Sequence, envelope)
		}
		if err != nil {
			r.Log.Error("cannot state what was used of a contract", "contract", stored.Name, "period", p.Sequence, "err", err)
			continue
		}
		last = statementLink{sequence: p.Sequence, hash: envelope.Hash()}
	}
	stored.Status.Statements = newest(stored.Status.Statements)
}

// newest returns the statements that are kept.
func newest(statements []v1alpha1.Statement) []v1alpha1.Statement {
	bytes := 0
	for i, s := range slices.Backward(statements) {
		if bytes += len(s.Envelope); len(statements)-i > maxKept || bytes > maxKeptBytes {
			return statements[i+1:]
		}
	}
	return statements
}

func (r *Contracts) sign(stored *v1alpha1.Contract, sequence uint64, envelope peering.Envelope) error {
	self := r.Identity()
	envelope, err := envelope.Sign(rand.Reader, self.ID(), self.Signer())
	if err != nil {
		return err
	}
	text, err := envelope.Marshal()
	if err != nil {
		return err
	}
	stored.Status.Statements = append(stored.Status.Statements, v1alpha1.Statement{Sequence: int64(sequence), Envelope: string(text)})
	return nil
}

// statementOf returns the statement for a period, not signed yet. The prices are
// those of the revision that holds when it is made.
func statementOf(terms peering.Terms, p peering.Period, previous peering.Hash) (peering.Envelope, error) {
	amount, err := terms.Price.Cost(p.Used)
	if err != nil {
		return peering.Envelope{}, err
	}
	return peering.NewStatementEnvelope(peering.Statement{
		ContractID: terms.ContractID, Revision: terms.Revision, Consumer: terms.Consumer.ID, Provider: terms.Provider.ID,
		Sequence: p.Sequence, Previous: previous, From: p.From, To: p.To, Used: p.Used, Price: terms.Price, Amount: amount,
	})
}

// checkStatements fetches the statements that the provider reports, checks them, and
// compares the newest with what this cluster counted.
func (r *Contracts) checkStatements(ctx context.Context, c peering.Contract, terms peering.Terms, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) {
	report, last := reportOf(fc, stored.Name), lastStatement(stored)
	before := stored.Status.DeepCopy()
	var asked bool
	var err error
	if report != nil && uint64(max(report.Statement, 0)) > last.sequence {
		asked, err = r.ask(ctx, stored, "statements", func(ctx context.Context) error {
			return r.fetchStatements(ctx, c, terms, stored, fc, last)
		})
	}
	if asked {
		invalid, isInvalid := errors.AsType[*statementError](err)
		switch {
		case err == nil:
			r.condition(stored, ConditionStatementsValid, metav1.ConditionTrue, "Verified", fmt.Sprintf(
				"%d statements are signed by the provider, follow each other, and have the contract's prices", lastStatement(stored).sequence))
		case isInvalid:
			r.condition(stored, ConditionStatementsValid, metav1.ConditionFalse, invalid.reason, invalid.Error())
		default:
			r.Log.Warn("cannot fetch the statements of a contract", "contract", stored.Name, "peer", stored.Spec.PeerID, "err", err)
		}
		// What there is no room for is fetched again.
		if !equality.Semantic.DeepEqual(*before, stored.Status) && r.Budget.Take(terms.Provider.ID, stored) != nil {
			stored.Status = *before
		}
	}
	if agreed, reason, message, known := agreement(terms, stored); known {
		status := metav1.ConditionFalse
		if agreed {
			status = metav1.ConditionTrue
		}
		r.condition(stored, ConditionUsageAgrees, status, reason, message)
	}
}

func (r *Contracts) condition(stored *v1alpha1.Contract, kind string, status metav1.ConditionStatus, reason, message string) {
	c := store.Condition(kind, status, reason, message)
	c.ObservedGeneration = stored.Generation
	meta.SetStatusCondition(&stored.Status.Conditions, c)
}

// fetchStatements gets what comes after the last statement and keeps what is valid.
func (r *Contracts) fetchStatements(
	ctx context.Context, c peering.Contract, terms peering.Terms, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster, last statementLink,
) error {
	peer := peering.ClusterID(stored.Spec.PeerID)
	bundle, err := identity.ReadBundlePEM(peer, []byte(fc.Spec.TrustBundle))
	if err != nil {
		return fmt.Errorf("trust bundle of %s: %w", fc.Name, err)
	}
	envelopes, err := r.Counterpart(peer).Statements(ctx, stored.Name, last.sequence)
	if err != nil {
		return err
	}
	check := statementCheck{
		provider: bundle.Party(peer), revisions: []peering.Terms{terms}, last: last,
		over: c.State != peering.Active, now: r.Now(),
	}
	if before, ok := store.Before(stored, terms.Consumer.ID); ok {
		check.revisions = append(check.revisions, before)
	}
	var gap error
	for _, e := range envelopes {
		s, err := check.next(e)
		if err != nil {
			return err
		}
		if missing := s.Sequence - check.last.sequence - 1; missing > 0 {
			gap = &statementError{reason: "StatementsMissing", message: fmt.Sprintf(
				"statements %d to %d are missing: the provider keeps the newest only, and does not have them any more", check.last.sequence+1, s.Sequence-1)}
		}
		text, err := e.Marshal()
		if err != nil {
			return err
		}
		stored.Status.Statements = append(stored.Status.Statements, v1alpha1.Statement{Sequence: int64(s.Sequence), Envelope: string(text)})
		check.last = statementLink{sequence: s.Sequence, hash: e.Hash(), statement: s}
	}
	stored.Status.Statements = newest(stored.Status.Statements)
	return gap
}

// statementError says why a statement is not taken.
type statementError struct{ reason, message string }

func (e *statementError) Error() string { return e.message }

// statementCheck is what a provider's next statement is checked against.
type statementCheck struct {
	provider peering.Party
	// revisions are the terms that this cluster has: the newest, then the one before.
	revisions []peering.Terms
	// last is the statement before.
	last statementLink
	// over says that the contract is ending or over: then the last period may be
	// short.
	over bool
	now  time.Time
}

// next returns a statement if it is the provider's and says what it may. A
// *statementError says why not.
func (v statementCheck) next(e peering.Envelope) (peering.Statement, error) {
	no := func(reason, format string, args ...any) error {
		return &statementError{reason: reason, message: fmt.Sprintf("statement after number %d: ", v.last.sequence) + fmt.Sprintf(format, args...)}
	}
	s, err := e.VerifyStatement(v.provider)
	if err != nil {
		return s, no("SignatureInvalid", "%s", err)
	}
	terms := v.revision(s.Revision)
	switch current := v.revisions[0]; {
	case s.ContractID != current.ContractID || s.Consumer != current.Consumer.ID || s.Provider != current.Provider.ID:
		return s, no("ContractMismatch", "it is of contract %s between %s and %s", s.ContractID, s.Consumer, s.Provider)
	case s.Sequence <= v.last.sequence:
		return s, no("SequenceMismatch", "it has number %d", s.Sequence)
	case s.Sequence == v.last.sequence+1 && s.Previous != v.last.hash:
		return s, no("ChainBroken", "it does not follow the one before, which was another when it was sent")
	case s.Sequence == v.last.sequence+1 && v.last.sequence > 0 && !s.From.Equal(v.last.statement.To):
		return s, no("PeriodMismatch", "it begins at %s, and the one before ended at %s", s.From.Format(time.RFC3339), v.last.statement.To.Format(time.RFC3339))
	case terms == nil:
		return s, no("RevisionMismatch", "it has the prices of revision %d, and this cluster has revision %d", s.Revision, current.Revision)
	case !s.Price.Equal(terms.Price):
		return s, no("PriceMismatch", "its prices are not those of revision %d", s.Revision)
	case s.Sequence == 1 && s.Revision == 1 && !s.From.Equal(terms.NotBefore):
		return s, no("PeriodMismatch", "it begins at %s, and the contract at %s", s.From.Format(time.RFC3339), terms.NotBefore.Format(time.RFC3339))
	}
	switch length := s.To.Sub(s.From); {
	case length > terms.StatementPeriod, length < terms.StatementPeriod && !v.over:
		return s, no("PeriodMismatch", "it covers %s, and the contract says %s", length, terms.StatementPeriod)
	case s.To.Sub(v.now) > market.StartSkew:
		return s, no("PeriodMismatch", "it covers time until %s, which is not over", s.To.Format(time.RFC3339))
	}
	// That the amount follows from use and prices is part of its form.
	return s, nil
}

func (v statementCheck) revision(n uint64) *peering.Terms {
	if i := slices.IndexFunc(v.revisions, func(t peering.Terms) bool { return t.Revision == n }); i >= 0 {
		return &v.revisions[i]
	}
	return nil
}

// agreement compares the newest statement with this cluster's own count of the
// same period. It is not known while there is no such pair.
func agreement(terms peering.Terms, stored *v1alpha1.Contract) (agreed bool, reason, message string, known bool) {
	last := lastStatement(stored)
	own, ok := ownPeriod(stored.Status.Usage, last.sequence)
	if last.statement.Sequence == 0 || !ok || !own.Since.Time.Equal(last.statement.From) {
		return false, "", "", false
	}
	counted, err := peering.ParseUsage(own.UnitSeconds)
	if err != nil {
		return false, "", "", false
	}
	s := last.statement
	price := s.Price
	if price.IsFree() {
		price = weights(s.Used, counted)
	}
	stated, err1 := price.Cost(s.Used)
	mine, err2 := price.Cost(counted)
	slack, err3 := price.Cost(useFor(terms.Resources, agreeSlack))
	percent, err4 := peering.ParseDecimal(peering.Difference(stated, mine))
	limit, err5 := peering.ParseDecimal(fmt.Sprint(agreeWithin))
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return false, "Incomparable", fmt.Sprintf("statement %d: %s", s.Sequence, err), true
	}
	if percent.Cmp(limit) > 0 && apart(stated.Amount, mine.Amount, slack.Amount) {
		owed, _ := s.Price.Cost(counted) // mine, or nothing
		return false, "Differs", fmt.Sprintf("statement %d, of %s to %s, differs by %s%% from what this cluster counted: the provider says %s, this cluster %s",
			s.Sequence, s.From.Format(time.RFC3339), s.To.Format(time.RFC3339), percent, usageText(s.Used, s.Amount), usageText(counted, owed)), true
	}
	return true, "Agrees", fmt.Sprintf("statement %d is within %d%% of what this cluster counted", s.Sequence, agreeWithin), true
}

// usageText says what was used, for people.
func usageText(used peering.Usage, amount peering.Money) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(used)) {
		parts = append(parts, name+" "+used.Hours()[name])
	}
	text := "nothing"
	if len(parts) > 0 {
		text = strings.Join(parts, ", ") + " unit-hours"
	}
	if !amount.Amount.IsZero() {
		text += " for " + amount.String()
	}
	return text
}

// apart says whether two amounts differ by more than slack.
func apart(a, b, slack peering.Decimal) bool {
	if a.Cmp(b) > 0 {
		a, b = b, a
	}
	most, err := a.Add(slack)
	return err == nil && b.Cmp(most) > 0
}

// weights makes use comparable that costs nothing: every unit counts the same.
func weights(uses ...peering.Usage) peering.PriceList {
	one, err := peering.ParseDecimal("1")
	if err != nil {
		return peering.PriceList{}
	}
	// XXX is no currency (ISO 4217).
	p := peering.PriceList{Currency: "XXX", PerHour: map[string]peering.Decimal{}}
	for _, u := range uses {
		for name := range u {
			p.PerHour[name] = one
		}
	}
	return p
}

// useFor is what it is to use r for some time.
func useFor(r peering.Resources, d time.Duration) peering.Usage {
	m := peering.NewMeter(time.Unix(0, 0), peering.MaxStatementPeriod)
	m, _ = m.Observe(m.Since, r)
	m, _ = m.Observe(m.Since.Add(d), r)
	return m.Used
}

// ownPeriod returns this cluster's own count of a period.
func ownPeriod(usage *v1alpha1.Usage, sequence uint64) (v1alpha1.UsagePeriod, bool) {
	if usage == nil {
		return v1alpha1.UsagePeriod{}, false
	}
	i := int64(len(usage.Periods)) - 1 - (usage.Sequence - int64(sequence))
	if i < 0 || i >= int64(len(usage.Periods)) {
		return v1alpha1.UsagePeriod{}, false
	}
	return usage.Periods[i], true
}

// Flush stores all meters as they were last read. Call it when the agent is about to stop;
// what it cannot store is counted from the older reading.
func (r *Contracts) Flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	for name, reading := range r.meters.all() {
		if err := r.flush(ctx, name, reading); err != nil {
			r.Log.Warn("cannot store the meter of a contract", "contract", name, "err", err)
		}
	}
}

func (r *Contracts) flush(ctx context.Context, name string, reading reading) error {
	var stored v1alpha1.Contract
	if err := r.Reader.Get(ctx, client.ObjectKey{Name: name}, &stored); err != nil {
		return client.IgnoreNotFound(err)
	}
	if stored.UID != reading.uid || stored.Status.Usage == nil || !stored.Status.Usage.Until.Time.Equal(reading.kept) ||
		stored.Status.Usage.Sequence != int64(reading.meter.Sequence) {
		return nil // somebody else counts by now
	}
	before := stored.DeepCopy()
	if meter, ended := reading.meter.Observe(r.Now(), reading.meter.Using); len(ended) == 0 {
		reading.meter = meter
	}
	if err := store.KeepMeter(&stored, reading.meter); err != nil {
		return err
	}
	_, err := r.write(ctx, before, &stored)
	return err
}

// pauses is when something may be asked of a peer again, by a pauseKey.
type pauses struct{ next sync.Map }

// pauseKey is what may be asked about a contract, or with both empty, anything of
// the peer.
type pauseKey struct {
	peer           peering.ClusterID
	contract, what string
}

// due says whether something may be asked now, and if so lets fetchAgain pass until
// it may be asked again.
func (p *pauses) due(peer peering.ClusterID, contract, what string, now time.Time) bool {
	key := pauseKey{peer, contract, what}
	if p.pending(key, now) || p.slow(peer, now) {
		return false
	}
	p.next.Store(key, now.Add(fetchAgain))
	return true
}

func (p *pauses) pending(key pauseKey, now time.Time) bool {
	next, _ := p.next.Load(key)
	at, _ := next.(time.Time)
	return now.Before(at)
}

// slow says whether the peer left something unanswered a moment ago.
func (p *pauses) slow(peer peering.ClusterID, now time.Time) bool {
	return p.pending(pauseKey{peer: peer}, now)
}

// answered notes what came of it. After an answer it may be asked again at once, as
// it may when the question did not reach the peer. A peer that does not answer is
// asked nothing else for a while: whoever asks it waits.
func (p *pauses) answered(peer peering.ClusterID, contract, what string, err error, now time.Time) {
	switch {
	case err == nil, peering.ReasonOf(err) == peering.ReasonUnavailable:
		p.next.Delete(pauseKey{peer, contract, what})
	case errors.Is(err, context.DeadlineExceeded), peering.ReasonOf(err) == peering.ReasonDeadlineExceeded:
		p.next.Store(pauseKey{peer: peer}, now.Add(fetchAgain))
	}
}

func (p *pauses) forget(contract string) {
	for key := range p.next.Range {
		if key.(pauseKey).contract == contract {
			p.next.Delete(key)
		}
	}
}

package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/usage"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
)

const (
	// keepEvery is how often a meter is stored while what is in use stays the same.
	keepEvery = time.Minute
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

// onNode returns what the pods on a virtual node and volumes use of its contract, as this cluster counts it, and
// how many pods have not ended.
func (r *Contracts) onNode(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract, node string) (corev1.ResourceList, int, error) {
	used, left, err := r.ofPods(ctx, c, stored, node)
	if err != nil {
		return nil, 0, err
	}
	if r.Volumes != nil {
		volumes, err := r.Volumes(ctx, peering.ClusterID(stored.Spec.PeerID), stored.Name)
		if err != nil {
			return nil, 0, err
		}
		usage.AddTo(used, volumes)
	}
	return used, left, nil
}

func (r *Contracts) ofPods(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract, node string) (corev1.ResourceList, int, error) {
	if r.onNodes != nil && c.State == peering.Active {
		used, left := r.onNodes.Of(node, stored.Spec.LimitRange)
		return used, left, nil
	}
	if r.onNodes != nil {
		r.onNodes.Forget(node)
	}
	// Whether no pod is left, and the node goes, is decided by the pods themselves. They are only read.
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.MatchingFields{byNode: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, 0, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	used, left := usage.OfPods(pods.Items, stored.Spec.LimitRange)
	return used, left, nil
}

// podsCounted counts the pods on nodes, and forwards those changes that may change what a node uses. The controller
// starts once all existing pods were counted.
func (r *Contracts) podsCounted(next handler.EventHandler) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			r.onNodes.Set(e.Object.(*corev1.Pod))
			if nodeOf(e.Object) != nil {
				next.Create(ctx, e, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			r.onNodes.Set(e.ObjectNew.(*corev1.Pod))
			if usage.Changes(e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)) {
				next.Update(ctx, e, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			r.onNodes.Drop(e.Object.(*corev1.Pod))
			if nodeOf(e.Object) != nil {
				next.Delete(ctx, e, q)
			}
		},
	}
}

// measure reads a contract's meter, stores it in the status if that is due, and adds the statements of the periods
// that have ended. It returns the reading, to be remembered once the status is written; nil means that nothing is
// counted.
func (r *Contracts) measure(
	c peering.Contract, terms peering.Terms, stored, before *v1alpha1.Contract, use corev1.ResourceList,
) (*meter.Meter, error) {
	if terms.StatementPeriod <= 0 || c.State == peering.Closed && stored.Status.Usage == nil {
		return nil, nil //nolint:nilnil // nothing is counted
	}
	using := usage.Using(use)
	m, err := r.meters.Resume(stored, terms, using)
	if err != nil {
		// Another program wrote it. What was used until now is lost; counting goes on.
		r.Log.Error("cannot read the meter of a contract; counting begins again", "contract", stored.Name, "err", err)
		m = meter.New(r.Now(), terms.StatementPeriod)
		m.Sequence = usage.Last(stored).Sequence
	}
	kept := stored.Status.Usage
	m, ended := usage.Read(m, c, r.Now(), using)
	due := kept == nil || len(ended) > 0 || len(m.Using) > 0 && m.Until.Sub(kept.Until.Time) >= keepEvery ||
		!equalStatus(before, stored)
	if !due {
		return &m, nil
	}
	if err := store.KeepMeter(stored, m); err != nil {
		return nil, err
	}
	if c.Role == peering.Provider {
		r.issueStatements(stored, terms, ended)
	} else {
		usage.AddPeriods(stored.Status.Usage, ended)
	}
	return &m, nil
}

// issueStatements makes the provider's statements for periods that ended. Only those that are kept are signed; the
// chain covers all. What cannot be stated is logged and left out: the contract continues.
func (r *Contracts) issueStatements(stored *v1alpha1.Contract, terms peering.Terms, ended []meter.Period) {
	last := usage.Last(stored)
	for i, p := range ended {
		if p.Sequence <= last.Sequence {
			continue
		}
		envelope, err := usage.NewStatement(terms, p, last.Hash)
		if err == nil && len(ended)-i <= usage.MaxKept {
			err = r.sign(stored, p.Sequence, envelope)
		}
		if err != nil {
			r.Log.Error("cannot state what was used of a contract", "contract", stored.Name, "period", p.Sequence, "err", err)
			continue
		}
		last = usage.Link{Sequence: p.Sequence, Hash: envelope.Hash()}
	}
	stored.Status.Statements = usage.Newest(stored.Status.Statements)
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

// checkStatements fetches the statements that the provider reports, checks them, and
// compares the newest with what this cluster counted.
func (r *Contracts) checkStatements(ctx context.Context, c peering.Contract, terms peering.Terms, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) {
	report, last := reportOf(fc, stored.Name), usage.Last(stored)
	before := stored.Status.DeepCopy()
	var asked bool
	var err error
	if report != nil && uint64(max(report.StatementSequence, 0)) > last.Sequence {
		asked, err = r.ask(ctx, stored, "statements", func(ctx context.Context) error {
			return r.fetchStatements(ctx, c, terms, stored, fc, last)
		})
	}
	if asked {
		invalid, isInvalid := errors.AsType[*usage.StatementError](err)
		doubts := usage.Doubts(stored)
		switch {
		case err == nil && doubts != nil:
			r.condition(stored, ConditionStatementsValid, metav1.ConditionFalse, doubts.Reason, doubts.Error())
		case err == nil:
			r.condition(stored, ConditionStatementsValid, metav1.ConditionTrue, "Verified", fmt.Sprintf(
				"%d statements are signed by the provider, follow each other, and have the contract's prices", usage.Last(stored).Sequence))
		case isInvalid:
			r.condition(stored, ConditionStatementsValid, metav1.ConditionFalse, invalid.Reason, invalid.Error())
		default:
			r.Log.Warn("cannot fetch the statements of a contract", "contract", stored.Name, "peer", stored.Spec.PeerID, "err", err)
		}
		// What there is no room for is fetched again.
		if !equality.Semantic.DeepEqual(*before, stored.Status) && r.Budget.Take(terms.Provider.ID, stored) != nil {
			stored.Status = *before
		}
	}
	if agreed, reason, message, known := usage.Agreement(terms, stored); known {
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

// fetchStatements fetches the statements after the last one, keeps the valid ones, and records what they leave in
// doubt.
func (r *Contracts) fetchStatements(
	ctx context.Context, c peering.Contract, terms peering.Terms, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster, last usage.Link,
) error {
	peer := peering.ClusterID(stored.Spec.PeerID)
	bundle, err := identity.ReadBundlePEM(peer, []byte(fc.Spec.TrustBundle))
	if err != nil {
		return fmt.Errorf("trust bundle of %s: %w", fc.Name, err)
	}
	envelopes, err := r.Counterpart(peer).Statements(ctx, stored.Name, last.Sequence)
	if err != nil {
		return err
	}
	check := usage.Check{
		Provider: bundle.Party(peer), Revisions: []peering.Terms{terms}, Last: last,
		Over: c.State != peering.Active, Now: r.Now(),
	}
	if before, ok := store.Before(stored, terms.Consumer.ID); ok {
		check.Revisions = append(check.Revisions, before)
	}
	for i, e := range envelopes {
		s, err := check.Next(e)
		if err != nil {
			return err
		}
		if s.Sequence > check.Last.Sequence+1 {
			usage.AddMissing(stored, check.Last.Sequence+1, s.Sequence-1)
		}
		if !check.Follows(s) {
			var theirs []peering.Envelope // what the provider has now of what is kept here
			if i == 0 {
				// Without a response it is known that one period is in doubt.
				theirs, _ = r.Counterpart(peer).Statements(ctx, stored.Name, uint64(max(stored.Status.Statements[0].Sequence-1, 0)))
			}
			usage.AddRestated(stored, check.Provider, theirs)
		}
		text, err := e.Marshal()
		if err != nil {
			return err
		}
		stored.Status.Statements = append(stored.Status.Statements, v1alpha1.Statement{Sequence: int64(s.Sequence), Envelope: string(text)})
		check.Last = usage.Link{Sequence: s.Sequence, Hash: e.Hash(), Statement: s}
	}
	stored.Status.Statements = usage.Newest(stored.Status.Statements)
	return nil
}

// Flush stores all meters as they were last read, before the agent stops. What it cannot store is counted from the
// older reading.
func (r *Contracts) Flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	for name, reading := range r.meters.All() {
		if err := r.flush(ctx, name, reading); err != nil {
			r.Log.Warn("cannot store the meter of a contract", "contract", name, "err", err)
		}
	}
}

func (r *Contracts) flush(ctx context.Context, name string, reading usage.Reading) error {
	var stored v1alpha1.Contract
	if err := r.Reader.Get(ctx, client.ObjectKey{Name: name}, &stored); err != nil {
		return client.IgnoreNotFound(err)
	}
	if stored.UID != reading.UID || stored.Status.Usage == nil || !stored.Status.Usage.Until.Time.Equal(reading.Kept) ||
		stored.Status.Usage.Sequence != int64(reading.Meter.Sequence) {
		return nil // another agent counts by now
	}
	before := stored.DeepCopy()
	if meter, ended := reading.Meter.Observe(r.Now(), reading.Meter.Using); len(ended) == 0 {
		reading.Meter = meter
	}
	if err := store.KeepMeter(&stored, reading.Meter); err != nil {
		return err
	}
	_, err := r.write(ctx, before, &stored)
	return err
}

// pauses is when a peer may be asked something again, by pauseKey.
type pauses struct{ next sync.Map }

// pauseKey is what may be asked about a contract, or with both empty, anything of the peer.
type pauseKey struct {
	peer           peering.ClusterID
	contract, what string
}

// due reports whether something may be asked now; if so it may not be asked again for fetchAgain.
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

// slow reports whether the peer left a call without response a moment ago.
func (p *pauses) slow(peer peering.ClusterID, now time.Time) bool {
	return p.pending(pauseKey{peer: peer}, now)
}

// record records the outcome of a call. After a response it may be made again at once, as it may if it did not
// reach the peer. A peer that does not respond is not called about anything else for a while, since callers wait.
func (p *pauses) record(peer peering.ClusterID, contract, what string, err error, now time.Time) {
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

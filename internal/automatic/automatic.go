package automatic

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/pake"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// reasonSecretUnreadable: a group's Secret cannot be read now, and its last content is used.
const reasonSecretUnreadable = "SecretUnreadable"

// Automatic peers with clusters that discovery finds, as PeeringPolicies with spec.automatic say, and ends what no
// policy asks for any more. peerState.plan and planUse decide which clusters to dial, approve and let go.
type Automatic struct {
	// Client reads from a cache, and writes.
	Client client.Client
	// Direct reads from the API server itself.
	Direct    client.Client
	Namespace string
	Self      peering.ClusterID
	// Introduce introduces this cluster at an endpoint, to the cluster with this ID and no other. It does not ask
	// in the name of an administrator: one that forgot this cluster must not learn of it again in this way.
	Introduce func(ctx context.Context, endpoint string, id peering.ClusterID) (info identity.ClusterInfo, code string, err error)
	// JoinGroup proves to the cluster with this ID, at an endpoint, that this one has a group's secret, and calls
	// Admit once that one did the same: Groups.Join.
	JoinGroup func(ctx context.Context, group, endpoint string, id peering.ClusterID) error
	// Valid returns the condition Valid of a policy, whether it has spec.automatic or not; an empty one leaves it as it
	// is. Required.
	Valid func(ctx context.Context, policy string) (metav1.Condition, error)
	// MayDial reports whether an endpoint that was found may be dialled now. Required.
	MayDial   func(endpoint string) bool
	Forgotten *store.Forgotten
	Events    events.EventRecorder
	// AttemptChanged is called when Attempt returns something else for a ForeignCluster.
	AttemptChanged func(name string)
	// Wake reports that a ForeignCluster, a policy or what a policy makes changed, Secrets that a Secret did.
	Wake, Secrets notify.Channel
	Log           *slog.Logger
	Now           func() time.Time
	// Random returns a duration below most.
	Random func(most time.Duration) time.Duration

	calls sync.WaitGroup

	// secrets is the group secret of each policy.
	secrets sync.Map
	mu      sync.Mutex
	state   peerState
	// leftAlone is what was left to its owners, so that each is reported once.
	leftAlone map[leftAlone]bool
}

// groupSecret is what was read from a policy's Secret.
type groupSecret struct {
	ref     v1alpha1.SecretKey
	secret  pake.Secret
	problem trust.Attempt
	// err is why it could not be read.
	err error
	at  time.Time
}

// Start implements manager.Runnable.
func (r *Automatic) Start(ctx context.Context) error {
	defer r.calls.Wait()
	for {
		again, err := r.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("peer by policy", "err", err)
		}
		if !notify.Pause(ctx, reconcilePause) {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-r.Secrets:
			r.secrets.Clear()
		case <-r.Wake:
		case <-time.After(min(cmp.Or(again, reconcileInterval), reconcileInterval)):
		}
	}
}

// reconcile makes what the current state requires, and returns when to reconcile again; 0 means when something
// happens.
func (r *Automatic) reconcile(ctx context.Context) (time.Duration, error) {
	policies, v, err := r.load(ctx)
	if err != nil {
		return 0, err
	}
	v.rules = r.rules(ctx, policies)
	plan, err := r.plan(ctx, policies, &v)
	errs := append(r.act(ctx, v.all, plan), err, r.use(ctx, v, policies))
	for i := range policies {
		errs = append(errs, r.report(ctx, &policies[i], v.rules, plan))
	}
	// Concurrent writes of other clients are seen by the next reconciliation.
	errs = slices.DeleteFunc(errs, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) })
	return plan.again, errors.Join(errs...)
}

// load reads everything that plans follow from. Each change of a ForeignCluster reconciles all, so only those that
// are written are copied.
func (r *Automatic) load(ctx context.Context) ([]v1alpha1.PeeringPolicy, useInput, error) {
	var policies v1alpha1.PeeringPolicyList
	var all v1alpha1.ForeignClusterList
	var requests v1alpha1.PeeringRequestList
	var offloading v1alpha1.NamespaceOffloadingList
	err := errors.Join(
		r.Client.List(ctx, &policies), r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy),
		r.Client.List(ctx, &requests, client.UnsafeDisableDeepCopy), r.Client.List(ctx, &offloading, client.UnsafeDisableDeepCopy),
	)
	if err != nil {
		return nil, useInput{}, fmt.Errorf("list policies and what they made: %w", err)
	}
	return policies.Items, useInput{all: all.Items, requests: requests.Items, offloading: offloading.Items, namespaces: map[string]bool{}}, nil
}

// plan decides what to do, and which policies that made something are gone. An error says which clusters it did not
// decide about.
func (r *Automatic) plan(ctx context.Context, policies []v1alpha1.PeeringPolicy, v *useInput) (peerPlan, error) {
	made, exists, asked := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i := range policies {
		exists[policies[i].Name] = true
	}
	for i := range v.all {
		made[store.PeerOfPolicy(&v.all[i])] = true
	}
	for i := range v.requests {
		policy := store.MadeByPolicy(&v.requests[i])
		if made[policy] = true; policy == "" {
			asked[v.requests[i].Spec.ForeignCluster] = true
		}
	}
	for i := range v.offloading {
		made[store.MadeByPolicy(&v.offloading[i])] = true
	}
	delete(made, "") // what no policy made
	var errs []error
	r.mu.Lock()
	defer r.mu.Unlock()
	v.gone = r.state.goneFor(made, exists, r.Now())
	return r.state.plan(peerInput{
		asked: asked, self: r.Self, gone: v.gone, rules: v.rules, all: v.all, now: r.Now(), random: r.Random,
		forgotten: func(id peering.ClusterID) (bool, bool) {
			_, forgotten, err := r.Forgotten.Since(ctx, id)
			person, err2 := r.Forgotten.ByPerson(ctx, id)
			if err = errors.Join(err, err2); err != nil {
				errs = append(errs, err)
				return true, true // assume it
			}
			return forgotten, person
		},
	}), errors.Join(errs...)
}

// act carries out a plan for ForeignClusters.
func (r *Automatic) act(ctx context.Context, all []v1alpha1.ForeignCluster, plan peerPlan) (errs []error) {
	copied := func(name string) *v1alpha1.ForeignCluster {
		i := slices.IndexFunc(all, func(fc v1alpha1.ForeignCluster) bool { return fc.Name == name })
		return all[i].DeepCopy() // plans name those that there are
	}
	for _, name := range plan.changed {
		r.AttemptChanged(name)
	}
	for _, d := range plan.declined {
		r.recordBoth(ctx, d.policy, d.fc, corev1.EventTypeWarning, trust.ReasonImpostor, "%s: %s", d.fc, d.why)
	}
	for _, dial := range plan.dial {
		r.calls.Go(func() { r.dial(ctx, dial) })
	}
	for _, id := range plan.lift {
		errs = append(errs, r.Forgotten.Remove(ctx, id))
	}
	for _, a := range plan.approve {
		errs = append(errs, r.approve(ctx, copied(a.fc), a))
	}
	for _, name := range plan.stay {
		before, fc := copied(name), copied(name)
		delete(fc.Annotations, v1alpha1.AnnotationAutomaticEnded)
		errs = append(errs, store.PatchLocked(ctx, r.Client, before, fc))
	}
	for _, name := range plan.letGo {
		errs = append(errs, r.letGo(ctx, copied(name), plan.lapsed[name]))
	}
	return errs
}

// rules returns the policies with spec.automatic, in the order of their names.
func (r *Automatic) rules(ctx context.Context, policies []v1alpha1.PeeringPolicy) []policyRule {
	var out []policyRule
	for i := range policies {
		p := &policies[i]
		if p.Spec.Automatic == nil || !p.DeletionTimestamp.IsZero() {
			continue
		}
		rule := policyRule{name: p.Name, AutomaticPeering: *p.Spec.Automatic, revision: fmt.Sprintf("%s/%d", p.UID, p.Generation)}
		if group := rule.Group; group != nil {
			s := r.groupSecret(ctx, p.Name, group.SecretRef)
			rule.problem = s.problem
			if s.err != nil { // other policies are not affected
				rule.problem = trust.Attempt{Reason: reasonSecretUnreadable, Message: fmt.Sprintf("Secret %s/%s cannot be read now, and it is tried again: %v", r.Namespace, group.SecretRef.Name, s.err)}
			}
			rule.revision += fmt.Sprintf("/%x", sha256.Sum256(s.secret))
		}
		out = append(out, rule)
	}
	slices.SortFunc(out, func(a, b policyRule) int { return strings.Compare(a.name, b.name) })
	groupsOnce(out)
	return out
}

// groupsOnce lets no policy peer by a group that another policy names, too: it would be undecided which of the two
// trusts a cluster that proves its secret.
func groupsOnce(rules []policyRule) {
	for i := range rules {
		for j := range rules {
			if a, b := rules[i].Group, rules[j].Group; i != j && a != nil && b != nil && a.Name == b.Name {
				rules[i].problem = trust.Attempt{Reason: "DuplicateGroup", Message: fmt.Sprintf("the policy %s has the group %s, too: no cluster is trusted by it until one of the two has another name, or none", rules[j].name, a.Name)}
			}
		}
	}
}

// groupSecret returns the secret of a policy's group. It reads it again when a Secret changed, or after a while.
func (r *Automatic) groupSecret(ctx context.Context, policy string, ref v1alpha1.SecretKey) groupSecret {
	ref.Key = cmp.Or(ref.Key, "secret")
	last, _ := r.secrets.Load(policy)
	s, _ := last.(groupSecret)
	known := s.ref == ref
	if known && r.Now().Sub(s.at) < reconcileInterval {
		return s
	}
	text, missing, err := trust.ReadSecret(ctx, r.Direct, r.Namespace, ref, "the secret of the group")
	switch {
	case err != nil:
		// The last content stays in use, and strangers cannot cause more reads.
		if !known {
			s = groupSecret{ref: ref, err: err}
		}
		s.at = r.Now().Add(secretPause - reconcileInterval)
	case missing != "":
		s = groupSecret{ref: ref, at: r.Now()}
		s.problem = trust.Attempt{Reason: "SecretMissing", Message: missing}
	default:
		s = groupSecret{ref: ref, at: r.Now(), secret: text}
		if err := s.secret.Check(); err != nil {
			s.secret = nil
			s.problem = trust.Attempt{Reason: "SecretUnusable", Message: fmt.Sprintf("Secret %s/%s, key %s: %s: make one with `openssl rand -base64 24`, the same for all clusters of the group", r.Namespace, ref.Name, ref.Key, err)}
		}
	}
	r.secrets.Store(policy, s)
	return s
}

// Attempt returns why a cluster that a policy would peer with is not trusted yet; empty if nothing was tried.
func (r *Automatic) Attempt(fc *v1alpha1.ForeignCluster) trust.Attempt {
	if !store.Pending(fc) {
		return trust.Attempt{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.attempt(peering.ClusterID(fc.Spec.ClusterID))
}

// Announces reports whether this cluster peers by policy, which it announces in discovery.
func (r *Automatic) Announces(ctx context.Context) (bool, error) {
	policies, err := r.policies(ctx)
	return slices.ContainsFunc(policies, func(p v1alpha1.PeeringPolicy) bool { return p.Spec.Automatic != nil }), err
}

// policies lists the policies, for reading only.
func (r *Automatic) policies(ctx context.Context) ([]v1alpha1.PeeringPolicy, error) {
	var list v1alpha1.PeeringPolicyList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list peering policies: %w", err)
	}
	return list.Items, nil
}

// dial calls a cluster and records the outcome.
func (r *Automatic) dial(ctx context.Context, d peerDial) {
	_, err := trust.DialInTurn(d.endpoints, r.MayDial, func(endpoint string) error { return r.meet(ctx, endpoint, d.key) })
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	outcome, news := r.state.done(d.key, err, r.Now(), r.Random)
	r.mu.Unlock()
	r.Wake.Notify()
	if err != nil {
		r.Log.Info("a cluster that a policy would peer with", "peer", d.fc, "policy", d.key.policy, "err", err)
	}
	if !news {
		return
	}
	switch outcome.Reason {
	case trust.ReasonForgottenByPeer, trust.ReasonDeniedByPeer, trust.ReasonGroupUnknown, trust.ReasonImpostor, "GroupSecretMismatch":
		r.recordBoth(ctx, d.key.policy, d.fc, corev1.EventTypeWarning, outcome.Reason, "%s: %s", d.fc, outcome.Message)
	}
}

// GroupProofStarted is called when a cluster begins to prove that it has a group's secret. It implements
// Groups.Begun.
func (r *Automatic) GroupProofStarted(group string, id peering.ClusterID) {
	r.mu.Lock()
	sooner := r.state.retrySoon(id, groupBasis(group), r.Now(), r.Random)
	r.mu.Unlock()
	if sooner {
		r.Wake.Notify()
	}
}

// meet calls a cluster at an endpoint, and stores the trust that results.
func (r *Automatic) meet(ctx context.Context, endpoint string, key tryKey) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if group, ok := strings.CutPrefix(string(key.by), string(byGroup)); ok {
		return r.JoinGroup(ctx, group, endpoint, key.id)
	}
	info, code, err := r.Introduce(ctx, endpoint, key.id)
	if err != nil {
		return err
	}
	return r.admit(ctx, store.Introduction{
		ID: key.id, Info: info, Code: code, Time: r.Now(), Endpoint: endpoint, Policy: key.policy, By: string(key.by),
	})
}

// GroupSecret returns the secret of a group and the policy that names it, which must be the only one. It implements
// Groups.Secret.
func (r *Automatic) GroupSecret(ctx context.Context, group string) (string, []byte, error) {
	policies, err := r.policies(ctx)
	if err != nil {
		return "", nil, err
	}
	for _, rule := range r.rules(ctx, policies) {
		if rule.Group != nil && rule.Group.Name == group && (rule.problem.Reason == "" || rule.problem.Reason == reasonSecretUnreadable) {
			s := r.groupSecret(ctx, rule.name, rule.Group.SecretRef)
			return rule.name, s.secret, s.err
		}
	}
	return "", nil, trust.GroupUnknown(group)
}

// Admit trusts a cluster that proved that it has a group's secret, in the name of a policy. It implements
// Groups.Admit.
func (r *Automatic) Admit(ctx context.Context, id peering.ClusterID, info identity.ClusterInfo, policy, group string) error {
	return r.admit(ctx, store.Introduction{ID: id, Info: info, Time: r.Now(), Policy: policy, By: string(groupBasis(group))})
}

// GroupFailed records an event for the policies that name a group: a cluster did not prove that it has its secret.
// It implements Groups.Failed.
func (r *Automatic) GroupFailed(ctx context.Context, group string, id peering.ClusterID, why string) {
	policies, _ := r.policies(ctx) // a cache
	for i := range policies {
		if a := policies[i].Spec.Automatic; a != nil && a.Group != nil && a.Group.Name == group {
			r.Events.Eventf(&policies[i], nil, corev1.EventTypeWarning, "GroupProofFailed", "Peer", "cluster %s is not trusted by the group %s: %s", id.Short(), group, why)
		}
	}
}

// admit stores trust in the name of a policy, if the policy still wants it: a call takes a while, and
// administrators decide meanwhile.
func (r *Automatic) admit(ctx context.Context, i store.Introduction) error {
	fc, err := r.stillWanted(ctx, i)
	if err != nil {
		return err
	}
	if fc != nil && fc.Spec.TrustBundle != "" && store.PeerOfPolicy(fc) == "" {
		return nil // an administrator's peer: there is nothing to add
	}
	i.MayCreate = func() error { return r.checkForgotten(ctx, i.ID) } // as of a moment ago it was known or wanted
	name, err := store.Introduce(ctx, r.Direct, i)
	if err != nil {
		return err
	}
	r.Log.Info("peered by policy", "peer", name, "id", i.ID, "policy", i.Policy, "by", i.By)
	r.recordBoth(ctx, i.Policy, name, corev1.EventTypeNormal, "PeeredByPolicy", "the policy %s trusts %s by %s", i.Policy, name, i.By)
	return nil
}

// checkForgotten fails with the reason CONFLICT if an administrator forgot a cluster.
func (r *Automatic) checkForgotten(ctx context.Context, id peering.ClusterID) error {
	forgot, err := r.Forgotten.ByPerson(ctx, id)
	if err == nil && forgot {
		err = peering.Errorf(peering.ReasonConflict, "an administrator of this cluster forgot cluster %s", id.Short())
	}
	return err
}

// stillWanted returns the ForeignCluster, if there is one, of the cluster on the other side of a call. It fails
// with the reason CONFLICT, or as an *imitationError, if by the API server's current state the policy or an
// administrator no longer wants the trust that the call began.
func (r *Automatic) stillWanted(ctx context.Context, i store.Introduction) (*v1alpha1.ForeignCluster, error) {
	var p v1alpha1.PeeringPolicy
	err := r.Direct.Get(ctx, client.ObjectKey{Name: i.Policy}, &p)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read peering policy %s: %w", i.Policy, err)
	}
	if err != nil || !p.DeletionTimestamp.IsZero() || p.Spec.Automatic == nil || !(&policyRule{AutomaticPeering: *p.Spec.Automatic}).trusts(i.ID, basis(i.By)) {
		return nil, peering.Errorf(peering.ReasonConflict, "no policy of this cluster peers with cluster %s for that any more", i.ID.Short())
	}
	fc, err := store.Find(ctx, r.Direct, i.ID)
	if err != nil {
		return nil, err
	}
	if fc == nil || store.Pending(fc) {
		if err := r.checkForgotten(ctx, i.ID); err != nil {
			return nil, err
		}
	}
	if basis(i.By) != byFirstUse {
		return fc, nil
	}
	// A cluster that is no longer found trusts this cluster by now, all the same.
	known := fc
	if known == nil {
		known = &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(i.ID)}}
	}
	var all v1alpha1.ForeignClusterList
	if err := r.Direct.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	if c := takesAnothers(known, &i.Info, trustedAmong(all.Items)); c != nil {
		return nil, &imitationError{c.Message}
	}
	if firstUsed(all.Items)[i.Policy] >= maxFirstUse {
		return nil, peering.Errorf(peering.ReasonConflict, "%s", firstUseFull().Message)
	}
	return fc, nil
}

// recordBoth records an event for a policy and a ForeignCluster.
func (r *Automatic) recordBoth(ctx context.Context, policy, fc, kind, reason, format string, args ...any) {
	for name, o := range map[string]client.Object{policy: &v1alpha1.PeeringPolicy{}, fc: &v1alpha1.ForeignCluster{}} {
		if r.Direct.Get(ctx, client.ObjectKey{Name: name}, o) == nil {
			r.Events.Eventf(o, nil, kind, reason, "Peer", format, args...)
		}
	}
}

// approve trusts a cluster that introduced itself, in the name of a policy.
func (r *Automatic) approve(ctx context.Context, fc *v1alpha1.ForeignCluster, a peerApproval) error {
	before := fc.DeepCopy()
	store.ByPolicy(fc, a.policy, string(a.by))
	if err := store.PatchLocked(ctx, r.Client, before, fc); err != nil {
		return fmt.Errorf("approve by policy %s: %w", a.policy, err)
	}
	r.recordBoth(ctx, a.policy, fc.Name, corev1.EventTypeNormal, "PeeredByPolicy", "the policy %s trusts %s, which introduced itself, by %s", a.policy, fc.Name, a.by)
	return nil
}

// letGo deletes a ForeignCluster that no policy asks for any more, by the API server's current state, or that
// lapsed, for the given reason. The contracts with it end, too.
func (r *Automatic) letGo(ctx context.Context, fc *v1alpha1.ForeignCluster, lapsed string) error {
	policy := store.PeerOfPolicy(fc)
	var p v1alpha1.PeeringPolicy
	err := r.Direct.Get(ctx, client.ObjectKey{Name: policy}, &p)
	why := fmt.Sprintf("the policy %s peers with it no longer, so the peering ends", policy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read peering policy %s: %w", policy, err)
	case lapsed != "":
		why = lapsed + ", so the policy " + policy + " forgets it"
		// Its status may not show yet a contract that was just signed.
		contracts, err := store.ContractsWith(ctx, r.Client, peering.ClusterID(fc.Spec.ClusterID))
		if err != nil || slices.ContainsFunc(contracts, func(c v1alpha1.Contract) bool { return !store.Released(&c) }) {
			return err
		}
	case err == nil && p.Spec.Automatic != nil && (&policyRule{AutomaticPeering: *p.Spec.Automatic}).stillTrusts(fc):
		return nil
	}
	before := fc.DeepCopy()
	metav1.SetMetaDataAnnotation(&fc.ObjectMeta, v1alpha1.AnnotationAutomaticEnded, "true")
	if err := store.PatchLocked(ctx, r.Client, before, fc); err != nil {
		return err
	}
	r.Events.Eventf(fc, nil, corev1.EventTypeNormal, "PolicyEnded", "Peer", "%s", why)
	if err := r.Client.Delete(ctx, fc, client.Preconditions{UID: &fc.UID, ResourceVersion: &fc.ResourceVersion}); err != nil {
		return fmt.Errorf("end the peering with %s: %w", fc.Name, err)
	}
	return nil
}

// use creates what policies ask of their peers, and removes what they no longer ask.
func (r *Automatic) use(ctx context.Context, v useInput, policies []v1alpha1.PeeringPolicy) error {
	if slices.ContainsFunc(v.rules, func(rule policyRule) bool { return len(rule.Namespaces) > 0 }) {
		var namespaces corev1.NamespaceList
		if err := r.Client.List(ctx, &namespaces, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list namespaces: %w", err)
		}
		for i := range namespaces.Items {
			v.namespaces[namespaces.Items[i].Name] = namespaces.Items[i].DeletionTimestamp.IsZero()
		}
	}
	plan := planUse(v)
	if len(plan.remove)+len(plan.stopOffload) > 0 {
		// A cache may not show yet that an administrator took a peer over, whose pods would be lost.
		var all v1alpha1.ForeignClusterList
		if err := r.Direct.List(ctx, &all); err != nil {
			return fmt.Errorf("list foreign clusters: %w", err)
		}
		v.all = all.Items
		plan = planUse(v)
	}
	var errs []error
	fail := func(what string, o client.Object, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", what, client.ObjectKeyFromObject(o), err))
		}
	}
	for _, o := range plan.remove {
		fail("end peering request", o, r.Client.Delete(ctx, o, client.Preconditions{UID: &o.UID}))
	}
	for _, o := range plan.stopOffload {
		fail("end the offloading of", o, r.Client.Delete(ctx, o, client.Preconditions{UID: &o.UID}))
	}
	for _, o := range plan.handOver {
		fail("hand over", o, r.handOver(ctx, o))
	}
	for _, c := range plan.change {
		request := c.request.DeepCopy()
		request.Spec.Resources, request.Spec.PriceCeiling = c.spec.Resources, c.spec.PriceCeiling
		errs = append(errs, store.PatchLocked(ctx, r.Client, c.request, request))
	}
	for _, o := range plan.create { // a cache may not show yet that one exists
		fail("make peering request", o, client.IgnoreAlreadyExists(r.Client.Create(ctx, o, client.FieldOwner(v1alpha1.Manager))))
	}
	for _, o := range plan.offload {
		fail("offload namespace", o, client.IgnoreAlreadyExists(r.Client.Create(ctx, o, client.FieldOwner(v1alpha1.Manager))))
	}
	r.reportLeftAlone(policies, plan.leftAlone)
	return errors.Join(errs...)
}

// handOver turns what a policy made into an administrator's object.
func (r *Automatic) handOver(ctx context.Context, o client.Object) error {
	before, after := o.DeepCopyObject().(client.Object), o.DeepCopyObject().(client.Object)
	policy := store.MadeByPolicy(o)
	delete(after.GetLabels(), v1alpha1.LabelAutomatic)
	if err := store.PatchLocked(ctx, r.Client, before, after); err != nil {
		return err
	}
	r.Events.Eventf(after, nil, corev1.EventTypeNormal, "TakenOver", "Peer", "an administrator took over the peer of the policy %s that this is for: it stays, and the policy no longer changes it", policy)
	return nil
}

// reportLeftAlone reports once for a policy what it would make but leaves to its owner.
func (r *Automatic) reportLeftAlone(policies []v1alpha1.PeeringPolicy, now []leftAlone) {
	leftAlone := make(map[leftAlone]bool, len(now))
	for _, l := range now {
		leftAlone[l] = true
		if r.leftAlone[l] {
			continue
		}
		for i := range policies {
			if policies[i].Name == l.policy {
				r.Events.Eventf(&policies[i], nil, corev1.EventTypeWarning, "LeftAlone", "Peer", "%s is not this policy's, and is left as it is", l.what)
			}
		}
	}
	r.leftAlone = leftAlone
}

// report writes the outcome of a policy into its status.
func (r *Automatic) report(ctx context.Context, p *v1alpha1.PeeringPolicy, rules []policyRule, plan peerPlan) error {
	before := p.DeepCopy()
	i := slices.IndexFunc(rules, func(rule policyRule) bool { return rule.name == p.Name })
	if i < 0 {
		p.Status.Automatic = nil
		meta.RemoveStatusCondition(&p.Status.Conditions, v1alpha1.ConditionAutomatic)
	} else {
		peers, waiting := plan.peers[p.Name], plan.waiting[p.Name]
		p.Status.Automatic = &v1alpha1.AutomaticStatus{Peers: int32(peers), Pending: int32(waiting)}
		c := store.Condition(v1alpha1.ConditionAutomatic, metav1.ConditionTrue, "Peering", "this cluster peers by itself with clusters that are found")
		if waiting > 0 {
			c.Message += "; `entente peers` says what others wait for"
		}
		problem := rules[i].problem
		if problem.Reason == "" && plan.full[p.Name] {
			problem = firstUseFull()
		}
		if problem.Reason != "" {
			c = store.Condition(v1alpha1.ConditionAutomatic, metav1.ConditionFalse, problem.Reason, problem.Message)
		}
		c.ObservedGeneration = p.Generation
		meta.SetStatusCondition(&p.Status.Conditions, c)
	}
	valid, err := r.Valid(ctx, p.Name)
	if err == nil && valid.Type != "" {
		valid.ObservedGeneration = p.Generation
		meta.SetStatusCondition(&p.Status.Conditions, valid)
	}
	return errors.Join(err, store.PatchStatus(ctx, r.Client, before, p))
}

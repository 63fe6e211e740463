package trust

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// bundleHashes caches the results of KnownHash, which has to verify signatures.
//
//nolint:gochecknoglobals // a cache of a function without state
var bundleHashes = lru.New(maxHashes)

// KnownHash returns the hash of a peer's trust bundle as this cluster has it, or the zero hash
// without a bundle.
func KnownHash(fc *v1alpha1.ForeignCluster) peering.Hash {
	key := fc.Spec.ClusterID + fc.Spec.TrustBundle
	if known, ok := bundleHashes.Get(key); ok {
		return known.(peering.Hash)
	}
	var hash peering.Hash
	if b, err := identity.ReadBundlePEM(peering.ClusterID(fc.Spec.ClusterID), []byte(fc.Spec.TrustBundle)); err == nil {
		hash = b.Hash()
	}
	bundleHashes.Add(key, hash)
	return hash
}

// Strangers calls other clusters, which need not trust this one.
type Strangers interface {
	// Join redeems a token at the cluster that made it.
	Join(ctx context.Context, token jointoken.Token) (identity.ClusterInfo, error)
	// Introduce introduces this cluster at an endpoint, or InBand, to the cluster with this ID and
	// no other. requested means that an administrator asked for it; otherwise
	// it is because this cluster trusts the other.
	Introduce(ctx context.Context, endpoint string, id peering.ClusterID, requested bool) (info identity.ClusterInfo, code string, err error)
	// UpdateBundle sends a peer this cluster's roots, over their session.
	UpdateBundle(ctx context.Context, id peering.ClusterID) error
}

// InBand is used in place of an endpoint for the way through the tunnel.
const InBand = "in-band"

// Dialable reports whether this cluster can dial another one to introduce itself: in-band, once
// the tunnel is up.
func Dialable(fc *v1alpha1.ForeignCluster) bool {
	if fc.Spec.InBand != nil {
		return meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionInBand)
	}
	return len(fc.Spec.Endpoints) > 0
}

const (
	// RetryMin to RetryMax is the pause after a try that failed, and between reads of a Secret
	// that does not exist.
	RetryMin = 2 * time.Second
	// RetryMax is the longest of these pauses.
	RetryMax = 30 * time.Second
	// introduceAgain is how often this cluster introduces itself to one that it
	// trusts and that does not trust it yet: what the other keeps lapses.
	introduceAgain = 10 * time.Minute
	// introductionKept is for how long an introduction is kept that was recorded after the session
	// came up: when both sides introduce themselves at the same time, one's message may come after
	// that. A session with a peer that no longer trusts this cluster is down by then.
	introductionKept = 20 * time.Second
	// deniedAgain is how often it tries again after an administrator there denied it.
	deniedAgain = 5 * time.Minute
	// updateAgain is how often a peer is sent the roots that it lacks.
	updateAgain = 30 * time.Second
)

// Trusts reconciles the trust in ForeignClusters: it redeems tokens, introduces this cluster to
// those that are named, takes the roots of those that were approved, and removes introductions
// without a decision that expired. The Trusted condition shows what fails.
type Trusts struct {
	Client client.Client
	// Direct reads ForeignClusters from the API server itself: with a cache that lags, a second
	// one would be created for a cluster.
	Direct    client.Client
	Namespace string
	Self      peering.ClusterID
	// OwnHash is the hash of this cluster's trust bundle.
	OwnHash   func() peering.Hash
	Strangers Strangers
	// Session returns the session with a peer.
	Session func(peering.ClusterID) Session
	// Wake requests that the named ForeignCluster be reconciled.
	Wake source.Source
	// AttemptChanged is called when Attempt returns something else for a ForeignCluster.
	AttemptChanged func(name string)
	// Joined is called when a token was redeemed and the new peer was written: that cluster waits
	// to be dialled.
	Joined func(id peering.ClusterID, info identity.ClusterInfo)
	// MayDial reports whether an endpoint for which no administrator vouches may be dialled now.
	// If nil, no such endpoint may be dialled.
	MayDial func(endpoint string) bool
	Now     func() time.Time

	mu sync.Mutex
	// attempts has them by name.
	attempts map[string]*attempt
}

// attempt is the state of trying to make trust. Except for the outcome, only the reconciliation
// of its object uses it, of which one runs at a time.
type attempt struct {
	uid        types.UID
	generation int64
	// outcome is the last one. The lock guards it.
	outcome Attempt
	// again is when to try again, pause how long the last pause was.
	again time.Time
	pause time.Duration
	// token is the SHA-256 of a token that is not to be tried again, read that of the Secret's
	// content when it was last read.
	token, read [sha256.Size]byte
	// updated is when the peer was sent this cluster's roots.
	updated time.Time
}

// Attempt is why there is no trust yet, as the reason and message of a condition.
type Attempt struct{ Reason, Message string }

// SetupWithManager registers the reconciler.
func (r *Trusts) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("trusts").
		For(&v1alpha1.ForeignCluster{}).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.waitingFor)).
		WatchesRawSource(r.Wake).
		WithOptions(controller.Options{MaxConcurrentReconciles: trustWorkers}).
		Complete(r)
}

// waitingFor returns the ForeignClusters whose token is in a Secret. Only the metadata of Secrets
// is watched, and only in this namespace.
func (r *Trusts) waitingFor(ctx context.Context, secret client.Object) []reconcile.Request {
	var list v1alpha1.ForeignClusterList
	if secret.GetNamespace() != r.Namespace || r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil { // it is requeued in time
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if t := list.Items[i].Spec.JoinToken; t != nil && t.Name == secret.GetName() {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}})
		}
	}
	return out
}

// Attempt returns why there is no trust in a cluster yet. It is empty if nothing was tried.
func (r *Trusts) Attempt(fc *v1alpha1.ForeignCluster) Attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.attempts[fc.Name]; a != nil && a.uid == fc.UID {
		return a.outcome
	}
	return Attempt{}
}

// Reconcile implements reconcile.Reconciler.
func (r *Trusts) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	fc := &v1alpha1.ForeignCluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, fc); apierrors.IsNotFound(err) {
		r.mu.Lock()
		delete(r.attempts, req.Name)
		r.mu.Unlock()
		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read foreign cluster %s: %w", req.Name, err)
	}
	if !fc.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	a, wait := r.attempt(fc)
	primary, err := store.Cached(ctx, r.Client, peering.ClusterID(fc.Spec.ClusterID))
	if err != nil {
		return reconcile.Result{}, err
	}
	if primary != nil && primary.UID != fc.UID {
		if primary.Name == fc.Name { // it was created again meanwhile
			return reconcile.Result{RequeueAfter: time.Second}, nil
		}
		return r.duplicate(ctx, primary, fc)
	}
	now := r.Now()
	step, when := nextStep(fc, r.Session(peering.ClusterID(fc.Spec.ClusterID)), r.OwnHash(), now)
	switch step {
	case stepNothing:
		r.report(fc, Attempt{})
	case stepLapse:
		err = r.lapse(ctx, fc)
	case stepDropIntroduction:
		err = r.dropIntroduction(ctx, fc)
	case stepTrust:
		err = r.trust(ctx, fc)
	case stepJoin:
		if wait > 0 && r.renewed(ctx, fc, a) {
			wait = 0
		}
		return r.try(ctx, fc, a, wait, func(ctx context.Context) error { return r.join(ctx, fc, a) })
	case stepIntroduce:
		return r.try(ctx, fc, a, wait, func(ctx context.Context) error { return r.introduce(ctx, fc) })
	case stepUpdate:
		return r.update(ctx, fc, a)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{RequeueAfter: when}, err
}

// step is the next step towards trust in a cluster.
type step int

const (
	stepNothing step = iota
	// stepLapse: an introduction is too old.
	stepLapse
	// stepDropIntroduction: trust is mutual, so the introduction is no longer used.
	stepDropIntroduction
	// stepTrust: the introduction was approved.
	stepTrust
	// stepJoin: redeem the token.
	stepJoin
	// stepIntroduce: introduce this cluster to the one that is named.
	stepIntroduce
	// stepUpdate: the peer has other roots than this cluster's.
	stepUpdate
)

// nextStep returns the next step for a ForeignCluster, and after how long to requeue it if
// nothing changes before; 0 means never.
func nextStep(fc *v1alpha1.ForeignCluster, s Session, own peering.Hash, now time.Time) (step, time.Duration) {
	intro := fc.Status.Introduction
	approved := fc.Spec.Decision == v1alpha1.DecisionApproved
	since := fc.CreationTimestamp.Time
	if intro != nil {
		since = intro.Time.Time
	}
	switch {
	case fc.Spec.Decision == v1alpha1.DecisionDenied:
		return stepNothing, 0
	case fc.Spec.TrustBundle != "" && s.Up != nil && intro != nil && (s.Up.Since.After(since) || now.Sub(since) >= introductionKept):
		return stepDropIntroduction, 0
	case fc.Spec.TrustBundle != "" && s.Up != nil && fc.Status.BundleHash != "" && fc.Status.BundleHash != own.String():
		return stepUpdate, 0
	case fc.Spec.TrustBundle != "" && s.Up == nil && s.Untrusted && approved && Dialable(fc):
		if ReportedForgotten(fc) {
			return stepNothing, 0
		}
		if intro != nil && now.Sub(since) < introduceAgain {
			return stepNothing, introduceAgain - now.Sub(since)
		}
		return stepIntroduce, 0
	case fc.Spec.TrustBundle != "" && s.Up == nil && store.Revoked(fc) && fc.Spec.JoinToken != nil:
		return stepJoin, 0
	case fc.Spec.TrustBundle != "" && s.Up != nil && intro != nil:
		return stepNothing, introductionKept - now.Sub(since)
	case fc.Spec.TrustBundle != "":
		return stepNothing, 0
	case approved && intro != nil:
		return stepTrust, 0
	case fc.Spec.JoinToken != nil:
		return stepJoin, 0
	case approved && Dialable(fc):
		return stepIntroduce, 0
	case fc.Hint():
		return stepNothing, 0 // it is removed when it is no longer found
	case store.Pending(fc) || (intro != nil && !approved):
		if left := IntroductionLife - now.Sub(since); left > 0 {
			return stepNothing, left
		}
		return stepLapse, 0
	}
	return stepNothing, 0
}

// attempt returns the attempt of a ForeignCluster and how long to wait before the next try. A
// changed spec is tried at once.
func (r *Trusts) attempt(fc *v1alpha1.ForeignCluster) (*attempt, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.attempts == nil {
		r.attempts = map[string]*attempt{}
	}
	a := r.attempts[fc.Name]
	if a == nil || a.uid != fc.UID {
		a = &attempt{uid: fc.UID, generation: fc.Generation}
		r.attempts[fc.Name] = a
	}
	if a.generation != fc.Generation {
		a.generation, a.again, a.pause = fc.Generation, time.Time{}, 0
	}
	return a, a.again.Sub(r.Now())
}

// report records an outcome.
func (r *Trusts) report(fc *v1alpha1.ForeignCluster, outcome Attempt) {
	r.mu.Lock()
	a := r.attempts[fc.Name]
	changed := a != nil && a.outcome != outcome
	if changed {
		a.outcome = outcome
	}
	r.mu.Unlock()
	if changed {
		r.AttemptChanged(fc.Name)
	}
}

// notYetError is a try that ended before another cluster was called.
type notYetError struct {
	Attempt
	// final means that another try without a change would fail in the same way.
	final bool
}

func (e *notYetError) Error() string { return e.Message }

func notYet(reason, format string, args ...any) error {
	return &notYetError{Attempt: Attempt{Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

// try calls another cluster, unless it has to wait, and records the outcome.
func (r *Trusts) try(ctx context.Context, fc *v1alpha1.ForeignCluster, a *attempt, wait time.Duration, do func(context.Context) error) (reconcile.Result, error) {
	if wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	err := do(ctx)
	if err == nil {
		a.again, a.pause = time.Time{}, 0
		r.report(fc, Attempt{})
		return reconcile.Result{}, nil
	}
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	result, pause := outcome(err)
	if pause == 0 {
		pause = min(max(2*a.pause, RetryMin), RetryMax)
		a.pause = pause
	}
	a.again = r.Now().Add(pause)
	r.report(fc, result)
	return reconcile.Result{RequeueAfter: pause}, nil
}

// outcome returns what administrators see of a failed try, and how long to wait before the next;
// 0 means a little longer than the last time.
func outcome(err error) (Attempt, time.Duration) {
	if e, ok := errors.AsType[*notYetError](err); ok {
		if e.final {
			return e.Attempt, RetryMax
		}
		return e.Attempt, 0
	}
	e, ok := errors.AsType[*peering.Error](err)
	if !ok {
		return Attempt{Reason: "AttemptFailed", Message: err.Error()}, 0
	}
	switch e.Reason { //nolint:exhaustive // whatever else it is may be over in a moment
	case peering.ReasonTrustDenied:
		return Attempt{Reason: ReasonDeniedByPeer, Message: "an administrator of the peer denied this cluster; have it approved there, or join with a token"}, deniedAgain
	case peering.ReasonTrustForgotten:
		return Attempt{Reason: ReasonForgottenByPeer, Message: ForgottenByPeer}, 0
	case peering.ReasonIntroductionsPending, peering.ReasonRateLimited, peering.ReasonTooManyCalls:
		return Attempt{Reason: e.Reason.Condition(), Message: e.Error()}, max(e.RetryAfter, RetryMax)
	}
	return Attempt{Reason: e.Reason.Condition(), Message: e.Error()}, e.RetryAfter
}

// join redeems the token of a ForeignCluster, once.
func (r *Trusts) join(ctx context.Context, fc *v1alpha1.ForeignCluster, a *attempt) error {
	text, err := r.tokenText(ctx, fc)
	a.read = sha256.Sum256(text)
	if err != nil {
		return err
	}
	if a.token == a.read {
		return &notYetError{Attempt: r.Attempt(fc), final: true}
	}
	token, info, err := r.redeem(ctx, fc, text)
	if e, ok := errors.AsType[*notYetError](err); ok && e.final {
		a.token = a.read
	}
	if err != nil {
		return err
	}
	before := fc.DeepCopy()
	fc.Spec.ClusterID, fc.Spec.TrustBundle = string(token.Issuer), info.PEM()
	Protect(fc) // in the same write, so that no other write can conflict
	if len(info.Endpoints) > 0 {
		fc.Spec.Endpoints = info.Endpoints
	} else if len(fc.Spec.Endpoints) == 0 {
		fc.Spec.Endpoints = token.Endpoints
	}
	if err := store.PatchLocked(ctx, r.Client, before, fc); err != nil {
		return err // this cluster can redeem the token again
	}
	info.Endpoints = fc.Spec.Endpoints
	r.Joined(token.Issuer, info)
	if fresh(before) && r.Session(token.Issuer).At.IsZero() {
		return nil // a ForeignCluster with roots has joined
	}
	return store.RecordJoined(ctx, r.Direct, fc)
}

// redeem redeems a token at the cluster that made it. A final *notYetError means that another
// token is needed.
func (r *Trusts) redeem(ctx context.Context, fc *v1alpha1.ForeignCluster, text []byte) (token jointoken.Token, info identity.ClusterInfo, err error) {
	final := func(reason, format string, args ...any) (jointoken.Token, identity.ClusterInfo, error) {
		return token, info, &notYetError{Attempt: Attempt{reason, fmt.Sprintf(format, args...)}, final: true}
	}
	where := fmt.Sprintf("the token in Secret %s/%s", r.Namespace, fc.Spec.JoinToken.Name)
	token, err = jointoken.Parse(string(text))
	switch {
	case err != nil:
		return final("TokenMalformed", "%s cannot be read: %s; put another in the Secret", where, err)
	case token.Issuer == r.Self:
		return final("PeerIsSelf", "%s is this cluster's own: redeem it in the other one", where)
	case fc.Spec.ClusterID != "" && fc.Spec.ClusterID != string(token.Issuer):
		return final("TokenOfAnotherCluster", "%s was made by cluster %s, and spec.clusterID is %s: put a token of that one in the Secret", where, token.Issuer, fc.Spec.ClusterID)
	}
	other, err := store.Cached(ctx, r.Client, token.Issuer)
	if err != nil {
		return token, info, err
	}
	if other != nil && other.UID != fc.UID && other.Spec.TrustBundle != "" {
		return token, info, notYet(ReasonDuplicate, "%s was made by a cluster that is trusted here already, as %s: delete one of the two", where, other.Name)
	}
	info, err = r.Strangers.Join(ctx, token)
	switch reason := peering.ReasonOf(err); reason { //nolint:exhaustive // the others are not the fault of the token
	case peering.ReasonTokenInvalid, peering.ReasonTokenExpired, peering.ReasonPeerIsSelf:
		return final(reason.Condition(), "%s: %s; put a new one in the Secret", where, strings.TrimSuffix(peering.AsError(err).Error(), "."))
	}
	return token, info, err
}

// fresh reports whether a ForeignCluster has no decision or state that a join would end.
func fresh(fc *v1alpha1.ForeignCluster) bool {
	return fc.Status.Introduction == nil && !store.Revoked(fc) &&
		(fc.Status.Source == "" || fc.Status.Source == v1alpha1.SourceToken || fc.Status.Source == v1alpha1.SourceManual)
}

// renewed reports whether the Secret changed since it was last read. A changed token is tried
// without a pause.
func (r *Trusts) renewed(ctx context.Context, fc *v1alpha1.ForeignCluster, a *attempt) bool {
	text, err := r.tokenText(ctx, fc)
	if _, missing := errors.AsType[*notYetError](err); err != nil && !missing || a.read == sha256.Sum256(text) {
		return false
	}
	a.pause = 0
	return true
}

// tokenText reads the token that a ForeignCluster names.
func (r *Trusts) tokenText(ctx context.Context, fc *v1alpha1.ForeignCluster) ([]byte, error) {
	ref := *fc.Spec.JoinToken
	ref.Key = cmp.Or(ref.Key, "token")
	text, missing, err := ReadSecret(ctx, r.Client, r.Namespace, ref, "the token")
	if missing != "" {
		err = notYet("TokenMissing", "%s", missing)
	}
	return text, err
}

// introduce introduces this cluster to one that an administrator named, and takes the roots that
// prove its ID.
func (r *Trusts) introduce(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	id := peering.ClusterID(fc.Spec.ClusterID)
	mayDial := func(endpoint string) bool { // a policy's peer announced its endpoint itself
		return store.PeerOfPolicy(fc) == "" || r.MayDial != nil && r.MayDial(endpoint)
	}
	i := store.Introduction{ID: id, MayCreate: forgottenHere}
	endpoints := fc.Spec.Endpoints
	if fc.Spec.InBand != nil {
		endpoints = []string{InBand}
	}
	failures, err := DialInTurn(endpoints, mayDial, func(endpoint string) (err error) {
		i.Info, i.Code, err = r.Strangers.Introduce(ctx, endpoint, id, fc.Spec.TrustBundle == "")
		return err
	})
	if err == nil {
		i.Time = r.Now()
		_, err = store.Introduce(ctx, r.Direct, i)
	}
	if len(failures) == 0 {
		return err
	}
	e := *peering.AsError(err)
	e.Message = strings.ReplaceAll(errors.Join(failures...).Error(), "\n", "; ")
	return &e
}

// trust trusts a cluster that introduced itself and was approved.
func (r *Trusts) trust(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	bundle := fc.Status.Introduction.Bundle
	if _, err := identity.ReadBundlePEM(peering.ClusterID(fc.Spec.ClusterID), []byte(bundle)); err != nil {
		r.report(fc, Attempt{Reason: "IntroductionInvalid", Message: fmt.Sprintf("status.introduction.bundle does not prove spec.clusterID: %s", err)})
		return nil
	}
	before := fc.DeepCopy()
	fc.Spec.TrustBundle = bundle
	Protect(fc)
	err := store.PatchLocked(ctx, r.Client, before, fc)
	if err == nil {
		r.report(fc, Attempt{})
	}
	return err
}

// dropIntroduction removes the introduction, now that trust is mutual.
func (r *Trusts) dropIntroduction(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	before := fc.DeepCopy()
	fc.Status.Introduction = nil
	err := store.PatchStatus(ctx, r.Client, before, fc)
	if err == nil {
		r.report(fc, Attempt{})
	}
	return err
}

// lapse removes an introduction without a decision that expired, and the ForeignCluster if it
// only existed for that.
func (r *Trusts) lapse(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	if store.Pending(fc) {
		err := r.Client.Delete(ctx, fc, client.Preconditions{UID: &fc.UID, ResourceVersion: &fc.ResourceVersion})
		if err != nil {
			return fmt.Errorf("forget the introduction of %s: %w", fc.Name, err)
		}
		return nil
	}
	before := fc.DeepCopy()
	fc.Status.Introduction = nil
	return store.PatchStatusLocked(ctx, r.Client, before, fc)
}

// duplicate handles a second ForeignCluster of the same cluster. If it only exists for an
// introduction, or because discovery found it, its status moves to the one that an administrator
// wrote.
func (r *Trusts) duplicate(ctx context.Context, primary, fc *v1alpha1.ForeignCluster) (reconcile.Result, error) {
	if !store.Pending(fc) {
		r.report(fc, Attempt{Reason: ReasonDuplicate, Message: fmt.Sprintf("cluster %s is known here as %s already: delete one of the two", fc.Spec.ClusterID, primary.Name)})
		return reconcile.Result{RequeueAfter: RetryMax}, nil
	}
	before := primary.DeepCopy()
	if primary.Spec.TrustBundle == "" && primary.Status.Introduction == nil && fc.Status.Introduction != nil {
		primary.Status.Introduction = fc.Status.Introduction
	}
	if len(primary.Status.Sightings) == 0 {
		primary.Status.Sightings = fc.Status.Sightings
	}
	if err := store.PatchStatus(ctx, r.Client, before, primary); err != nil {
		return reconcile.Result{}, err
	}
	err := r.Client.Delete(ctx, fc, client.Preconditions{UID: &fc.UID})
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("hand the introduction of %s to %s: %w", fc.Name, primary.Name, err)
	}
	return reconcile.Result{}, nil
}

// update sends the peer this cluster's roots if the peer has others.
func (r *Trusts) update(ctx context.Context, fc *v1alpha1.ForeignCluster, a *attempt) (reconcile.Result, error) {
	now := r.Now()
	if wait := updateAgain - now.Sub(a.updated); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	a.updated = now
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	if err := r.Strangers.UpdateBundle(ctx, peering.ClusterID(fc.Spec.ClusterID)); err != nil {
		ctrl.LoggerFrom(ctx).Info("a peer did not take this cluster's roots", "peer", fc.Name, "err", err.Error())
	}
	return reconcile.Result{RequeueAfter: updateAgain}, nil
}

// ReadSecret returns the value of a Secret's key, or a message that says what is missing. what
// describes the value in that message. Secrets are not cached.
func ReadSecret(ctx context.Context, c client.Reader, namespace string, ref v1alpha1.SecretKey, what string) (text []byte, missing string, err error) {
	var secret corev1.Secret
	err = c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, &secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, "", fmt.Errorf("read Secret %s/%s: %w", namespace, ref.Name, err)
	}
	if text = secret.Data[ref.Key]; len(text) > 0 {
		return text, "", nil
	}
	missing = fmt.Sprintf("waiting for Secret %s/%s with %s under key %s", namespace, ref.Name, what, ref.Key)
	if err == nil {
		missing += ": " + keysOf(&secret)
	}
	return nil, missing, nil
}

// keysOf describes the keys of a Secret.
func keysOf(s *corev1.Secret) string {
	var quoted []string
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		if len(s.Data[key]) > 0 {
			quoted = append(quoted, fmt.Sprintf("%q", key))
		}
	}
	switch n := len(quoted) - maxKeysNamed; {
	case len(quoted) == 0:
		return "it is empty"
	case len(quoted) == 1:
		return "its only key is " + quoted[0]
	case n > 0:
		return fmt.Sprintf("its keys are %s and %d more", strings.Join(quoted[:maxKeysNamed], ", "), n)
	}
	return "its keys are " + strings.Join(quoted, ", ")
}

// DialInTurn calls endpoints in order until a call succeeds. It returns why the ones before
// failed, and the error of the last call. It only calls endpoints that mayDial allows.
func DialInTurn(endpoints []string, mayDial func(string) bool, call func(string) error) (failures []error, err error) {
	for _, endpoint := range endpoints {
		if mayDial(endpoint) {
			err = call(endpoint)
		} else {
			err = peering.Errorf(peering.ReasonPeerUnreachable, "%s is an address of this cluster's own, or these are not known yet", endpoint)
		}
		if reason := peering.ReasonOf(err); err == nil || reason != peering.ReasonPeerUnreachable && reason != peering.ReasonPeerIdentity {
			return nil, err
		}
		failures = append(failures, err)
	}
	return failures, err
}

package controller

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Trust is the set of clusters that are trusted, and the sessions with them.
type Trust interface {
	// Set makes trust and sessions fit the given clusters: those that are not
	// among them are cut off at once. Those that were denied are told so when they
	// dial. A bundle that cannot be read trusts nobody.
	Set(peers []TrustedPeer, denied []peering.ClusterID)
	// Session tells of the session with a peer.
	Session(id peering.ClusterID) Session
	// Revoke tells a peer, if there is a session, that it is trusted no longer.
	Revoke(ctx context.Context, id peering.ClusterID, message string) error
}

// Session tells how things stand with a peer's agent.
type Session struct {
	// Up is the session; nil while there is none.
	Up *SessionInfo
	// Why says why there is none, and At when that was found out.
	Why string
	At  time.Time
	// Denied says that the peer, when it was dialled last, proved who it is and said
	// that an administrator there denied this cluster; Untrusted, that it does not
	// know or trust this cluster.
	Denied, Untrusted bool
}

// SessionInfo tells of a session that is up.
type SessionInfo struct {
	// Dialled says that this side dialled, Endpoint where.
	Dialled  bool
	Endpoint string
	Since    time.Time
	// RoundTrip is that of a message; 0 until it was measured.
	RoundTrip time.Duration
	// ClockSkew is how far the peer's clock is ahead. The side that was dialled knows
	// it once RoundTrip is known.
	ClockSkew time.Duration
	// NotAfter is when the certificate ends that the peer showed.
	NotAfter time.Time
}

// TrustedPeer is a cluster that is trusted.
type TrustedPeer struct {
	ID        peering.ClusterID
	Endpoints []string
	// Sighted is where discovery finds it: what others say.
	Sighted []string
	// Checked says that a policy trusts it and no person: it is dialled nowhere that what
	// is found may not be.
	Checked bool
	// Bundle is its root certificates, PEM.
	Bundle string
}

// Peers keeps a ForeignCluster's status true, and derives its Tunnel.
type Peers struct {
	Client client.Client
	States *States
	Trust  Trust
	// Attempt tells why there is no trust in a cluster yet.
	Attempt func(fc *v1alpha1.ForeignCluster) Attempt
	// Forget makes what a cluster was once trusted by worthless.
	Forget func(ctx context.Context, id peering.ClusterID) error
	// Forgotten keeps that a cluster was forgotten.
	Forgotten Forgotten
	// Events gets what happened to a peer.
	Events events.EventRecorder
	// AliasPool is where aliases for peers' prefixes come from.
	AliasPool []netip.Prefix
	// Reserved returns the prefixes of Services, which no alias may overlap.
	Reserved Reserved
	// Allocate returns a free prefix as long as wanted: wanted itself if it is
	// not taken, else one from the pool.
	Allocate func(taken []netip.Prefix, wanted, pool netip.Prefix) (netip.Prefix, error)
	// Exposed is what a peer may reach here now.
	Exposed func(ctx context.Context, peer peering.ClusterID) ([]Exposed, error)
	// Wake makes the named ForeignCluster be looked at again, as does Again.
	Wake  source.Source
	Again func(name string)
	// Spoken is called after this cluster's word to the peer may have changed.
	Spoken func(peer peering.ClusterID)
	// Readdressed is called when addresses translate otherwise than before.
	Readdressed func()
	Now         func() time.Time

	mu sync.Mutex
	// addressing is how each peer's addresses translated when last looked at. It
	// is only a memory of what was announced: after a restart it is announced
	// again.
	addressing map[types.UID]string
	// aliases is what peers' prefixes were given here: no other peer may be given the
	// same before the cache shows it.
	aliases map[types.UID][]v1alpha1.PrefixAlias
	// bare is the peers of which no tunnel and no key is left.
	bare map[types.UID]bool
	// telling is the peers that are being told, or were, that they were denied.
	telling map[types.UID]*farewell
	// refusals is what was heard of peers that refuse this cluster. It is only a memory:
	// after a restart it is counted anew.
	refusals map[types.UID]refusals
	// replaced is the version of each peer's object that the last write of its status
	// replaced.
	replaced map[types.UID]string
	// opened is when something was last opened to each peer.
	opened map[types.UID]time.Time
	// leaving is since when contracts with a peer that is being forgotten are over
	// here, and wait for the peer to hear of it.
	leaving map[types.UID]time.Time
}

// farewell is telling a peer that it is trusted no longer.
type farewell struct{ said bool }

// SetupWithManager registers the reconciler.
func (r *Peers) SetupWithManager(mgr ctrl.Manager) error {
	byContract := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.(*v1alpha1.Contract).Spec.ForeignCluster}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("peers").
		For(&v1alpha1.ForeignCluster{}).
		Watches(&v1alpha1.Contract{}, byContract).
		Watches(&v1alpha1.PeeringRequest{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.(*v1alpha1.PeeringRequest).Spec.ForeignCluster}}}
		})).
		Watches(&v1alpha1.FabricNode{}, r.touched()).
		Watches(&v1alpha1.Tunnel{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: o.(*v1alpha1.Tunnel).Spec.ForeignCluster}}}
		})).
		WatchesRawSource(r.Wake).
		WithOptions(controller.Options{MaxConcurrentReconciles: peerWorkers}).
		Complete(r)
}

// touched has the peers looked at that a change of a FabricNode matters to: all, or
// those of which it says something else.
func (r *Peers) touched() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	look := func(ctx context.Context, q queue, match func(*v1alpha1.ForeignCluster) bool) {
		var list v1alpha1.ForeignClusterList
		if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return // they are looked at again in time
		}
		for i := range list.Items {
			if match(&list.Items[i]) {
				q.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}})
			}
		}
	}
	all := func(*v1alpha1.ForeignCluster) bool { return true }
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, _ event.CreateEvent, q queue) { look(ctx, q, all) },
		DeleteFunc: func(ctx context.Context, _ event.DeleteEvent, q queue) { look(ctx, q, all) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			peers, everybody := fabricNews(e.ObjectOld.(*v1alpha1.FabricNode), e.ObjectNew.(*v1alpha1.FabricNode))
			if everybody || len(peers) > 0 {
				look(ctx, q, func(fc *v1alpha1.ForeignCluster) bool { return everybody || peers[fc.Spec.ClusterID] })
			}
		},
	}
}

// fabricNews returns what of a FabricNode changed: the peers to which its path did,
// and whether what concerns all peers did: what they are told of it, or its path to the
// gateway. Each fabric writes each minute that
// it is there, which is no news; see Gateways.
func fabricNews(before, after *v1alpha1.FabricNode) (peers map[string]bool, everybody bool) {
	a, b := before.Status.DeepCopy(), after.Status.DeepCopy()
	a.Paths, b.Paths, a.ObservedAt, b.ObservedAt = nil, nil, metav1.Time{}, metav1.Time{}
	if before.Spec != after.Spec || !equality.Semantic.DeepEqual(a, b) {
		return nil, true
	}
	said := func(n *v1alpha1.FabricNode) map[string][3]string {
		out := make(map[string][3]string, len(n.Status.Paths))
		for _, p := range n.Status.Paths {
			out[p.PeerID] = [3]string{p.Node, p.State, p.Message}
		}
		return out
	}
	was, is := said(before), said(after)
	peers = map[string]bool{}
	for id, p := range is {
		if old, ok := was[id]; !ok || old != p {
			peers[id] = true
		}
	}
	for id := range was {
		if _, ok := is[id]; !ok {
			peers[id] = true
		}
	}
	if peers[after.Spec.ClusterID] {
		return nil, true
	}
	return peers, false
}

// Reconcile implements reconcile.Reconciler.
func (r *Peers) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	primary, err := r.setTrust(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var fc v1alpha1.ForeignCluster
	if err := r.Client.Get(ctx, req.NamespacedName, &fc); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if r.isReplaced(&fc) {
		return reconcile.Result{RequeueAfter: endPoll}, nil // the cache is about to show what was written
	}
	id := peering.ClusterID(fc.Spec.ClusterID)
	defer r.Spoken(id)
	contracts, err := r.contracts(ctx, id)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !fc.DeletionTimestamp.IsZero() {
		return r.forget(ctx, &fc, contracts, primary[id])
	}
	if primary[id] == fc.Name && !store.Pending(&fc) && fc.Spec.Decision != v1alpha1.DecisionDenied {
		// Somebody here named it, or a token did. A denial takes nothing back.
		if err := r.Forgotten.Remove(ctx, id); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := r.addFinalizer(ctx, &fc); err != nil {
		return reconcile.Result{}, err
	}
	if fc.Spec.Decision == v1alpha1.DecisionDenied && fc.Spec.TrustBundle != "" {
		if gone, err := r.endTrust(ctx, fc.DeepCopy()); gone || err != nil {
			return reconcile.Result{}, err // the object changed, so it is looked at again
		}
	}
	before := fc.DeepCopy()
	view, result, err := r.make(ctx, &fc, contracts, primary[id])
	if err != nil {
		return reconcile.Result{}, err
	}
	fc.Status.Found = store.FoundBy(&fc)
	fc.Status.Role = RoleOf(view.Contracts)
	fc.Status.Granted, fc.Status.Used = grantedAndUsed(view.Contracts)
	fc.Status.Session = sessionStatus(before.Status.Session, view.Session)
	for _, c := range PeerConditions(view) {
		c.ObservedGeneration = fc.Generation
		if was := meta.FindStatusCondition(fc.Status.Conditions, c.Type); refusedByPeer(c.Reason) && was != nil && was.Reason != c.Reason {
			meta.RemoveStatusCondition(&fc.Status.Conditions, c.Type) // its time is that of the refusal; see forgotten
		}
		meta.SetStatusCondition(&fc.Status.Conditions, c)
	}
	if fc.Spec.TrustBundle == "" {
		meta.RemoveStatusCondition(&fc.Status.Conditions, ConditionCertificateValid)
	}
	wait, err := r.paceStatus(before, &fc)
	if err != nil {
		return reconcile.Result{}, err
	}
	result.RequeueAfter = shorter(result.RequeueAfter, wait)
	switch err := store.PatchStatus(ctx, r.Client, before, &fc); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: endPoll}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	r.replace(before, &fc)
	record(r.Events, &fc, peerEvents(before, &fc))
	return result, nil
}

// replace notes what a write of a peer's status replaced.
func (r *Peers) replace(before, after *v1alpha1.ForeignCluster) {
	if before.ResourceVersion == after.ResourceVersion {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replaced == nil {
		r.replaced = map[types.UID]string{}
	}
	r.replaced[before.UID] = before.ResourceVersion
}

// isReplaced says whether a peer's object is known to be no more as it was read.
func (r *Peers) isReplaced(fc *v1alpha1.ForeignCluster) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fc.ResourceVersion != "" && r.replaced[fc.UID] == fc.ResourceVersion
}

// make makes what stands because of a peer as it should be, and returns what its
// conditions are a function of. primary is the object that stands for the cluster.
func (r *Peers) make(ctx context.Context, fc *v1alpha1.ForeignCluster, contracts []v1alpha1.Contract, primary string) (PeerView, reconcile.Result, error) {
	view := PeerView{Peer: fc, Attempt: r.Attempt(fc), Now: r.Now()}
	// All that matters wakes it; a session's round trip and clocks drift slowly.
	result := reconcile.Result{RequeueAfter: restLook}
	if primary != "" && primary != fc.Name {
		return view, result, nil // contracts and tunnel are the other's
	}
	view.Contracts = contracts
	var nodes v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return view, result, fmt.Errorf("list fabric nodes: %w", err)
	}
	view.FabricNodes = nodes.Items
	var err error
	if view.Asks, err = store.RequestsOf(ctx, r.Client, fc.Name); err != nil {
		return view, result, err
	}
	view.Session = r.Trust.Session(peering.ClusterID(fc.Spec.ClusterID))
	view.Revoked = hearRevoked(fc, view.Session, view.Now)
	if view.Session.Up == nil && view.Session.Untrusted {
		if wait := unsettled(trustedOf(fc), view.Session.At, view.Now); wait > 0 {
			// The same refusal again wakes nobody.
			result.RequeueAfter = wait
		}
	}
	gone, again := forgotten(fc, view.Session, r.refused(fc, view.Session, view.Now), view.Now)
	switch {
	case fc.Spec.Decision == v1alpha1.DecisionDenied:
		err = r.takeDown(ctx, fc, contracts, v1alpha1.TerminateNow)
		if fc.Spec.TrustBundle != "" {
			result.RequeueAfter = endPoll
		}
	case view.Revoked:
		err = r.takeDown(ctx, fc, contracts, v1alpha1.TerminatePeer)
		if view.Session.Up != nil {
			result.RequeueAfter = sessionDead / 4
		}
	case gone:
		if slices.ContainsFunc(contracts, func(c v1alpha1.Contract) bool { return store.InForce(&c) && !endsNow(&c) }) {
			r.Events.Eventf(fc, nil, corev1.EventTypeWarning, "ForgottenByPeer", "Trust",
				"for %s in all the peer has refused this cluster as one that it does not trust: contracts with it end", forgottenAfter)
		}
		err = r.takeDown(ctx, fc, contracts, v1alpha1.TerminatePeer)
	default:
		if again > 0 && len(contracts) > 0 {
			result.RequeueAfter = min(result.RequeueAfter, again)
		}
		var state tunnelState
		state, err = r.tunnel(ctx, fc, contracts)
		view.TunnelWaits, view.TunnelLacks = state.waits, state.lacks
		if state.unsure {
			result.RequeueAfter = min(result.RequeueAfter, unsureLook)
		}
		if state.later > 0 {
			result.RequeueAfter = min(result.RequeueAfter, state.later)
		}
	}
	r.announce(fc)
	return view, result, err
}

// addFinalizer writes what protect sets.
func (r *Peers) addFinalizer(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	before := fc.DeepCopy()
	protect(fc)
	return store.PatchLocked(ctx, r.Client, before, fc)
}

// protect gives a trusted peer's object the finalizer, so that it stays until what exists
// because of it was removed, and the label by which peers are selected. For one that was
// never trusted there is nothing to remove.
func protect(fc *v1alpha1.ForeignCluster) {
	if fc.Spec.TrustBundle != "" {
		controllerutil.AddFinalizer(fc, v1alpha1.Finalizer)
	}
	if fc.Spec.ClusterID != "" {
		metav1.SetMetaDataLabel(&fc.ObjectMeta, v1alpha1.LabelPeer, fc.Spec.ClusterID)
	}
}

// endTrust removes the roots of a peer that was denied, which cuts it off, and
// says whether they are gone. The peer is told first, if it listens. What it is
// known by stays with the tombstone, so that approving it needs nothing of it.
func (r *Peers) endTrust(ctx context.Context, fc *v1alpha1.ForeignCluster) (bool, error) {
	if !r.farewell(ctx, fc) {
		return false, nil
	}
	if _, err := r.setTrust(ctx); err != nil {
		return false, err
	}
	if err := r.Forget(ctx, peering.ClusterID(fc.Spec.ClusterID)); err != nil {
		return false, err
	}
	before := fc.DeepCopy()
	fc.Status.Introduction = &v1alpha1.Introduction{Time: metav1.NewTime(r.Now()), Bundle: fc.Spec.TrustBundle}
	if err := store.PatchStatus(ctx, r.Client, before, fc); err != nil {
		return false, err
	}
	before = fc.DeepCopy()
	fc.Spec.TrustBundle = ""
	return true, store.PatchLocked(ctx, r.Client, before, fc)
}

// farewell says whether a peer that was denied was told so, or cannot be. It never
// waits: the first call sets out, and whoever is told is looked at again.
func (r *Peers) farewell(ctx context.Context, fc *v1alpha1.ForeignCluster) bool {
	id, uid, name := peering.ClusterID(fc.Spec.ClusterID), fc.UID, fc.Name
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.telling[uid]; f != nil {
		return f.said
	}
	if r.telling == nil {
		r.telling = map[types.UID]*farewell{}
	}
	f := &farewell{said: r.Trust.Session(id).Up == nil}
	r.telling[uid] = f
	if f.said {
		return true
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTimeout)
		defer cancel()
		if err := r.Trust.Revoke(ctx, id, "an administrator denied your cluster"); err != nil {
			ctrl.LoggerFrom(ctx).Info("a peer that was denied could not be told", "peer", name, "err", err.Error())
		}
		r.mu.Lock()
		f.said = true
		r.mu.Unlock()
		r.Again(name)
	}()
	return false
}

// takeDown ends contracts with a peer and takes the tunnel away.
func (r *Peers) takeDown(ctx context.Context, fc *v1alpha1.ForeignCluster, contracts []v1alpha1.Contract, how v1alpha1.Termination) error {
	for i := range contracts {
		if !store.InForce(&contracts[i]) {
			continue
		}
		if err := terminate(ctx, r.Client, &contracts[i], how); err != nil {
			return err
		}
	}
	fc.Status.Aliases, fc.Status.Network = nil, nil
	return r.dropTunnel(ctx, fc)
}

func (r *Peers) announce(fc *v1alpha1.ForeignCluster) {
	now := fmt.Sprint(fc.Status.Aliases)
	if fc.Status.Network != nil {
		now += fmt.Sprint(fc.Status.Network.Aliases)
	}
	r.mu.Lock()
	was, known := r.addressing[fc.UID]
	if r.addressing == nil {
		r.addressing = map[types.UID]string{}
	}
	r.addressing[fc.UID] = now
	r.mu.Unlock()
	if was != now && (known || now != "[]") {
		r.Readdressed()
	}
}

// Load makes trust fit the ForeignClusters before anybody is answered: a peer that
// dials an agent that just started must not hear that it is unknown.
func (r *Peers) Load(ctx context.Context) error {
	_, err := r.setTrust(ctx)
	return err
}

// setTrust makes trust fit the ForeignClusters, and returns the name of the one
// that stands for each cluster.
func (r *Peers) setTrust(ctx context.Context) (map[peering.ClusterID]string, error) {
	r.mu.Lock() // what was listed first must not be set last
	defer r.mu.Unlock()
	var list v1alpha1.ForeignClusterList
	// They are only read, with each look at each peer.
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	known := store.KnownAll(list.Items)
	primary := make(map[peering.ClusterID]string, len(known))
	exists := make(map[types.UID]bool, len(list.Items))
	var peers []TrustedPeer
	var denied []peering.ClusterID
	for i := range list.Items {
		fc := &list.Items[i]
		id := peering.ClusterID(fc.Spec.ClusterID)
		exists[fc.UID] = true
		if id == "" || known[id] != fc {
			continue
		}
		primary[id] = fc.Name
		trusted := fc.Spec.TrustBundle != ""
		if fc.Spec.Decision == v1alpha1.DecisionDenied {
			// For as long as it takes to tell it.
			f := r.telling[fc.UID]
			trusted = trusted && (f == nil || !f.said)
			if !trusted {
				denied = append(denied, id)
			}
		} else {
			delete(r.telling, fc.UID)
		}
		// A peer that is being forgotten stays trusted until its contracts are
		// closed and it was told; see forgetWait.
		if !fc.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(fc, v1alpha1.Finalizer) {
			trusted = false
		}
		if trusted {
			peers = append(peers, TrustedPeer{ID: id, Endpoints: fc.Spec.Endpoints, Sighted: store.SightedEndpoints(fc.Status.Sightings), Checked: store.PeerOfPolicy(fc) != "", Bundle: fc.Spec.TrustBundle})
		}
	}
	keep(r.telling, exists)
	keep(r.leaving, exists)
	keep(r.addressing, exists)
	keep(r.aliases, exists)
	keep(r.bare, exists)
	keep(r.replaced, exists)
	keep(r.refusals, exists)
	keep(r.opened, exists)
	r.Trust.Set(peers, denied)
	return primary, nil
}

// keep forgets of objects those that exist no more.
func keep[V any](of map[types.UID]V, exists map[types.UID]bool) {
	maps.DeleteFunc(of, func(uid types.UID, _ V) bool { return !exists[uid] })
}

// contracts returns the contracts with a peer, but for those that are settled.
func (r *Peers) contracts(ctx context.Context, id peering.ClusterID) ([]v1alpha1.Contract, error) {
	all, err := store.ContractsWith(ctx, r.Client, id)
	return slices.DeleteFunc(all, func(c v1alpha1.Contract) bool { return store.Settled(&c) }), err
}

// forget ends everything with a peer. It waits for this cluster alone, but for a
// moment in which the peer can hear of it. What belongs to another object that
// stands for the same cluster stays.
func (r *Peers) forget(ctx context.Context, fc *v1alpha1.ForeignCluster, contracts []v1alpha1.Contract, primary string) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(fc, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	if primary != "" && primary != fc.Name {
		return reconcile.Result{}, removeFinalizer(ctx, r.Client, fc)
	}
	asks, err := store.RequestsOf(ctx, r.Client, fc.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	for i := range asks {
		s := &asks[i]
		if !s.DeletionTimestamp.IsZero() {
			continue
		}
		if err := r.Client.Delete(ctx, s, client.Preconditions{UID: &s.UID}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("end peering request %s: %w", s.Name, err)
		}
	}
	for i := range contracts {
		if err := terminate(ctx, r.Client, &contracts[i], v1alpha1.TerminateNow); err != nil {
			return reconcile.Result{}, err
		}
	}
	if len(contracts) > 0 {
		// The peer hears of it by the session: the tunnel does not wait for that.
		if !slices.ContainsFunc(contracts, wantsTunnel) {
			if err := r.dropTunnel(ctx, fc); err != nil {
				return reconcile.Result{}, err
			}
		}
		return reconcile.Result{RequeueAfter: endPoll}, r.leave(ctx, fc, contracts)
	}
	r.setBare(fc.UID, false) // the last time it is made sure
	if err := r.dropTunnel(ctx, fc); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.Forget(ctx, peering.ClusterID(fc.Spec.ClusterID)); err != nil {
		return reconcile.Result{}, err
	}
	// Before the object is gone: the peer may introduce itself in the same second.
	forget := r.Forgotten.Add
	if store.MadeByPolicy(fc) != "" && fc.Annotations[v1alpha1.AnnotationAutomaticEnded] == "true" {
		forget = r.Forgotten.AddByPolicy
	}
	if err := forget(ctx, peering.ClusterID(fc.Spec.ClusterID)); err != nil {
		return reconcile.Result{}, err
	}
	if err := removeFinalizer(ctx, r.Client, fc); err != nil {
		return reconcile.Result{}, err
	}
	_, err = r.setTrust(ctx)
	return reconcile.Result{}, err
}

// leave says when contracts that are over here are let go although the peer did not
// hear of it: it has no part in them any more, or was waited for in vain. What it
// holds of them is then its own to end; see forgotten.
func (r *Peers) leave(ctx context.Context, fc *v1alpha1.ForeignCluster, contracts []v1alpha1.Contract) error {
	if letGo(fc) || slices.ContainsFunc(contracts, func(c v1alpha1.Contract) bool { return store.InForce(&c) }) {
		return nil
	}
	before, now, s := fc.DeepCopy(), r.Now(), r.Trust.Session(peering.ClusterID(fc.Spec.ClusterID))
	reason, message := reasonForgetting, fmt.Sprintf("it is being forgotten, and has up to %s to hear that its contracts are over", forgetWait)
	untold := false
	switch since := r.leavingSince(fc.UID, now); {
	case s.Up == nil && (s.Denied || s.Untrusted), store.Revoked(fc):
		reason, message = reasonForgotten, "it is being forgotten, and trusts this cluster no longer"
	case now.Sub(since) >= forgetWait:
		reason, message, untold = reasonForgotten, "it is being forgotten, and could not be told that its contracts are over", true
	}
	c := condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, reason, message)
	c.ObservedGeneration = fc.Generation
	if !meta.SetStatusCondition(&fc.Status.Conditions, c) {
		return nil
	}
	switch err := store.PatchStatusLocked(ctx, r.Client, before, fc); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // it is reconciled again
	case err != nil:
		return err
	}
	if untold {
		r.Events.Eventf(fc, nil, corev1.EventTypeWarning, "NotTold", "Forget",
			"the peer could not be told within %s that %d contracts are over, and may hold what they reserve until this cluster refused it for %s, or an administrator there forgets this cluster: %s",
			forgetWait, len(contracts), forgottenAfter, peering.Text(s.Why, maxWhy))
	}
	return nil
}

// letGo says whether contracts with a peer that is being forgotten are to be let go,
// whether or not it heard that they are over.
func letGo(fc *v1alpha1.ForeignCluster) bool {
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
	return !fc.DeletionTimestamp.IsZero() && c != nil && c.Reason == reasonForgotten
}

func (r *Peers) leavingSince(uid types.UID, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaving == nil {
		r.leaving = map[types.UID]time.Time{}
	}
	since, ok := r.leaving[uid]
	if !ok {
		since = now
		r.leaving[uid] = now
	}
	return since
}

// forgotten says whether the peer trusts this cluster no more for certain, or
// if it may be so, when to look again; 0 is that nothing says so. The peer proved
// who it is and refused this cluster, and did so again after a time in which it said
// nothing else and was not away, or as often as in such a time: what this cluster
// holds of contracts with it is of no use then.
// A peer that is silent, or cannot be reached, proves nothing.
func forgotten(fc *v1alpha1.ForeignCluster, s Session, heard refusals, now time.Time) (bool, time.Duration) {
	if s.Up != nil || !s.Untrusted {
		return false, 0
	}
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
	if c == nil || c.Status != metav1.ConditionFalse || !refusedByPeer(c.Reason) {
		return false, 0
	}
	due := c.LastTransitionTime.Add(forgottenAfter)
	return !s.At.Before(due) || heard.n > int(forgottenAfter/refusedApart), min(max(due.Sub(now), refusedAgain), refusedApart)
}

// refusals is how often a peer, proven to be it, refused this cluster since it last
// was heard to trust it. It may have been away between: refusals over separate
// connections are proof of the same.
type refusals struct {
	n    int
	last time.Time
}

// hear counts a refusal, if it is another one. Where the peer trusts this cluster, or
// may not know yet that trust was made anew, nothing is left of those before.
func (r refusals) hear(s Session, unsettled bool) refusals {
	switch {
	case s.Up != nil, s.Untrusted && unsettled:
		return refusals{}
	case s.Untrusted && (r.n == 0 || s.At.Sub(r.last) >= refusedApart):
		return refusals{r.n + 1, s.At}
	}
	return r
}

// refused counts a peer's refusals.
func (r *Peers) refused(fc *v1alpha1.ForeignCluster, s Session, now time.Time) refusals {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusals == nil {
		r.refusals = map[types.UID]refusals{}
	}
	r.refusals[fc.UID] = r.refusals[fc.UID].hear(s, unsettled(trustedOf(fc), s.At, now) > 0)
	return r.refusals[fc.UID]
}

// tunnel makes the Tunnel as it should be and keeps the aliases in fc's status.
func (r *Peers) tunnel(ctx context.Context, fc *v1alpha1.ForeignCluster, contracts []v1alpha1.Contract) (tunnelState, error) {
	if !slices.ContainsFunc(contracts, wantsTunnel) {
		fc.Status.Aliases = nil
		err := r.dropTunnel(ctx, fc)
		if fc.Status.Network != nil {
			r.setBare(fc.UID, false) // with what the peer still says a key comes
		}
		return tunnelState{}, err
	}
	r.setBare(fc.UID, false)
	exposed, err := r.Exposed(ctx, peering.ClusterID(fc.Spec.ClusterID))
	if err != nil {
		return tunnelState{}, fmt.Errorf("what %s may reach: %w", fc.Name, err)
	}
	local, unsaid, err := r.States.Prefixes(ctx)
	if err != nil {
		return tunnelState{}, err
	}
	var left []string
	if unsaid > 0 {
		left = append(left, fmt.Sprintf("%d pod prefixes of this cluster's nodes have no way to the peer, which can be told %d: set the prefix that holds them all with --pod-cidr",
			unsaid, peering.MaxPrefixes))
	}
	if fc.Status.Network != nil {
		waits, err := r.plan(ctx, fc, local)
		if err != nil {
			return tunnelState{}, err
		}
		left = append(left, waits)
	}
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Name}}
	err = r.Client.Get(ctx, client.ObjectKeyFromObject(tunnel), tunnel)
	if client.IgnoreNotFound(err) != nil {
		return tunnelState{}, fmt.Errorf("tunnel to %s: %w", fc.Name, err)
	}
	stands := err == nil && tunnel.Spec.PeerID == fc.Spec.ClusterID
	has := tunnel.Spec
	if !stands {
		has = v1alpha1.TunnelSpec{}
	}
	spec, waits := PlanTunnel(fc, local, &has)
	state := tunnelState{unsure: slices.ContainsFunc(exposed, func(e Exposed) bool { return e.Unknown })}
	if spec == nil {
		state.waits = joinTexts(append(left, waits))
		if !stands {
			return state, nil
		}
		// What stands stays: a peer that says less is not a peer that is gone. What is
		// open is this cluster's word alone, and is always as it is now.
		spec = tunnel.Spec.DeepCopy()
	}
	allow, closed := PlanAllow(exposed, has.Allow)
	spec.Allow = allow
	if state.waits == "" {
		state.lacks = joinTexts(append(left, waits, closed))
	}
	state.later, err = r.writeTunnel(ctx, fc, tunnel, *spec)
	if apierrors.IsInvalid(err) {
		state.lacks = joinTexts([]string{state.lacks, "what is to be open cannot be written, and what is to be closed is: " + peering.Text(err.Error(), maxWhy)})
		return state, nil
	}
	if err != nil {
		return tunnelState{}, err
	}
	return state, nil
}

// tunnelState is how things stand with the Tunnel of a peer.
type tunnelState struct {
	// waits is what all of it waits for, lacks what is left out of it.
	waits, lacks string
	// unsure says that it is not known of some contract what it exposes.
	unsure bool
	// later is when what is to be opened can be written; 0 if nothing waits.
	later time.Duration
}

// joinTexts joins texts that are not empty, each once.
func joinTexts(texts []string) string {
	var out []string
	for _, t := range texts {
		if t != "" && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return strings.Join(out, "; ")
}

// plan gives aliases to a peer's prefixes, to one peer after the other. It returns
// what is in the way, if anything.
func (r *Peers) plan(ctx context.Context, fc *v1alpha1.ForeignCluster, local []netip.Prefix) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken, err := r.taken(ctx, fc, local)
	if err != nil {
		return "", err
	}
	have, ok := r.aliases[fc.UID]
	if !ok {
		have = fc.Status.Aliases
	}
	aliases, err := PlanAliases(have, fc.Status.Network.Prefixes, r.AliasPool, taken, r.allocate)
	waits := ""
	if err != nil {
		waits = strings.ReplaceAll(err.Error(), "\n", "; ") // as errors.Join has it
	}
	if r.aliases == nil {
		r.aliases = map[types.UID][]v1alpha1.PrefixAlias{}
	}
	r.aliases[fc.UID], fc.Status.Aliases = aliases, aliases
	return waits, nil
}

func (r *Peers) allocate(taken []netip.Prefix, wanted netip.Prefix) (netip.Prefix, error) {
	err := fmt.Errorf("the alias pool has no prefixes of its family")
	for _, pool := range r.AliasPool {
		if pool.Addr().Is4() != wanted.Addr().Is4() {
			continue
		}
		var p netip.Prefix
		// Its own prefix counts as taken, so that it gets one of the pool.
		if p, err = r.Allocate(append(slices.Clone(taken), wanted), wanted, pool); err == nil {
			return p, nil
		}
	}
	return netip.Prefix{}, err
}

// taken returns the prefixes that no alias for this peer may overlap. The lock is
// held.
func (r *Peers) taken(ctx context.Context, fc *v1alpha1.ForeignCluster, local []netip.Prefix) ([]netip.Prefix, error) {
	reserved, err := r.Reserved.now(ctx)
	if err != nil {
		return nil, err
	}
	taken := slices.Concat(local, reserved)
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var addrs []netip.Prefix
	for i := range nodes.Items {
		addrs = append(addrs, nodeAddresses(&nodes.Items[i])...)
	}
	taken = append(taken, nodeNetworks(addrs)...)
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	for i := range list.Items {
		uid := list.Items[i].UID
		if uid == fc.UID {
			continue
		}
		given, ok := r.aliases[uid]
		if !ok {
			given = list.Items[i].Status.Aliases
		}
		for _, a := range given {
			if p, err := netip.ParsePrefix(a.Alias); err == nil {
				taken = append(taken, p)
			}
		}
	}
	return taken, nil
}

// dropTunnel takes away the tunnel to a peer, its key and its aliases. Once that is
// done it costs nothing.
func (r *Peers) dropTunnel(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	r.mu.Lock()
	bare := r.bare[fc.UID]
	delete(r.aliases, fc.UID)
	r.mu.Unlock()
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Name}}
	if bare && apierrors.IsNotFound(r.Client.Get(ctx, client.ObjectKeyFromObject(tunnel), tunnel)) {
		return nil
	}
	if err := r.Client.Delete(ctx, tunnel); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop the tunnel to %s: %w", fc.Name, err)
	}
	_, err := store.EditSecret(ctx, r.Client, r.States.secretKey(), func(data map[string][]byte) bool {
		_, had := data[fc.Spec.ClusterID]
		delete(data, fc.Spec.ClusterID)
		return had
	})
	if err == nil {
		r.setBare(fc.UID, true)
	}
	return err
}

// setBare notes whether nothing of a tunnel to a peer is left.
func (r *Peers) setBare(uid types.UID, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bare == nil {
		r.bare = map[types.UID]bool{}
	}
	r.bare[uid] = is
}

// endsNow says whether somebody asked for a contract's end at once.
func endsNow(c *v1alpha1.Contract) bool {
	return c.Spec.Termination != "" && c.Spec.Termination != v1alpha1.TerminateDrain
}

// terminate asks for a contract's end. The first to ask for an end at once is
// who ended it; only Drain is overruled.
func terminate(ctx context.Context, c client.Client, contract *v1alpha1.Contract, how v1alpha1.Termination) error {
	if contract.Spec.Termination == how || endsNow(contract) {
		return nil
	}
	before := contract.DeepCopy()
	contract.Spec.Termination = how
	return client.IgnoreNotFound(store.Patch(ctx, c, before, contract))
}

package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	"github.com/entente-dev/entente/internal/aliases"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/presharedkeys"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// Trust is the set of clusters that are trusted, and the sessions with them.
type Trust interface {
	// Set replaces the clusters that are trusted: sessions with others end at once. Denied clusters are told so
	// when they dial. A malformed bundle trusts no cluster.
	Set(peers []TrustedPeer, denied []peering.ClusterID)
	// Session returns the session with a peer.
	Session(id peering.ClusterID) trust.Session
	// Revoke notifies a peer, if there is a session, that it is trusted no longer.
	Revoke(ctx context.Context, id peering.ClusterID, message string) error
}

// TrustedPeer is a trusted cluster and how to reach it.
type TrustedPeer struct {
	ID        peering.ClusterID
	Endpoints []string
	// Sighted is the endpoints that discovery found, which are not proven.
	Sighted []string
	// InBand: it is reached through the tunnel to it.
	InBand bool
	// Ways are the gateways of this cluster whose path to an in-band peer is up.
	Ways []string
	// Checked: a policy trusts it, and no administrator. It is dialled only at addresses that are allowed for what
	// discovery finds.
	Checked bool
	// Bundle is its root certificates, PEM.
	Bundle string
}

// Peers reconciles the status of ForeignClusters, and their Tunnels.
type Peers struct {
	Client client.Client
	States *States
	Trust  Trust
	// Attempt returns why a cluster is not trusted yet.
	Attempt func(fc *v1alpha1.ForeignCluster) trust.Attempt
	// Forget revokes the tokens by which a cluster was trusted.
	Forget    func(ctx context.Context, id peering.ClusterID) error
	Forgotten *store.Forgotten
	Events    events.EventRecorder
	// AliasPool is where aliases for peers' prefixes come from.
	AliasPool []netip.Prefix
	// Reserved returns the prefixes of Services, which no alias may overlap.
	Reserved Reserved
	// MayDial reports whether gateways may dial an endpoint, address and port, at which a peer says that it is
	// seen. Nil means none.
	MayDial func(endpoint string) bool
	// InBand is what tunnels to in-band peers need.
	InBand InBand
	// Exposed returns what a peer may reach here now.
	Exposed func(ctx context.Context, peer peering.ClusterID) ([]allow.Exposed, error)
	// PodAddress returns the address that a pod of this cluster has in a peer, by its address here.
	PodAddress func(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool)
	// OwnPod is the address of the agent's own pod; the zero Addr if it is not known.
	OwnPod netip.Addr
	// Hosts returns the hosts, other than pods, that may be exported. Nil means none.
	Hosts func(ctx context.Context) ([]allow.Host, error)
	// Health returns what Kubernetes reports of a node. Nil means that all are healthy.
	Health func(node string) gateways.Health
	// Wake and Again trigger a reconciliation of the named ForeignCluster.
	Wake  source.Source
	Again func(name string)
	// StateChanged is called after this cluster's state for the peer may have changed.
	StateChanged func(peer peering.ClusterID)
	// Readdressed is called when the translation of a peer's addresses changed.
	Readdressed func(peer peering.ClusterID)
	Now         func() time.Time

	mu     sync.Mutex
	memory map[types.UID]*peerMemory
	// released is the aliases that peers gave up lately. A restart forgets it.
	released aliases.Released
}

// peerMemory is the state of a peer's object that is kept in memory between reconciliations. Aliases, root and cut
// are read again after a restart; the loss of the rest does no harm, as the fields say.
type peerMemory struct {
	// addressing is a digest of the translation of its addresses that was announced last; after a restart it is
	// announced again.
	addressing string
	// aliases is its aliases, once planned is true: no other peer may get the same before the cache shows them.
	aliases aliases.Allocation
	planned bool
	// tunnelGone: its tunnel and the key of that were removed; otherwise they are removed again.
	tunnelGone bool
	// denial is the notice that it was denied; nil if none was sent. After a restart there is no session to send
	// one by: the peer learns it when it dials.
	denial *denialNotice
	// refusals counts how often it refused this cluster, in case it is unreachable in between. After a restart
	// the count begins again; since when it has refused without a break is in the condition Trusted.
	refusals refusals
	root     rootRead
	// replaced is the version of the object that the last write of its status replaced. A cache that was just
	// filled has a newer one.
	replaced string
	// opened is when something was last opened to it; without it, one write is not paced.
	opened time.Time
	// closed is when something was last closed to it.
	closed time.Time
	// cut is since when pods of nodes have not reached it. The condition has that time, too, once it was reported.
	cut gateways.CutsSince
	// leaving is since when the peer is being forgotten, all contracts with it are closed here, and it was not
	// notified. After a restart it may take forgetWait again.
	leaving time.Time
}

// denialNotice is a message to a peer that it is no longer trusted. done: it was sent, or cannot be.
type denialNotice struct{ done bool }

// recall calls use with the memory of a peer's object, under the lock.
func (r *Peers) recall(uid types.UID, use func(*peerMemory)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memory[uid]
	if m == nil {
		m = &peerMemory{}
		if r.memory == nil {
			r.memory = map[types.UID]*peerMemory{}
		}
		r.memory[uid] = m
	}
	use(m)
}

// SetupWithManager registers the reconciler.
func (r *Peers) SetupWithManager(mgr ctrl.Manager) error {
	enqueue := func(peer func(client.Object) string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: peer(o)}}}
		})
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("peers").
		For(&v1alpha1.ForeignCluster{}).
		Watches(&v1alpha1.Contract{}, enqueue(func(o client.Object) string { return o.(*v1alpha1.Contract).Spec.ForeignCluster })).
		Watches(&v1alpha1.PeeringRequest{}, enqueue(func(o client.Object) string { return o.(*v1alpha1.PeeringRequest).Spec.ForeignCluster })).
		Watches(&v1alpha1.Tunnel{}, enqueue(func(o client.Object) string { return o.(*v1alpha1.Tunnel).Spec.ForeignCluster })).
		Watches(&v1alpha1.FabricNode{}, r.affected()).
		Watches(&v1alpha1.ForeignCluster{}, handler.EnqueueRequestsFromMapFunc(r.concerned)).
		WatchesRawSource(r.Wake).
		WithOptions(controller.Options{MaxConcurrentReconciles: peerWorkers}).
		Complete(r)
}

// concerned returns the peers that may reach another one through this cluster, or that this cluster may reach through
// it or the other way round. It is called for the peer as it was before a change, and as it is.
func (r *Peers) concerned(ctx context.Context, o client.Object) []reconcile.Request {
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // they are requeued after restInterval
	}
	var out []reconcile.Request
	for _, name := range transit.Concerned(o.(*v1alpha1.ForeignCluster), list.Items) {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
	}
	return out
}

// affected enqueues the peers that a change of a FabricNode affects: all, or those to which its paths changed.
func (r *Peers) affected() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, q queue, match func(*v1alpha1.ForeignCluster) bool) {
		var list v1alpha1.ForeignClusterList
		if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return // they are requeued after restInterval
		}
		for i := range list.Items {
			if match(&list.Items[i]) {
				q.Add(reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}})
			}
		}
	}
	all := func(*v1alpha1.ForeignCluster) bool { return true }
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, _ event.CreateEvent, q queue) { enqueue(ctx, q, all) },
		DeleteFunc: func(ctx context.Context, _ event.DeleteEvent, q queue) { enqueue(ctx, q, all) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			peers, everybody := gateways.Changes(e.ObjectOld.(*v1alpha1.FabricNode), e.ObjectNew.(*v1alpha1.FabricNode))
			if everybody || len(peers) > 0 {
				enqueue(ctx, q, func(fc *v1alpha1.ForeignCluster) bool { return everybody || peers[fc.Spec.ClusterID] })
			}
		},
	}
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
		return reconcile.Result{RequeueAfter: removalPoll}, nil // the cache is about to show what was written
	}
	id := peering.ClusterID(fc.Spec.ClusterID)
	defer r.StateChanged(id)
	s, err := r.load(ctx, &fc, primary[id])
	if err != nil {
		return reconcile.Result{}, err
	}
	if !s.secondary {
		r.announce(&fc) // also when it is forgotten: what led to it directly leads elsewhere at once
	}
	if !fc.DeletionTimestamp.IsZero() {
		return r.forget(ctx, s)
	}
	plan := planPeer(s)
	if ended, err := r.prepare(ctx, s, plan); ended || err != nil {
		return reconcile.Result{}, err // the object changed, so it is reconciled again
	}
	before := fc.DeepCopy()
	fc.Status = plan.status
	tunnel, err := r.act(ctx, s, plan)
	if err != nil {
		return reconcile.Result{}, err
	}
	cutsAgain := r.noteCuts(s)
	fc.Status = peerStatus(before, s, tunnel)
	after := min(plan.after, shorter(tunnel.again(), cutsAgain))
	if left := presharedkeys.Due(&fc, r.States.KeyEvery).Sub(s.Now); left > 0 {
		after = min(after, left)
	}
	return r.writeStatus(ctx, before, &fc, after)
}

// load reads what decides about a peer. primary is the object that represents the cluster:
// contracts and the tunnel are that one's.
func (r *Peers) load(ctx context.Context, fc *v1alpha1.ForeignCluster, primary string) (*PeerSnapshot, error) {
	s := &PeerSnapshot{Peer: fc, Attempt: r.Attempt(fc), Now: r.Now(), secondary: primary != "" && primary != fc.Name, primary: primary == fc.Name}
	if s.secondary {
		return s, nil
	}
	all, err := store.ContractsWith(ctx, r.Client, peering.ClusterID(fc.Spec.ClusterID))
	if err != nil {
		return nil, err
	}
	s.Contracts = slices.DeleteFunc(all, func(c v1alpha1.Contract) bool { return store.Released(&c) })
	var nodes v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list fabric nodes: %w", err)
	}
	s.FabricNodes, s.Health = nodes.Items, r.Health
	s.Session = r.Trust.Session(peering.ClusterID(fc.Spec.ClusterID))
	r.recall(fc.UID, func(m *peerMemory) {
		m.root = m.root.of(fc)
		s.refusals, s.root = m.refusals, m.root
	})
	s.Requests, err = store.RequestsOf(ctx, r.Client, fc.Name)
	return s, err
}

// noteCuts records which nodes' pods do not reach a peer, and since when. It returns when to check again; zero
// means when something changes.
func (r *Peers) noteCuts(s *PeerSnapshot) (again time.Duration) {
	var cuts []gateways.Cut
	if nodes := s.nodes(); slices.ContainsFunc(s.Contracts, wantsTunnel) {
		if carrier, _, _ := nodes.Carrier(s.Peer.Spec.ClusterID); carrier != nil {
			cuts = nodes.Cuts(s.Peer.Spec.ClusterID, carrier)
		}
	}
	var reported time.Time
	if c := meta.FindStatusCondition(s.Peer.Status.Conditions, v1alpha1.ConditionNetwork); c != nil && c.Reason == v1alpha1.ReasonNodesCutOff {
		reported = c.LastTransitionTime.Time
	}
	r.recall(s.Peer.UID, func(m *peerMemory) { s.CutOff, m.cut, again = gateways.Lasting(cuts, m.cut, reported, s.Now) })
	return again
}

// prepare does what has to be done first for a peer. It reports whether that ended the trust in it.
func (r *Peers) prepare(ctx context.Context, s *PeerSnapshot, plan peerPlan) (ended bool, err error) {
	if plan.unforget {
		if err := r.Forgotten.Remove(ctx, peering.ClusterID(s.Peer.Spec.ClusterID)); err != nil {
			return false, err
		}
	}
	before := s.Peer.DeepCopy()
	trust.Protect(s.Peer)
	if err := store.PatchLocked(ctx, r.Client, before, s.Peer); err != nil || !plan.endTrust {
		return false, err
	}
	return r.endTrust(ctx, s.Peer.DeepCopy())
}

// act carries out a plan. s.Peer has the plan's status, to which act adds aliases.
func (r *Peers) act(ctx context.Context, s *PeerSnapshot, plan peerPlan) (tunnelState, error) {
	fc := s.Peer
	if s.secondary {
		return tunnelState{}, nil
	}
	r.recall(fc.UID, func(m *peerMemory) { m.refusals = plan.refusals })
	s.Revoked = plan.revoked
	if plan.end == "" {
		return r.tunnel(ctx, s)
	}
	if plan.forgottenThere {
		r.Events.Eventf(fc, nil, corev1.EventTypeWarning, "ForgottenByPeer", "Trust",
			"for %s in all the peer has refused this cluster as one that it does not trust: contracts with it end", forgottenAfter)
	}
	for i := range s.Contracts {
		if store.Closed(&s.Contracts[i]) {
			continue
		}
		if err := terminate(ctx, r.Client, &s.Contracts[i], plan.end); err != nil {
			return tunnelState{}, err
		}
	}
	fc.Status.Aliases, fc.Status.AliasBlocks, fc.Status.Network = nil, nil, nil
	return r.tunnel(ctx, s.withoutContracts())
}

// writeStatus writes a peer's status within the peer's budget.
func (r *Peers) writeStatus(ctx context.Context, before, fc *v1alpha1.ForeignCluster, after time.Duration) (reconcile.Result, error) {
	wait, err := r.paceStatus(before, fc)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch err := store.PatchStatus(ctx, r.Client, before, fc); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: removalPoll}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	if before.ResourceVersion != fc.ResourceVersion {
		r.recall(fc.UID, func(m *peerMemory) { m.replaced = before.ResourceVersion })
	}
	record(r.Events, fc, peerEvents(before, fc))
	return reconcile.Result{RequeueAfter: shorter(after, wait)}, nil
}

// isReplaced reports whether a peer's object is known to be older than its last write.
func (r *Peers) isReplaced(fc *v1alpha1.ForeignCluster) (replaced bool) {
	r.recall(fc.UID, func(m *peerMemory) { replaced = fc.ResourceVersion != "" && m.replaced == fc.ResourceVersion })
	return replaced
}

// endTrust removes the roots of a peer that was denied, which cuts it off, and reports whether they are gone. The
// peer is notified first, if there is a session. The roots stay in status.introduction, so that it can be approved
// without a new introduction.
func (r *Peers) endTrust(ctx context.Context, fc *v1alpha1.ForeignCluster) (bool, error) {
	if !r.notifyDenied(ctx, fc) {
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

// notifyDenied reports whether a peer that was denied was notified, or cannot be. It never waits: the first call
// sends the notice, after which the peer is reconciled again.
func (r *Peers) notifyDenied(ctx context.Context, fc *v1alpha1.ForeignCluster) (done bool) {
	id, uid, name := peering.ClusterID(fc.Spec.ClusterID), fc.UID, fc.Name
	var send *denialNotice
	r.recall(uid, func(m *peerMemory) {
		if m.denial == nil {
			m.denial = &denialNotice{done: r.Trust.Session(id).Up == nil}
			send = m.denial
		}
		done = m.denial.done
	})
	if done || send == nil {
		return done
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), denialTimeout)
		defer cancel()
		if err := r.Trust.Revoke(ctx, id, "an administrator denied your cluster"); err != nil {
			ctrl.LoggerFrom(ctx).Info("a peer that was denied could not be notified", "peer", name, "err", err.Error())
		}
		r.recall(uid, func(*peerMemory) { send.done = true })
		r.Again(name)
	}()
	return false
}

// announce calls Readdressed if the translation of a peer's addresses changed in fc as it was read: the callee
// reads it, too, and would not see what is only planned.
func (r *Peers) announce(fc *v1alpha1.ForeignCluster) {
	now, changed := addressing(fc), false
	r.recall(fc.UID, func(m *peerMemory) {
		changed = m.addressing != now
		m.addressing = now
	})
	if changed {
		r.Readdressed(peering.ClusterID(fc.Spec.ClusterID))
	}
}

// addressing is a digest of how a peer's addresses translate, and this cluster's for it; empty if none do.
func addressing(fc *v1alpha1.ForeignCluster) string {
	network := cmp.Or(fc.Status.Network, &v1alpha1.PeerNetwork{})
	if len(fc.Status.Aliases)+len(fc.Status.AliasBlocks)+len(network.Aliases)+len(network.AliasBlocks) == 0 {
		return ""
	}
	h := sha256.New()
	for _, side := range []struct {
		prefixes []v1alpha1.PrefixAlias
		blocks   []v1alpha1.AliasBlock
	}{{fc.Status.Aliases, fc.Status.AliasBlocks}, {network.Aliases, network.AliasBlocks}} {
		_, _ = fmt.Fprintln(h, side.prefixes)
		for _, b := range side.blocks {
			_, _ = fmt.Fprintln(h, b.Alias, b.Addresses)
			for _, r := range b.Released { // not translated any more
				_, _ = fmt.Fprintln(h, r.Index)
			}
		}
	}
	_, _ = fmt.Fprintln(h, transit.Through(fc), network.Opened, transit.Passes(fc))
	for _, t := range network.Transit {
		_, _ = fmt.Fprintln(h, t.ClusterID, t.Namespaces)
	}
	return string(h.Sum(nil))
}

// Load sets trust before the agent serves any peer: one that dials an agent that just started must not be refused
// as unknown.
func (r *Peers) Load(ctx context.Context) error {
	_, err := r.setTrust(ctx)
	return err
}

// setTrust passes the clusters that ForeignClusters trust to Trust, and returns the name of the object that
// represents each cluster.
func (r *Peers) setTrust(ctx context.Context) (map[peering.ClusterID]string, error) {
	r.mu.Lock() // an older list must not be set after a newer one
	defer r.mu.Unlock()
	var list v1alpha1.ForeignClusterList
	// The list is only read, by each reconciliation of each peer.
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	known := store.KnownAll(list.Items)
	ways, err := r.ways(ctx, list.Items)
	if err != nil {
		return nil, err
	}
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
		m := r.memory[fc.UID]
		if fc.Spec.Decision == v1alpha1.DecisionDenied {
			// A denied peer stays trusted until it was notified.
			trusted = trusted && (m == nil || m.denial == nil || !m.denial.done)
			if !trusted {
				denied = append(denied, id)
			}
		} else if m != nil {
			m.denial = nil
		}
		// A peer that is being forgotten stays trusted until its contracts are closed and it was notified; see
		// forgetWait.
		if trusted && (fc.DeletionTimestamp.IsZero() || controllerutil.ContainsFinalizer(fc, v1alpha1.Finalizer)) {
			peers = append(peers, TrustedPeer{ID: id, Endpoints: fc.Spec.Endpoints, InBand: fc.Spec.InBand != nil, Ways: ways[id], Sighted: store.SightedEndpoints(fc.Status.Sightings), Checked: store.PeerOfPolicy(fc) != "", Bundle: fc.Spec.TrustBundle})
		}
	}
	maps.DeleteFunc(r.memory, func(uid types.UID, _ *peerMemory) bool { return !exists[uid] })
	r.Trust.Set(peers, denied)
	return primary, nil
}

// forget ends all contracts and trust with a peer. It waits for this cluster alone, except for forgetWait in which
// the peer can be notified. What belongs to another object of the same cluster stays.
func (r *Peers) forget(ctx context.Context, s *PeerSnapshot) (reconcile.Result, error) {
	fc := s.Peer
	if s.secondary || !controllerutil.ContainsFinalizer(fc, v1alpha1.Finalizer) {
		return reconcile.Result{}, store.RemoveFinalizer(ctx, r.Client, fc)
	}
	for i := range s.Requests {
		q := &s.Requests[i]
		if !q.DeletionTimestamp.IsZero() {
			continue
		}
		if err := r.Client.Delete(ctx, q, client.Preconditions{UID: &q.UID}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("delete peering request %s: %w", q.Name, err)
		}
	}
	for i := range s.Contracts {
		if err := terminate(ctx, r.Client, &s.Contracts[i], v1alpha1.TerminateNow); err != nil {
			return reconcile.Result{}, err
		}
	}
	if len(s.Contracts) > 0 {
		// The session notifies the peer: the tunnel does not wait for that, unless the session runs through it.
		if !slices.ContainsFunc(s.Contracts, wantsTunnel) {
			copied := s.withoutContracts()
			copied.Peer = fc.DeepCopy()
			if _, err := r.tunnel(ctx, copied); err != nil {
				return reconcile.Result{}, err
			}
		}
		return reconcile.Result{RequeueAfter: removalPoll}, r.leave(ctx, s)
	}
	r.recall(fc.UID, func(m *peerMemory) { m.tunnelGone = false }) // remove it once more, to be sure
	if err := r.dropTunnel(ctx, fc); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.Forget(ctx, peering.ClusterID(fc.Spec.ClusterID)); err != nil {
		return reconcile.Result{}, err
	}
	// This comes before the deletion: the peer may introduce itself in the same second.
	add := r.Forgotten.Add
	if store.MadeByPolicy(fc) != "" && fc.Annotations[v1alpha1.AnnotationAutomaticEnded] == "true" {
		add = r.Forgotten.AddByPolicy
	}
	if err := add(ctx, peering.ClusterID(fc.Spec.ClusterID)); err != nil {
		return reconcile.Result{}, err
	}
	if err := store.RemoveFinalizer(ctx, r.Client, fc); err != nil {
		return reconcile.Result{}, err
	}
	_, err := r.setTrust(ctx)
	return reconcile.Result{}, err
}

// leave records in the Trusted condition when closed contracts are removed although the peer was not notified: it
// no longer trusts this cluster, or did not come back in time. The peer then ends by itself what it stores of them;
// see forgotten.
func (r *Peers) leave(ctx context.Context, s *PeerSnapshot) error {
	fc := s.Peer
	if notWaitedFor(fc) || slices.ContainsFunc(s.Contracts, func(c v1alpha1.Contract) bool { return !store.Closed(&c) }) {
		return nil
	}
	since := s.Now
	r.recall(fc.UID, func(m *peerMemory) {
		if m.leaving.IsZero() {
			m.leaving = s.Now
		}
		since = m.leaving
	})
	c, unnotified := leaving(s, since)
	before := fc.DeepCopy()
	if !meta.SetStatusCondition(&fc.Status.Conditions, c) {
		return nil
	}
	switch err := store.PatchStatusLocked(ctx, r.Client, before, fc); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // it is reconciled again
	case err != nil:
		return err
	}
	if unnotified {
		r.Events.Eventf(fc, nil, corev1.EventTypeWarning, "PeerNotNotified", "Forget",
			"the peer could not be notified within %s that %d contracts are over, and may keep what they reserve until this cluster refused it for %s, or an administrator there forgets this cluster: %s",
			forgetWait, len(s.Contracts), forgottenAfter, peering.Text(s.Session.Why, maxWhy))
	}
	return nil
}

// notWaitedFor reports whether contracts with a peer that is being forgotten are removed without waiting until it
// is notified.
func notWaitedFor(fc *v1alpha1.ForeignCluster) bool {
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted)
	return !fc.DeletionTimestamp.IsZero() && c != nil && c.Reason == reasonForgotten
}

// endsNow reports whether an administrator, or the peer, asked for a contract's end at once.
func endsNow(c *v1alpha1.Contract) bool {
	return c.Spec.Termination != "" && c.Spec.Termination != v1alpha1.TerminateDrain
}

// terminate asks for a contract's end. The first request for an end at once decides who ended it; it overrules only
// Drain.
func terminate(ctx context.Context, c client.Client, contract *v1alpha1.Contract, how v1alpha1.Termination) error {
	if contract.Spec.Termination == how || endsNow(contract) {
		return nil
	}
	before := contract.DeepCopy()
	contract.Spec.Termination = how
	return client.IgnoreNotFound(store.Patch(ctx, c, before, contract))
}

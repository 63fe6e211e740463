package lending

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// view is the last look at what there is. What nodes and pods come to takes the
// longest and changes most often, so it is kept apart.
type view struct {
	supply     market.Supply
	suppliedAt time.Time
	// contracts is by name, those that were just signed included.
	contracts map[string]*v1alpha1.Contract
	market    *market.Market

	runtimeClasses, storageClasses []string
	classesAt                      time.Time
	// exports is what the peers of each policy are told of Services; nil before the
	// next look at them.
	exports map[string]market.Exported
}

// contractOf returns the contract in force that a request made; nil if there is
// none.
func (v *view) contractOf(peer peering.ClusterID, request string) *v1alpha1.Contract {
	for _, c := range v.contracts {
		if c.Spec.PeerID == string(peer) && c.Spec.Role == v1alpha1.ContractProvider && c.Spec.RequestID == request && store.InForce(c) {
			return c
		}
	}
	return nil
}

func (v *view) contractsWith(peer peering.ClusterID) int {
	n := 0
	for _, c := range v.contracts {
		if c.Spec.PeerID == string(peer) && !store.Settled(c) {
			n++
		}
	}
	return n
}

// wakeup is a channel on which one value stands for any number of changes.
type wakeup chan struct{}

func (w wakeup) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// touch says that what is held back changed. The lock is held.
func (l *Lender) touch() {
	l.moved.Store(true)
	if l.wake != nil {
		l.wake.wake()
	}
}

func (l *Lender) log() *slog.Logger {
	if l.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l.Log
}

// market returns what there is now. While informers tell of changes, nothing is
// looked at again that did not change. The lock is held.
func (l *Lender) market(ctx context.Context) (*market.Market, error) {
	if l.lapse() {
		l.touch()
	}
	following, now := l.following.Load(), l.Now()
	// Reset before looking: a change that comes while looking is looked at again.
	if !following || l.view.market == nil || l.supplied.Load() && now.Sub(l.view.suppliedAt) >= supplyPause {
		l.supplied.Store(false)
		s, err := l.readSupply(ctx)
		if err != nil {
			l.supplied.Store(true)
			return nil, err
		}
		l.view.supply, l.view.suppliedAt, l.view.market = s, now, nil
	}
	if moved := l.moved.Swap(false); moved || !following {
		l.view.market, l.view.exports = nil, nil
	}
	if l.view.market != nil {
		return l.view.market, nil
	}
	m, err := l.look(ctx)
	if err != nil {
		l.moved.Store(true)
		return nil, err
	}
	l.view.market = m
	return m, nil
}

// meeting is a peer that the API server showed before the cache did.
type meeting struct {
	peer *v1alpha1.ForeignCluster
	at   time.Time
}

// meet asks the API server for a peer that the cache does not show yet: it just
// joined. It is called without the lock, so that others need not wait for that.
func (l *Lender) meet(ctx context.Context, peer peering.ClusterID) error {
	l.mu.Lock()
	met := l.view.market != nil && l.view.market.Peers[peer] != nil
	l.mu.Unlock()
	if met {
		return nil
	}
	fc, err := store.Cached(ctx, l.Client, peer)
	if err != nil || fc != nil {
		return err
	}
	if fc, err = store.Find(ctx, l.Reader, peer); err != nil || fc == nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.met == nil {
		l.met = map[peering.ClusterID]meeting{}
	}
	l.met[peer] = meeting{peer: fc, at: l.Now()}
	return nil
}

// marketFor is market for a peer that asks, and that may have just joined. The lock
// is held.
func (l *Lender) marketFor(ctx context.Context, peer peering.ClusterID) (*market.Market, error) {
	m, err := l.market(ctx)
	if err != nil || m.Peers[peer] != nil {
		return m, err
	}
	now := l.Now()
	maps.DeleteFunc(l.met, func(_ peering.ClusterID, seen meeting) bool { return now.Sub(seen.at) >= recentSettle })
	fc := l.met[peer].peer
	if fc == nil { // what was looked at may be older than what the cache shows now
		if fc, err = store.Cached(ctx, l.Client, peer); err != nil {
			return nil, err
		}
	}
	if fc != nil {
		m.Peers[peer] = fc
	}
	return m, nil
}

// look reads everything but nodes and pods. The lock is held.
func (l *Lender) look(ctx context.Context) (*market.Market, error) {
	m := market.Market{Supply: l.view.supply}
	var err error
	if m.Policies, err = policies(ctx, l.Client); err != nil {
		return nil, err
	}
	var peers v1alpha1.ForeignClusterList
	if err := l.Client.List(ctx, &peers, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	m.Peers = store.KnownAll(peers.Items)
	l.classes(ctx, m.Policies)
	m.RuntimeClasses, m.StorageClasses = l.view.runtimeClasses, l.view.storageClasses
	if l.view.exports == nil {
		if l.view.exports, err = l.exports(ctx, m.Policies); err != nil {
			return nil, err
		}
	}
	m.Exports = l.view.exports
	if l.view.contracts, err = l.contracts(ctx); err != nil {
		return nil, err
	}
	held := make([]market.Holding, 0, len(l.view.contracts)+len(l.offers))
	for _, name := range slices.Sorted(maps.Keys(l.view.contracts)) {
		c := l.view.contracts[name]
		if !store.Unverified(c).Wants().Capacity {
			continue
		}
		amounts, err := store.Resources(c.Spec.Resources)
		if err != nil {
			return nil, fmt.Errorf("resources of contract %s: %w", c.Name, err)
		}
		held = append(held, market.Holding{
			Peer: peering.ClusterID(c.Spec.PeerID), Contract: c.Name, Amounts: amounts, Selector: c.Spec.NodeSelector,
		})
	}
	for key, o := range l.offers {
		// What it was to become may be stored, and whoever signed it gone before it
		// could be told.
		if c := l.view.contracts[o.ad.ContractID]; c != nil && !o.signing && uint64(max(c.Spec.Revision, 0)) >= o.ad.Revision {
			delete(l.offers, key)
			continue
		}
		held = append(held, market.Holding{
			Peer: key.peer, Contract: o.ad.ContractID, Amounts: o.ad.Resources, Selector: o.ad.NodeSelector,
		})
	}
	return market.New(m, held)
}

// contracts returns the contracts by name: those that the cache shows, and what
// was signed since. Whether one of the latter is there after all is asked for
// when the cache takes long.
func (l *Lender) contracts(ctx context.Context) (map[string]*v1alpha1.Contract, error) {
	var list v1alpha1.ContractList
	if err := l.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	out := make(map[string]*v1alpha1.Contract, len(list.Items)+len(l.recent))
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	for name, r := range l.recent {
		if shown := out[name]; shown != nil && shown.Spec.Revision >= r.contract.Spec.Revision {
			delete(l.recent, name)
			continue
		}
		if l.Now().Sub(r.at) >= recentSettle {
			var now v1alpha1.Contract
			err := l.Reader.Get(ctx, client.ObjectKey{Name: name}, &now)
			if apierrors.IsNotFound(err) {
				delete(l.recent, name)
				delete(out, name)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read contract %s: %w", name, err)
			}
			r = recentContract{contract: &now, at: l.Now()}
			l.recent[name] = r
		}
		out[name] = r.contract
	}
	return out, nil
}

// classes reads which runtime and storage classes there are, if a policy lends
// any. Where they cannot be read there are none. The lock is held.
func (l *Lender) classes(ctx context.Context, policies []market.Policy) {
	if !slices.ContainsFunc(policies, func(p market.Policy) bool { return len(p.Spec.RuntimeClasses)+len(p.Spec.StorageClasses) > 0 }) {
		l.view.runtimeClasses, l.view.storageClasses, l.view.classesAt = nil, nil, time.Time{}
		return
	}
	if now := l.Now(); !l.following.Load() || now.Sub(l.view.classesAt) >= classesPause {
		l.view.classesAt = now
		var runtime nodev1.RuntimeClassList
		var storage storagev1.StorageClassList
		if err := l.Reader.List(ctx, &runtime); err != nil {
			l.log().Warn("cannot tell which runtime classes there are", "err", err)
		} else {
			l.view.runtimeClasses = nil
			for i := range runtime.Items {
				l.view.runtimeClasses = append(l.view.runtimeClasses, runtime.Items[i].Name)
			}
		}
		if err := l.Reader.List(ctx, &storage); err != nil {
			l.log().Warn("cannot tell which storage classes there are", "err", err)
		} else {
			l.view.storageClasses = nil
			for i := range storage.Items {
				l.view.storageClasses = append(l.view.storageClasses, storage.Items[i].Name)
			}
			slices.Sort(l.view.storageClasses)
		}
	}
}

// Offer returns what this cluster would lend a peer now, and a channel that is
// closed once it may be something else. What nodes, pods and contracts come to is
// computed once for all peers.
func (l *Lender) Offer(ctx context.Context, peer peering.ClusterID) (peering.Offer, <-chan struct{}, error) {
	if err := l.meet(ctx, peer); err != nil {
		return peering.Offer{}, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	m, err := l.marketFor(ctx, peer)
	if err != nil {
		return peering.Offer{}, nil, err
	}
	return m.Offer(peer), l.changed, nil
}

// Lends says whether this cluster would lend a peer anything, as was found out last: it
// is asked for states, which wait for nobody. For a peer that it was not asked of before
// that is not known. Changed is called once it is known, and once it is otherwise.
func (l *Lender) Lends(peer peering.ClusterID) peering.Lending {
	l.wordsMu.Lock()
	defer l.wordsMu.Unlock()
	word, ok := l.words[peer]
	if !ok {
		if l.words == nil {
			l.words = make(map[peering.ClusterID]peering.Lending)
		}
		l.words[peer] = peering.LendsUnknown
		if l.wordless != nil {
			l.wordless.wake()
		}
	}
	return word
}

// relend finds out anew whether there is anything to borrow, for each peer that was told
// of it or is to be.
func (l *Lender) relend(ctx context.Context) {
	l.wordsMu.Lock()
	was := maps.Clone(l.words)
	l.wordsMu.Unlock()
	for peer, word := range was {
		now, known, err := l.lending(ctx, peer)
		if err != nil {
			if ctx.Err() == nil {
				l.log().Warn("cannot tell what is lent", "peer", peer, "err", err)
			}
			return
		}
		l.wordsMu.Lock()
		if known {
			l.words[peer] = now
		} else {
			delete(l.words, peer)
		}
		l.wordsMu.Unlock()
		if known && now != word {
			l.Changed(peer)
		}
	}
}

// lending says whether there is anything to borrow for a peer; not known is one that is
// none any more.
func (l *Lender) lending(ctx context.Context, peer peering.ClusterID) (word peering.Lending, known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, err := l.marketFor(ctx, peer)
	if err != nil || m.Peers[peer] == nil {
		return peering.LendsUnknown, false, err
	}
	if offer := m.Offer(peer); nothing(&offer) {
		return peering.LendsNothing, true, nil
	}
	return peering.LendsSomething, true, nil
}

// Run follows what decides until ctx ends: it has offers told anew when they may
// be others, and drops requests that nobody waits for.
func (l *Lender) Run(ctx context.Context) error {
	started := l.Now()
	wake := make(wakeup, 1)
	l.mu.Lock()
	l.wake = wake
	l.mu.Unlock()
	wordless := make(wakeup, 1)
	wordless.wake() // somebody may have asked before
	l.wordsMu.Lock()
	l.wordless = wordless
	l.wordsMu.Unlock()
	if l.Informers != nil {
		stop, err := l.follow(ctx, wake)
		defer stop()
		if err != nil {
			return err
		}
	}
	lapse, sweep := time.NewTicker(lapsePause), time.NewTicker(sweepPause)
	defer lapse.Stop()
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wordless:
			l.relend(ctx)
		case <-sweep.C:
			l.sweep(ctx, started)
		case <-lapse.C:
			l.mu.Lock()
			if l.lapse() {
				l.touch()
			}
			l.mu.Unlock()
		case <-wake:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(offerDebounce):
			}
			l.mu.Lock()
			if l.changed != nil {
				close(l.changed)
				l.changed = nil
			}
			l.mu.Unlock()
			l.relend(ctx)
		}
	}
}

// follow has informers say when something that decides changed.
func (l *Lender) follow(ctx context.Context, wake wakeup) (stop func(), err error) {
	var stops []func()
	stop = func() {
		l.following.Store(false)
		l.mu.Lock()
		l.counts, l.counted = nil, nil
		l.mu.Unlock()
		for _, f := range stops {
			f()
		}
	}
	supplied := func() { l.supplied.Store(true); wake.wake() }
	moved := func() { l.moved.Store(true); wake.wake() }
	served := func() {
		if l.exporting.Load() {
			moved()
		}
	}
	pods, err := l.Informers.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return stop, fmt.Errorf("follow what can be lent: %w", err)
	}
	counts := market.NewTally()
	counting, err := pods.AddEventHandler(counts.Handler(supplied))
	if err != nil {
		return stop, fmt.Errorf("follow what can be lent: %w", err)
	}
	stops = append(stops, func() { _ = pods.RemoveEventHandler(counting) })
	for _, kind := range []struct {
		object  client.Object
		differs func(before, after any) bool
		changed func()
	}{
		{&corev1.Node{}, nodeDiffers, supplied},
		{&v1alpha1.Contract{}, contractDiffers, moved},
		{&v1alpha1.ForeignCluster{}, peerDiffers, moved},
		{&v1alpha1.PeeringPolicy{}, generationDiffers, moved},
		{&corev1.Service{}, serviceDiffers, served},
		{&corev1.Namespace{}, namespaceDiffers, served},
	} {
		informer, err := l.Informers.GetInformer(ctx, kind.object)
		if err != nil {
			return stop, fmt.Errorf("follow what can be lent: %w", err)
		}
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { kind.changed() },
			DeleteFunc: func(any) { kind.changed() },
			UpdateFunc: func(before, after any) {
				if kind.differs(before, after) {
					kind.changed()
				}
			},
		})
		if err != nil {
			return stop, fmt.Errorf("follow what can be lent: %w", err)
		}
		stops = append(stops, func() { _ = informer.RemoveEventHandler(registration) })
	}
	l.mu.Lock()
	l.counts, l.counted = counts, counting.HasSynced
	l.mu.Unlock()
	l.supplied.Store(true)
	l.moved.Store(true)
	l.following.Store(true)
	return stop, nil
}

// differing compares two objects of a kind; what is of another kind differs.
func differing[T any](before, after any, differ func(a, b T) bool) bool {
	a, okA := before.(T)
	b, okB := after.(T)
	return !okA || !okB || differ(a, b)
}

// A node writes its status every few seconds. Only what is lent of it counts.
func nodeDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Node) bool {
		return market.TakesPods(a) != market.TakesPods(b) || !maps.Equal(a.Labels, b.Labels) ||
			!equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable)
	})
}

func contractDiffers(before, after any) bool {
	return differing(before, after, func(a, b *v1alpha1.Contract) bool {
		return a.Generation != b.Generation || a.Spec.Revision != b.Spec.Revision || store.InForce(a) != store.InForce(b)
	})
}

func peerDiffers(before, after any) bool {
	return differing(before, after, func(a, b *v1alpha1.ForeignCluster) bool {
		return a.Generation != b.Generation || a.Status.Found != b.Status.Found || !maps.Equal(a.Labels, b.Labels) ||
			len(a.Status.Requests) != len(b.Status.Requests)
	})
}

func generationDiffers(before, after any) bool {
	return differing(before, after, func(a, b client.Object) bool { return a.GetGeneration() != b.GetGeneration() })
}

// Test says what a peer would be answered, and why. It holds nothing back, and
// shows no request to anybody.
func (l *Lender) Test(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.PolicyTest, error) {
	if ask.RequestID == "" {
		ask.RequestID = "test"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m, err := l.market(ctx)
	if err != nil {
		return peering.PolicyTest{}, err
	}
	a, err := l.answer(m, peer, ask)
	out := peering.PolicyTest{Policy: a.policy}
	var said []string
	var refused *peering.Error
	switch {
	case err == nil:
		out.Advertisement = &a.ad
	case errors.As(err, &refused):
		out.Reason, said = refused.Reason, append(said, refused.Message)
		out.Advertisement = l.onceApproved(m, peer, ask, refused)
		if refused.Err != nil {
			said = append(said, refused.Err.Error())
		}
	default:
		return peering.PolicyTest{}, err
	}
	if fc := m.Peers[peer]; fc != nil {
		if name := market.Unconfirmed(m.Policies, fc); name != "" {
			said = append(said, fmt.Sprintf("policy %q names %s, and the cluster gave itself that name: to have it count, kubectl annotate foreigncluster %s %s=true",
				name, fc.Name, fc.Name, v1alpha1.AnnotationNameConfirmed))
		}
	}
	said = append(said, m.Explain(peer, ask)...)
	if services := m.TellsOf(peer).String(); services != "" {
		said = append(said, services)
	}
	out.Message = strings.Join(said, "; ")
	return out, nil
}

// onceApproved returns what a request that waits for an administrator would be
// answered once it is let through; nil for one that does not wait, or would get
// nothing then either.
func (l *Lender) onceApproved(m *market.Market, peer peering.ClusterID, ask peering.Ask, why *peering.Error) *peering.Advertisement {
	if why.Reason != peering.ReasonPolicyPending {
		return nil
	}
	a, err := l.answerIf(m, peer, ask, true)
	if err != nil {
		return nil
	}
	a.ad.ContractID, a.ad.NeedsApproval = "", true
	return &a.ad
}

// exports returns what the peers of each policy are told, by the policy's name. The
// lock is held.
func (l *Lender) exports(ctx context.Context, policies []market.Policy) (map[string]market.Exported, error) {
	named := map[string]bool{}
	for i := range policies {
		for _, e := range policies[i].Exports {
			named[e.Namespace] = true
		}
	}
	// Before looking: a change that comes while looking is looked at again.
	l.exporting.Store(len(named) > 0)
	var services []corev1.Service
	for _, name := range slices.Sorted(maps.Keys(named)) {
		var namespace corev1.Namespace
		err := l.Client.Get(ctx, client.ObjectKey{Name: name}, &namespace)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read namespace %s: %w", name, err)
		}
		if err != nil || market.Closed(&namespace, l.Namespace) {
			continue
		}
		var list corev1.ServiceList
		if err := l.Client.List(ctx, &list, client.InNamespace(name), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list services of namespace %s: %w", name, err)
		}
		services = append(services, list.Items...)
	}
	out := map[string]market.Exported{}
	for i := range policies {
		if p := &policies[i]; len(p.Exports) > 0 {
			out[p.Value.Name] = market.Exports(p.Exports, services)
		}
	}
	return out, nil
}

// serviceDiffers says whether what may be told of a Service changed.
func serviceDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Service) bool {
		return market.Withheld(a) != market.Withheld(b) || !maps.Equal(a.Labels, b.Labels) || !market.OfferedService(a).Equal(market.OfferedService(b))
	})
}

// namespaceDiffers says whether a namespace was closed or opened.
func namespaceDiffers(before, after any) bool {
	return differing(before, after, func(a, b *corev1.Namespace) bool { return market.Closed(a, "") != market.Closed(b, "") })
}

// policies returns the policies in the order in which they are asked.
func policies(ctx context.Context, c client.Reader) ([]market.Policy, error) {
	var list v1alpha1.PeeringPolicyList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list peering policies: %w", err)
	}
	return market.ReadPolicies(list.Items), nil
}

// readSupply returns what there is: by the tally, once it counts all pods, and else
// counted anew. The lock is held.
func (l *Lender) readSupply(ctx context.Context) (market.Supply, error) {
	if l.counts == nil || !l.counted() {
		return readSupply(ctx, l.Client)
	}
	var nodes corev1.NodeList
	if err := l.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return market.Supply{}, fmt.Errorf("list nodes: %w", err)
	}
	return l.counts.Supply(nodes.Items), nil
}

// readSupply reads nodes and pods. What it is given is only read, so a cache
// need not copy it.
func readSupply(ctx context.Context, c client.Reader) (market.Supply, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return market.Supply{}, fmt.Errorf("list nodes: %w", err)
	}
	if err := c.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return market.Supply{}, fmt.Errorf("list pods: %w", err)
	}
	return market.NewSupply(nodes.Items, pods.Items), nil
}

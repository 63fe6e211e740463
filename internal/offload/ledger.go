package offload

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/peering"
)

// ledger counts what the OffloadedPods of each contract take of it: those that the cache
// shows, as they come, change and go, and those that were created and that the cache may
// not show yet. After a restart the cache alone has them all. Adding a pod takes as long
// beside ten thousand others as beside none.
type ledger struct {
	mu sync.Mutex
	// shown has what the cache shows; used sums up by contract the live ones of that.
	shown map[types.NamespacedName]counted
	used  map[string]sum
	// growing is what pods are to take that the cache shows with less.
	growing map[types.NamespacedName]growth
	// pending is what the cache may not show yet, by contract and UID of the pod at home.
	pending map[string]map[string]pendingPod
}

// counted is what counts of an OffloadedPod.
type counted struct {
	contract string
	live     bool
	requests corev1.ResourceList
	// takes is that, or what it grows to.
	takes corev1.ResourceList
}

// sum is what so many live pods take.
type sum struct {
	resources corev1.ResourceList
	pods      int
}

type pendingPod struct {
	pod *api.OffloadedPod
	at  time.Time
}

func newLedger() *ledger {
	return &ledger{
		shown: make(map[types.NamespacedName]counted), used: make(map[string]sum),
		pending: make(map[string]map[string]pendingPod), growing: make(map[types.NamespacedName]growth),
	}
}

// show counts a pod as the cache shows it now.
func (l *ledger) show(pod *api.OffloadedPod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(pod)
	l.uncount(key)
	if pod.Generation >= l.growing[key].generation {
		delete(l.growing, key)
	}
	l.count(key, counted{contract: pod.Spec.Contract, live: live(pod), requests: pod.Spec.Requests})
	l.dropLocked(pod.Spec.Contract, pod.Spec.OriginUID)
}

// count counts a pod that the cache shows. The lock is held.
func (l *ledger) count(key types.NamespacedName, e counted) {
	e.takes = l.takes(key, e.requests)
	l.shown[key] = e
	if e.live {
		l.used[e.contract] = l.used[e.contract].plus(e.takes)
	}
}

// hide counts no more a pod that the cache does not show any more.
func (l *ledger) hide(pod *api.OffloadedPod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(pod)
	l.uncount(key)
	delete(l.growing, key)
}

// uncount forgets a pod that the cache showed. The lock is held.
func (l *ledger) uncount(key types.NamespacedName) {
	e, ok := l.shown[key]
	if !ok {
		return
	}
	delete(l.shown, key)
	if !e.live {
		return
	}
	if rest := l.used[e.contract].minus(e.takes); rest.pods > 0 {
		l.used[e.contract] = rest
	} else {
		delete(l.used, e.contract)
	}
}

// of returns what the live pods of a contract take, and how many there are.
func (l *ledger) of(contract string) (corev1.ResourceList, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := sum{resources: l.used[contract].resources.DeepCopy(), pods: l.used[contract].pods}
	for _, p := range l.pending[contract] {
		total = total.plus(l.takes(client.ObjectKeyFromObject(p.pod), p.pod.Spec.Requests))
	}
	if total.resources == nil {
		total.resources = corev1.ResourceList{}
	}
	return total.resources, total.pods
}

func (s sum) plus(requests corev1.ResourceList) sum {
	if s.resources == nil {
		s.resources = make(corev1.ResourceList, len(requests))
	}
	for name, q := range requests {
		total := s.resources[name]
		total.Add(q)
		s.resources[name] = total
	}
	s.pods++
	return s
}

func (s sum) minus(requests corev1.ResourceList) sum {
	for name, q := range requests {
		total := s.resources[name]
		total.Sub(q)
		s.resources[name] = total
		if total.IsZero() {
			delete(s.resources, name)
		}
	}
	s.pods--
	return s
}

// add has a pod count that was created, or may have been.
func (l *ledger) add(contract string, pod *api.OffloadedPod) { l.put(contract, pod, time.Now()) }

// reserve has a pod count that is being created, however long that takes.
func (l *ledger) reserve(contract string, pod *api.OffloadedPod) {
	l.put(contract, pod, time.Now().Add(ledgerReserved))
}

func (l *ledger) put(contract string, pod *api.OffloadedPod, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The cache was faster than the answer.
	if _, ok := l.shown[client.ObjectKeyFromObject(pod)]; ok {
		l.dropLocked(contract, pod.Spec.OriginUID)
		return
	}
	if l.pending[contract] == nil {
		l.pending[contract] = make(map[string]pendingPod)
	}
	l.pending[contract][pod.Spec.OriginUID] = pendingPod{pod: pod, at: at}
}

func (l *ledger) drop(contract, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(contract, uid)
}

func (l *ledger) dropLocked(contract, uid string) {
	delete(l.pending[contract], uid)
	if len(l.pending[contract]) == 0 {
		delete(l.pending, contract)
	}
}

// coming returns the pods of a contract that the cache may not show yet, by UID.
func (l *ledger) coming(contract string) map[string]pendingPod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.pending[contract])
}

// get returns a pod that was created and that the cache may not show yet, or nil.
func (l *ledger) get(contract, uid string) *api.OffloadedPod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending[contract][uid].pod
}

// graves remembers the UIDs of pods that were here and went, as far as this
// process saw it: an apply that was on its way does not run one of them again.
type graves struct {
	mu    sync.Mutex
	peers map[peering.ClusterID]*graveyard
	n     int // of all peers
}

// graveyard is of one peer, the oldest first.
type graveyard struct {
	uids  map[string]struct{}
	order []string
}

func (g *graves) add(peer peering.ClusterID, uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.peers == nil {
		g.peers = make(map[peering.ClusterID]*graveyard)
	}
	y := g.peers[peer]
	if y == nil {
		y = &graveyard{uids: make(map[string]struct{})}
		g.peers[peer] = y
	}
	if _, ok := y.uids[uid]; ok {
		return
	}
	y.uids[uid] = struct{}{}
	y.order = append(y.order, uid)
	if g.n++; g.n > maxGraves {
		g.forget()
	}
}

// forget forgets the oldest of the peer that has the most. The lock is held.
func (g *graves) forget() {
	var most peering.ClusterID
	for peer, y := range g.peers {
		if m := g.peers[most]; m == nil || len(y.order) > len(m.order) {
			most = peer
		}
	}
	y := g.peers[most]
	delete(y.uids, y.order[0])
	y.order = y.order[1:]
	g.n--
	if len(y.order) == 0 {
		delete(g.peers, most)
	}
}

func (g *graves) has(peer peering.ClusterID, uid string) (ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if y := g.peers[peer]; y != nil {
		_, ok = y.uids[uid]
	}
	return ok
}

// settle asks for pods of a contract that the cache should show by now whether they are
// there after all.
func (p *Provider) settle(ctx context.Context, contract string) error {
	for uid, w := range p.ledger.coming(contract) {
		if time.Since(w.at) <= ledgerSettle {
			continue
		}
		now := &api.OffloadedPod{}
		err := p.client.Get(ctx, client.ObjectKeyFromObject(w.pod), now)
		if apierrors.IsNotFound(err) {
			p.stock.Drop(podKey(w.pod))
		}
		if apierrors.IsNotFound(err) || err == nil && now.Spec.OriginUID != uid {
			p.ledger.drop(contract, uid)
			continue
		}
		if err != nil {
			return fmt.Errorf("look for offloaded pod: %w", err)
		}
	}
	return p.settleGrowth(ctx, contract)
}

// Usage returns what the live pods of a contract take of it, and how many there
// are. A pod that is being deleted is live until it ended.
func (p *Provider) Usage(ctx context.Context, contract string) (used corev1.ResourceList, pods int, err error) {
	if err := p.await(ctx); err != nil {
		return nil, 0, err
	}
	if err := p.settle(ctx, contract); err != nil {
		return nil, 0, err
	}
	used, pods = p.ledger.of(contract)
	maps.Copy(used, volumes.Usage(typed[*corev1.PersistentVolumeClaim](p.inv.claims.List()), contract, heldKey(contract)))
	return used, pods, nil
}

package offload

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/peering"
)

// ledger has the OffloadedPods that were created and that the cache may not show
// yet. With the cache it makes what a contract uses: after a restart the cache
// alone has them all.
type ledger struct {
	mu sync.Mutex
	// pending is by contract and UID of the pod at home.
	pending map[string]map[string]pendingPod
}

type pendingPod struct {
	pod *api.OffloadedPod
	at  time.Time
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
	if l.pending[contract] == nil {
		l.pending[contract] = make(map[string]pendingPod)
	}
	l.pending[contract][pod.Spec.OriginUID] = pendingPod{pod: pod, at: at}
}

func (l *ledger) drop(contract, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending[contract], uid)
	if len(l.pending[contract]) == 0 {
		delete(l.pending, contract)
	}
}

func (l *ledger) of(contract string) map[string]pendingPod {
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

// counted returns the OffloadedPods that count against a contract: those that
// the cache shows, and those that it should show soon. Whether one of the latter
// is there after all is asked for when it takes long.
func (p *Provider) counted(ctx context.Context, contract string) ([]*api.OffloadedPod, error) {
	pending := p.ledger.of(contract)
	pods := p.inv.of(contract)
	for _, o := range pods {
		if _, ok := pending[o.Spec.OriginUID]; ok {
			p.ledger.drop(contract, o.Spec.OriginUID)
			delete(pending, o.Spec.OriginUID)
		}
	}
	for uid, w := range pending {
		if time.Since(w.at) > ledgerSettle {
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
				return nil, fmt.Errorf("look for offloaded pod: %w", err)
			}
		}
		pods = append(pods, w.pod)
	}
	return pods, nil
}

// Usage returns what the live pods of a contract take of it, and how many there
// are. A pod that is being deleted is live until it ended.
func (p *Provider) Usage(ctx context.Context, contract string) (used corev1.ResourceList, pods int, err error) {
	if err := p.await(ctx); err != nil {
		return nil, 0, err
	}
	counted, err := p.counted(ctx, contract)
	if err != nil {
		return nil, 0, err
	}
	used, pods = usage(counted)
	maps.Copy(used, volumes.Usage(typed[*corev1.PersistentVolumeClaim](p.inv.claims.List()), contract, heldKey(contract)))
	return used, pods, nil
}

// Package ledger counts what pods use of the contracts under which they run.
package ledger

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
)

// Ledger counts what the OffloadedPods of each contract use of it: those in the cache, as it
// changes, and those that were created but that the cache may not have yet. After a restart the
// cache alone has them all. Adding a pod takes the same time however many others there are.
type Ledger struct {
	mu sync.Mutex
	// shown has the pods of the cache; used sums up the live ones by contract.
	shown map[types.NamespacedName]counted
	used  map[string]sum
	// growing has the new resources of pods that the cache still shows with less.
	growing map[types.NamespacedName]growth
	// pending has the pods that the cache may not have yet, by contract and UID of the pod at home.
	pending map[string]map[string]pendingPod
}

// counted is what an OffloadedPod counts.
type counted struct {
	contract string
	live     bool
	requests corev1.ResourceList
	// takes is that, or the resources to which it grows.
	takes corev1.ResourceList
}

// sum is a number of live pods and the resources that they use.
type sum struct {
	resources corev1.ResourceList
	pods      int
}

type pendingPod struct {
	pod *api.OffloadedPod
	at  time.Time
}

// New returns an empty ledger.
func New() *Ledger {
	return &Ledger{
		shown: make(map[types.NamespacedName]counted), used: make(map[string]sum),
		pending: make(map[string]map[string]pendingPod), growing: make(map[types.NamespacedName]growth),
	}
}

// Show counts a pod as the cache has it now; one that is not live uses nothing.
func (l *Ledger) Show(pod *api.OffloadedPod, live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(pod)
	l.uncount(key)
	if pod.Generation >= l.growing[key].generation {
		delete(l.growing, key)
	}
	l.count(key, counted{contract: pod.Spec.Contract, live: live, requests: pod.Spec.Requests})
	l.dropLocked(pod.Spec.Contract, pod.Spec.OriginUID)
}

// count counts a pod of the cache. The lock is held.
func (l *Ledger) count(key types.NamespacedName, e counted) {
	e.takes = l.takes(key, e.requests)
	l.shown[key] = e
	if e.live {
		l.used[e.contract] = l.used[e.contract].plus(e.takes)
	}
}

// Hide removes a pod that is no longer in the cache.
func (l *Ledger) Hide(pod *api.OffloadedPod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(pod)
	l.uncount(key)
	delete(l.growing, key)
}

// uncount removes a pod of the cache. The lock is held.
func (l *Ledger) uncount(key types.NamespacedName) {
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

// Of returns what the live pods of a contract use, and how many there are.
func (l *Ledger) Of(contract string) (corev1.ResourceList, int) {
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

// Add counts a pod that was created, or may have been.
func (l *Ledger) Add(contract string, pod *api.OffloadedPod) { l.put(contract, pod, time.Now()) }

// Reserve counts a pod that is being created, however long that takes.
func (l *Ledger) Reserve(contract string, pod *api.OffloadedPod) {
	l.put(contract, pod, time.Now().Add(reserved))
}

func (l *Ledger) put(contract string, pod *api.OffloadedPod, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The cache was faster than the response.
	if _, ok := l.shown[client.ObjectKeyFromObject(pod)]; ok {
		l.dropLocked(contract, pod.Spec.OriginUID)
		return
	}
	if l.pending[contract] == nil {
		l.pending[contract] = make(map[string]pendingPod)
	}
	l.pending[contract][pod.Spec.OriginUID] = pendingPod{pod: pod, at: at}
}

// Drop removes a pod that was added or reserved.
func (l *Ledger) Drop(contract, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(contract, uid)
}

func (l *Ledger) dropLocked(contract, uid string) {
	delete(l.pending[contract], uid)
	if len(l.pending[contract]) == 0 {
		delete(l.pending, contract)
	}
}

// Coming returns the UIDs at home of the pods of a contract that the cache may not have yet.
func (l *Ledger) Coming(contract string) map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]bool, len(l.pending[contract]))
	for uid := range l.pending[contract] {
		out[uid] = true
	}
	return out
}

// Get returns a pod that was created but that the cache may not have yet, or nil.
func (l *Ledger) Get(contract, uid string) *api.OffloadedPod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending[contract][uid].pod
}

// Minus returns amount less other.
func Minus(amount, other corev1.ResourceList) corev1.ResourceList {
	return sum{resources: amount.DeepCopy()}.minus(other).resources
}

// growth is the new resources of a pod that the cache still shows with less, and the generation
// from which it has them.
type growth struct {
	contract   string
	generation int64
	requests   corev1.ResourceList
	at         time.Time
}

// Grow counts the new resources of a pod before the cache has them.
func (l *Ledger) Grow(pod *api.OffloadedPod, requests corev1.ResourceList) (undo func()) {
	key := client.ObjectKeyFromObject(pod)
	l.mu.Lock()
	defer l.mu.Unlock()
	before, had := l.growing[key]
	g := growth{contract: pod.Spec.Contract, generation: pod.Generation + 1, requests: requests.DeepCopy(), at: time.Now()}
	if had {
		g.requests = podspec.Most(g.requests, before.requests)
	}
	l.growing[key] = g
	l.recount(key)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.growing[key].at != g.at {
			return
		}
		delete(l.growing, key)
		if had {
			l.growing[key] = before
		}
		l.recount(key)
	}
}

// takes returns what a pod uses of its contract, given its requests in the cache. The lock is held.
func (l *Ledger) takes(key client.ObjectKey, requests corev1.ResourceList) corev1.ResourceList {
	if g, ok := l.growing[key]; ok {
		return podspec.Most(requests, g.requests)
	}
	return requests
}

// recount counts a pod of the cache with the resources to which it grows. The lock is held.
func (l *Ledger) recount(key client.ObjectKey) {
	if e, ok := l.shown[key]; ok {
		l.uncount(key)
		l.count(key, e)
	}
}

// grown ends the growth of a pod that the cache will not show, as it was not written.
func (l *Ledger) grown(key client.ObjectKey, generation int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.growing[key]; ok && generation < g.generation {
		delete(l.growing, key)
		l.recount(key)
	}
}

// Confirm reads the pods of a contract that the cache should have by now, or should have in their new
// size. get reads a pod from the API server and returns nil if it does not exist; gone is called with
// each that does not.
func (l *Ledger) Confirm(contract string, get func(client.ObjectKey) (*api.OffloadedPod, error), gone func(*api.OffloadedPod)) error {
	coming, growing := l.overdue(contract)
	for uid, pod := range coming {
		now, err := get(client.ObjectKeyFromObject(pod))
		switch {
		case err != nil:
			return err
		case now == nil:
			gone(pod)
			l.Drop(contract, uid)
		case now.Spec.OriginUID != uid:
			l.Drop(contract, uid)
		}
	}
	for _, key := range growing {
		now, err := get(key)
		if err != nil {
			return err
		}
		var generation int64
		if now != nil {
			generation = now.Generation
		}
		l.grown(key, generation)
	}
	return nil
}

// overdue returns the pods of a contract that the cache should have by now, by UID, and those whose
// growth it should have.
func (l *Ledger) overdue(contract string) (coming map[string]*api.OffloadedPod, growing []client.ObjectKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	coming = map[string]*api.OffloadedPod{}
	for uid, w := range l.pending[contract] {
		if time.Since(w.at) > confirmAfter {
			coming[uid] = w.pod
		}
	}
	for key, g := range l.growing {
		if g.contract == contract && time.Since(g.at) > confirmAfter {
			growing = append(growing, key)
		}
	}
	return coming, growing
}

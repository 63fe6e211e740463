package vk

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/peering"
)

// provider is a small foreign cluster in memory, and the connection to it. Its objects outlive a
// restart of the consumer; the wants do not.
type provider struct {
	refuse func(peering.Object) *peering.Refusal
	// bar refuses a Want before it is kept, as a mirror without room does.
	bar  func(peering.Object) *peering.Refusal
	exec func(ctx context.Context, ref peering.ObjectRef, o peering.ExecOptions) error
	logs func(ctx context.Context, ref peering.ObjectRef, o peering.LogOptions) (io.ReadCloser, error)
	dial func(ctx context.Context, ref peering.ObjectRef, port int32, conn io.ReadWriteCloser) error

	mu     sync.Mutex
	held   map[peering.ObjectRef]peering.Object
	status map[string]corev1.PodStatus // by UID
	ending map[string]bool             // deletes that wait for end, by UID
	// deleting is since when the provider's cluster deletes pods by itself, by UID.
	deleting map[string]string
	linger   bool           // a deleted pod stays until end
	created  map[string]int // how often a pod was made, by UID
	deletes  []peering.ObjectRef
	applies  []peering.ObjectRef

	// Of the consumer's process:
	h       Handler
	up      bool
	ready   bool
	wants   map[peering.ObjectRef]peering.Object
	refused map[peering.ObjectRef]peering.Hash
	tombs   map[peering.ObjectRef]bool
	ran     map[peering.ObjectRef]bool
	unwants []peering.ObjectRef
	clashes []peering.ObjectRef // still wanted when their successors were
	graces  map[peering.ObjectRef]int64
	out     []func(Handler)
	wake    chan struct{}
}

func newProvider() *provider {
	return &provider{
		held: map[peering.ObjectRef]peering.Object{}, status: map[string]corev1.PodStatus{}, ending: map[string]bool{}, deleting: map[string]string{}, created: map[string]int{},
		wake: make(chan struct{}, 1),
	}
}

// attach is the start of a consumer's process. It returns the function to run.
func (p *provider) attach(h Handler) func(context.Context) {
	p.mu.Lock()
	p.h, p.up, p.ready = h, false, false
	p.wants, p.tombs, p.ran = map[peering.ObjectRef]peering.Object{}, map[peering.ObjectRef]bool{}, map[peering.ObjectRef]bool{}
	p.refused, p.graces = map[peering.ObjectRef]peering.Hash{}, map[peering.ObjectRef]int64{}
	p.unwants, p.applies, p.deletes, p.out = nil, nil, nil, nil
	p.mu.Unlock()
	return func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.wake:
			}
			for p.turn(ctx) {
			}
		}
	}
}

// applied is how often something was applied.
func (p *provider) applied() (n int) {
	p.locked(func() { n = len(p.applies) })
	return n
}

func (p *provider) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// turn compares and acts; it returns false when there is nothing to do.
func (p *provider) turn(ctx context.Context) bool {
	p.mu.Lock()
	if p.up {
		p.compare()
	}
	out, h := p.out, p.h
	p.out = nil
	var orphans []peering.Held
	if p.up && p.ready && len(out) == 0 {
		for ref, o := range p.held {
			if _, wanted := p.wants[ref]; !wanted && !p.tombs[ref] {
				orphans = append(orphans, peering.Held{Ref: ref, Hash: o.Hash()})
			}
		}
	}
	p.mu.Unlock()
	for _, f := range out {
		f(h)
	}
	done := false
	for _, o := range orphans {
		if h.Orphan(ctx, o) {
			p.mu.Lock()
			p.tombs[o.Ref] = true
			p.mu.Unlock()
			done = true
		}
	}
	return len(out) > 0 || done
}

// compare compares once what is wanted with what the provider has. p.mu is held.
func (p *provider) compare() {
	for ref := range p.tombs {
		if p.ending[ref.UID] {
			continue
		}
		if _, held := p.held[ref]; held {
			if !p.ready {
				continue
			}
			p.deletes = append(p.deletes, ref)
			p.say(func(h Handler) { h.Ack(peering.Ack{Ref: ref}) })
			if ref.Kind == peering.KindPod && p.linger {
				p.ending[ref.UID] = true
				continue
			}
		}
		p.drop(ref)
	}
	refs := slices.SortedFunc(maps.Keys(p.wants), func(a, b peering.ObjectRef) int { return int(a.Kind) - int(b.Kind) })
	for _, ref := range refs {
		o := p.wants[ref]
		have, held := p.held[ref]
		if held && have.Hash() == o.Hash() || p.refused[ref] == o.Hash() {
			continue
		}
		if !held && ref.Kind == peering.KindPod && (p.ran[ref] || p.created[ref.UID] > 0) {
			delete(p.wants, ref)
			p.say(func(h Handler) { h.PodStatus(peering.PodStatus{Ref: ref, Gone: true}) })
			continue
		}
		p.applies = append(p.applies, ref)
		if p.refuse != nil {
			if r := p.refuse(o); r != nil {
				p.refused[ref] = o.Hash()
				p.say(func(h Handler) { h.Ack(peering.Ack{Ref: ref, Hash: o.Hash(), Refusal: r}) })
				continue
			}
		}
		p.held[ref] = o
		p.say(func(h Handler) { h.Ack(peering.Ack{Ref: ref, Hash: o.Hash()}) })
		if ref.Kind == peering.KindPod && !held {
			p.created[ref.UID]++
			p.status[ref.UID] = corev1.PodStatus{
				Phase: corev1.PodRunning, PodIP: "10.200.0.7",
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			}
			p.notify(ref)
		}
	}
}

// drop ends an object. p.mu is held.
func (p *provider) drop(ref peering.ObjectRef) {
	delete(p.held, ref)
	delete(p.tombs, ref)
	delete(p.status, ref.UID)
	delete(p.ending, ref.UID)
	if ref.Kind == peering.KindPod {
		p.say(func(h Handler) { h.PodStatus(peering.PodStatus{Ref: ref, Gone: true}) })
	}
}

// say queues a call of the handler. p.mu is held.
func (p *provider) say(f func(Handler)) { p.out = append(p.out, f) }

// notify queues the status of a pod. p.mu is held.
func (p *provider) notify(ref peering.ObjectRef) {
	data, err := json.Marshal(p.status[ref.UID])
	if err != nil {
		panic(err)
	}
	deleting := p.deleting[ref.UID]
	p.say(func(h Handler) {
		h.PodStatus(peering.PodStatus{Ref: ref, RemoteName: "x/" + ref.Name, RemoteUID: "r-" + ref.UID, Status: data, DeletionTimestamp: deleting})
	})
}

// connect reports that the provider can be reached, or not.
func (p *provider) connect(up bool) {
	p.mu.Lock()
	p.up = up
	p.say(func(h Handler) { h.Connected(up) })
	if up {
		clear(p.refused)
		for ref := range p.held {
			if ref.Kind == peering.KindPod {
				p.notify(ref)
			}
		}
	}
	p.mu.Unlock()
	p.poke()
}

// set changes the status of a pod at the provider.
func (p *provider) set(uid string, s corev1.PodStatus) {
	p.mu.Lock()
	p.status[uid] = s
	for ref := range p.held {
		if ref.UID == uid && p.up {
			p.notify(ref)
		}
	}
	p.mu.Unlock()
	p.poke()
}

// lose deletes a pod at the provider without having been asked; end finishes one
// that lingers.
func (p *provider) lose(uid string) {
	p.mu.Lock()
	for ref := range p.held {
		if ref.UID == uid {
			delete(p.wants, ref)
			p.drop(ref)
		}
	}
	p.mu.Unlock()
	p.poke()
}

// retry forgets refusals, as a mirror does after a while.
func (p *provider) retry() {
	p.mu.Lock()
	clear(p.refused)
	p.mu.Unlock()
	p.poke()
}

// locked calls a function under the lock.
func (p *provider) locked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *provider) holds(uid string) (has bool) {
	p.locked(func() {
		for ref := range p.held {
			has = has || ref.UID == uid
		}
	})
	return has
}

// Want implements Remote.
func (p *provider) Want(o peering.Object) {
	p.locked(func() {
		if p.bar != nil {
			if r := p.bar(o); r != nil {
				p.say(func(h Handler) { h.Ack(peering.Ack{Ref: o.Ref, Hash: o.Hash(), Refusal: r}) })
				return
			}
		}
		for ref := range p.wants {
			if ref.Kind == o.Ref.Kind && ref.Namespace == o.Ref.Namespace && ref.Name == o.Ref.Name && ref.UID != o.Ref.UID && ref.Kind != peering.KindPod {
				p.clashes = append(p.clashes, ref)
			}
		}
		p.wants[o.Ref] = o
		delete(p.tombs, o.Ref)
	})
	p.poke()
}

// Unwant implements Remote.
func (p *provider) Unwant(ref peering.ObjectRef, grace *int64) {
	p.locked(func() {
		delete(p.wants, ref)
		p.tombs[ref] = true
		p.unwants = append(p.unwants, ref)
		if grace != nil {
			p.graces[ref] = *grace
		}
	})
	p.poke()
}

// Ran implements Remote.
func (p *provider) Ran(ref peering.ObjectRef) {
	p.locked(func() { p.ran[ref] = true })
}

// Ready implements Remote.
func (p *provider) Ready() {
	p.locked(func() { p.ready = true })
	p.poke()
}

// Logs implements Remote.
func (p *provider) Logs(ctx context.Context, ref peering.ObjectRef, o peering.LogOptions) (io.ReadCloser, error) {
	if p.logs == nil {
		return nil, errors.New("no logs")
	}
	return p.logs(ctx, ref, o)
}

// Exec implements Remote.
func (p *provider) Exec(ctx context.Context, ref peering.ObjectRef, o peering.ExecOptions) error {
	if p.exec == nil {
		return errors.New("no exec")
	}
	return p.exec(ctx, ref, o)
}

// PortForward implements Remote.
func (p *provider) PortForward(ctx context.Context, ref peering.ObjectRef, port int32, conn io.ReadWriteCloser) error {
	if p.dial == nil {
		return errors.New("no port-forward")
	}
	return p.dial(ctx, ref, port, conn)
}

package server

import (
	"context"
	"sync"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// room is bytes that are left for something.
type room struct {
	mu   sync.Mutex
	left int
}

// take takes bytes, which are negative if they are given back. It returns false if there are not so many.
func (r *room) take(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.left {
		return false
	}
	r.left -= n
	return true
}

// bases are the objects that a Sync stream remembers, so that its consumer can send changes of them.
type bases struct {
	// room is what limits them.
	room []*room

	mu      sync.Mutex
	objects map[peering.ObjectRef]base
}

// base is an object as it was applied.
type base struct {
	hash peering.Hash
	json []byte
}

// get returns an object, or nil if it is not remembered in the form with that hash.
func (b *bases) get(ref peering.ObjectRef, hash peering.Hash) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o, ok := b.objects[ref]; ok && o.hash == hash {
		return o.json
	}
	return nil
}

// put remembers an object in place of an earlier form, and reports whether there is room for it.
func (b *bases) put(ref peering.ObjectRef, hash peering.Hash, json []byte) bool {
	b.drop(ref)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, r := range b.room {
		if !r.take(len(json)) {
			for _, r := range b.room[:i] {
				r.take(-len(json))
			}
			return false
		}
	}
	if b.objects == nil {
		b.objects = map[peering.ObjectRef]base{}
	}
	b.objects[ref] = base{hash, json}
	return true
}

// drop forgets an object.
func (b *bases) drop(ref peering.ObjectRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.room {
		r.take(-len(b.objects[ref].json))
	}
	delete(b.objects, ref)
}

// end forgets all objects.
func (b *bases) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.objects {
		for _, r := range b.room {
			r.take(-len(o.json))
		}
	}
	b.objects = nil
}

// takePatch makes a task of a patch. Without the object that it changes it refuses the patch, and returns false.
func (r *syncRun) takePatch(ctx context.Context, t *syncTask, m *ententev1.SyncRequest_Patch) (remembered bool, err error) {
	p, err := wire.PatchFrom(m)
	if err != nil {
		return false, err
	}
	base := r.bases.get(p.Ref, p.Base)
	if base == nil {
		r.bases.drop(p.Ref)
		return false, r.out.put(ctx, wire.AckTo(refusedPatch(p, "the provider does not remember what it changes")))
	}
	t.ref, t.hash, t.size = p.Ref, p.Hash, p.Size(len(base))
	t.do = func(ctx context.Context) error { return r.patch(ctx, t, p, base) }
	return true, nil
}

// patch applies the result of a patch. It is made only now, when the peer's write budget has room: a small message must
// not cost much before.
func (r *syncRun) patch(ctx context.Context, t *syncTask, p wire.Patch, base []byte) error {
	o, err := p.Object(base)
	if err != nil {
		return refusedPatch(p, err.Error()).Refusal
	}
	t.remember, t.applied = wire.Patchable(o), o.JSON
	return r.apply(ctx, o)
}

// refusedPatch is the answer to a patch that cannot be carried out: the consumer then sends the whole object.
func refusedPatch(p wire.Patch, why string) peering.Ack {
	return peering.Ack{Ref: p.Ref, Hash: p.Hash, Refusal: &peering.Refusal{
		Reason: peering.RefusedInternal, Retryable: true, Message: why + "; send the whole object",
	}}
}

package wire

import (
	"bytes"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// Patchable reports whether a provider should remember an object, so that changes of it can be sent as patches: large
// Services, of which mostly one endpoint changes at a time.
func Patchable(o peering.Object) bool {
	return o.Ref.Kind == peering.KindService && len(o.JSON) >= minPatched
}

// PatchTo writes an object as changes to base, which has the hash baseHash and which the provider remembers. It is the
// whole object if that is not much larger.
func PatchTo(o peering.Object, base []byte, baseHash peering.Hash) *ententev1.SyncRequest {
	splices, size := diff(base, o.JSON)
	if len(splices) > maxSplices || size > len(o.JSON)/2 || !Patchable(o) {
		return ApplyTo(o)
	}
	hash := o.Hash()
	return &ententev1.SyncRequest{Message: &ententev1.SyncRequest_Patch_{Patch: &ententev1.SyncRequest_Patch{
		Ref: ObjectRefTo(o.Ref), Base: baseHash[:], Hash: hash[:], Splices: splices,
	}}}
}

// diff returns the changes that make next of base, and how many bytes they have in all. It compares pieces of JSON,
// which have one endpoint at most, and finds those that are in the same order in both.
func diff(base, next []byte) (splices []*ententev1.SyncRequest_Splice, size int) {
	old, now := pieces(base), pieces(next)
	head := 0
	for head < min(len(old), len(now)) && bytes.Equal(old[head], now[head]) {
		head++
	}
	tail := 0
	for tail < min(len(old), len(now))-head && bytes.Equal(old[len(old)-1-tail], now[len(now)-1-tail]) {
		tail++
	}
	keep := 0
	for _, p := range old[:head] {
		keep += len(p)
	}
	old, now = old[head:len(old)-tail], now[head:len(now)-tail]
	places := placesOf(old)
	next = nil
	at := 0
	replace := func(until int) {
		s := &ententev1.SyncRequest_Splice{Keep: uint32(keep), Insert: next}
		for _, p := range old[at:until] {
			s.Remove += uint32(len(p))
		}
		at = until
		if s.GetRemove() > 0 || len(next) > 0 {
			splices, size = append(splices, s), size+len(next)+spliceBytes
			keep, next = 0, nil
		}
	}
	for _, p := range now {
		place, found := places[string(p)]
		if !found || place < at {
			next = append(next, p...)
			continue
		}
		replace(place)
		keep += len(p)
		at++
	}
	replace(len(old))
	return splices, size
}

// pieces cuts JSON behind each object of a list.
func pieces(text []byte) (out [][]byte) {
	for len(text) > 0 {
		end := bytes.Index(text, []byte("},"))
		if end < 0 {
			return append(out, text)
		}
		out, text = append(out, text[:end+2]), text[end+2:]
	}
	return out
}

// placesOf returns where each piece is that is there once.
func placesOf(list [][]byte) map[string]int {
	out := make(map[string]int, len(list))
	twice := map[string]bool{}
	for i, p := range list {
		if _, again := out[string(p)]; again {
			twice[string(p)] = true
		}
		out[string(p)] = i
	}
	for p := range twice {
		delete(out, p)
	}
	return out
}

// Patch is changes to an object that the provider remembers.
type Patch struct {
	Ref        peering.ObjectRef
	Base, Hash peering.Hash
	splices    []*ententev1.SyncRequest_Splice
	// inserted is how many bytes come from the message, removed how many of the base are left out.
	inserted, removed int64
}

// PatchFrom reads a patch. It shares its bytes with the message.
func PatchFrom(m *ententev1.SyncRequest_Patch) (Patch, error) {
	ref, err := ObjectRefFrom(m.GetRef())
	if err != nil {
		return Patch{}, err
	}
	p := Patch{Ref: ref, splices: m.GetSplices()}
	if p.Base, err = hashFrom("patch.base", m.GetBase()); err != nil {
		return Patch{}, err
	}
	if p.Hash, err = hashFrom("patch.hash", m.GetHash()); err != nil {
		return Patch{}, err
	}
	if ref.Kind != peering.KindService {
		return Patch{}, invalid("patch.ref.kind", "want a Service")
	}
	if n := len(p.splices); n > maxSplices {
		return Patch{}, invalid("patch.splices", "are %d, want at most %d", n, maxSplices)
	}
	for _, s := range p.splices {
		p.inserted, p.removed = p.inserted+int64(len(s.GetInsert())), p.removed+int64(s.GetRemove())
	}
	if p.inserted > MaxObjectBytes {
		return Patch{}, invalid("patch.splices", "insert %d bytes, want at most %d", p.inserted, MaxObjectBytes)
	}
	return p, nil
}

// Size returns how many bytes making the result of a base of that size takes.
func (p Patch) Size(base int) int64 { return int64(base) + p.inserted }

// Object returns the object that the patch makes of its base. Its hash has to be that of the patch.
func (p Patch) Object(base []byte) (peering.Object, error) {
	n := int64(len(base)) + p.inserted - p.removed
	if n < 2 || n > MaxObjectBytes {
		return peering.Object{}, invalid("patch.splices", "make %d bytes, want 2 to %d", n, MaxObjectBytes)
	}
	out := make([]byte, 0, n) // no more, as it may be remembered for long
	for _, s := range p.splices {
		keep, remove := int64(s.GetKeep()), int64(s.GetRemove())
		if keep+remove > int64(len(base)) {
			return peering.Object{}, invalid("patch.splices", "exceed the object that they change")
		}
		out = append(append(out, base[:keep]...), s.GetInsert()...)
		base = base[keep+remove:]
	}
	o := peering.Object{Ref: p.Ref, JSON: append(out, base...)}
	if o.Hash() != p.Hash {
		return peering.Object{}, invalid("patch.hash", "is not the hash of the result")
	}
	return o, nil
}

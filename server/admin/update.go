package admin

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// fate is how an update treats a field of a Peering.
type fate uint8

const (
	// fateNone: the field does not exist.
	fateNone fate = iota
	// fateChanges: the update may change it.
	fateChanges
	// fateFixed: a caller may send the current value, which an update does not change.
	fateFixed
	// fateOutput: only this cluster sets it. What a caller sends is ignored, so that a message
	// that was read can be sent back (AIP-203).
	fateOutput
)

func peeringFate(field protoreflect.Name) fate {
	switch field {
	case "resources", "duration", "price_ceiling", "no_renewal", "no_network":
		return fateChanges
	case "peer", "pool", "node_selector", "storage_classes", "runtime_classes":
		return fateFixed
	case "name", "accepted", "contract", "node", "provider", "generation", "accepted_generation", "contract_generation":
		return fateOutput
	}
	return fateNone
}

// updateRequest copies to a PeeringRequest the fields of a message that a mask names, or without
// a mask those that the message sets (AIP-134).
func updateRequest(request *v1alpha1.PeeringRequest, to *ententev1.Peering, mask *fieldmaskpb.FieldMask) error {
	now := peeringMessage(request)
	if err := masked(now, to, mask); err != nil {
		return err
	}
	resources, err := askedResources("peering.resources", now.GetResources(), true)
	if err != nil {
		return err
	}
	duration, err := askedDuration("peering.duration", now.GetDuration())
	if err != nil {
		return err
	}
	ceiling, err := askedMoney("peering.price_ceiling", now.GetPriceCeiling())
	if err != nil {
		return err
	}
	request.Spec.Resources, request.Spec.Duration, request.Spec.PriceCeiling = resources, duration, ceiling
	request.Spec.Renewal, request.Spec.Network = askedRenewal(now.GetNoRenewal()), askedNetwork(now.GetNoNetwork())
	return nil
}

// masked copies the fields that a mask names from one Peering to another.
func masked(dst, src *ententev1.Peering, mask *fieldmaskpb.FieldMask) error {
	fields := dst.ProtoReflect().Descriptor().Fields()
	paths := mask.GetPaths()
	switch {
	case len(paths) == 0:
		src.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			paths = append(paths, string(fd.Name()))
			return true
		})
	case slices.Contains(paths, "*"):
		if len(paths) > 1 {
			return middleware.BadField("update_mask", "* means all fields and must be the only path")
		}
		paths = nil
		for i := range fields.Len() {
			if f := fields.Get(i); peeringFate(f.Name()) == fateChanges {
				paths = append(paths, string(f.Name()))
			}
		}
	}
	for _, path := range paths {
		fds, ok := resolve(dst.ProtoReflect().Descriptor(), path)
		if !ok {
			return middleware.BadField("update_mask", "a Peering has no field %q", clipped(path))
		}
		switch peeringFate(fds[0].Name()) {
		case fateChanges:
			set(dst.ProtoReflect(), src.ProtoReflect(), fds)
		case fateFixed:
			fd := fds[0]
			if src.ProtoReflect().Has(fd) && !src.ProtoReflect().Get(fd).Equal(dst.ProtoReflect().Get(fd)) {
				return middleware.BadField("peering."+string(fd.Name()), "an update does not change it: create another peering")
			}
		case fateOutput:
		case fateNone:
			return middleware.BadField("update_mask", "field %q cannot be changed", clipped(path))
		}
	}
	return nil
}

// maxPath is how many bytes of a path an error repeats.
const maxPath = 64

func clipped(path string) string { return path[:min(len(path), maxPath)] }

// resolve finds the fields along a path, by their names in the proto or in JSON. A path cannot go
// into a field that is not a message: an entry of a map or list cannot be named (AIP-161).
func resolve(d protoreflect.MessageDescriptor, path string) ([]protoreflect.FieldDescriptor, bool) {
	var out []protoreflect.FieldDescriptor
	for part := range strings.SplitSeq(path, ".") {
		if d == nil {
			return nil, false
		}
		fd := cmp.Or(d.Fields().ByName(protoreflect.Name(part)), d.Fields().ByJSONName(part))
		if fd == nil {
			return nil, false
		}
		out = append(out, fd)
		d = nil
		if !fd.IsMap() && !fd.IsList() {
			d = fd.Message()
		}
	}
	return out, true
}

// set copies the field at the end of a path, or clears it where it is not set.
func set(dst, src protoreflect.Message, path []protoreflect.FieldDescriptor) {
	for _, fd := range path[:len(path)-1] {
		if !src.Has(fd) && !dst.Has(fd) {
			return
		}
		dst, src = dst.Mutable(fd).Message(), src.Get(fd).Message()
	}
	fd := path[len(path)-1]
	if !src.Has(fd) {
		dst.Clear(fd)
		return
	}
	dst.Set(fd, src.Get(fd))
}

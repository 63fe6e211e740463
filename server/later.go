package server

import "google.golang.org/protobuf/reflect/protoreflect"

// known is a protovalidate filter that leaves out the rules which a message of a
// later revision breaks by what that revision added: a value of an enum that has no
// name here, and a oneof that is set to what is no field here. Whoever has to know
// what they mean refuses them in words; see peering.ReasonProtocolUnsupported.
func known(m protoreflect.Message, d protoreflect.Descriptor) bool {
	switch d := d.(type) {
	case protoreflect.FieldDescriptor:
		if d.Enum() == nil || d.IsList() || d.IsMap() || !m.Has(d) {
			return true
		}
		return d.Enum().Values().ByNumber(m.Get(d).Enum()) != nil
	case protoreflect.OneofDescriptor:
		return len(m.GetUnknown()) == 0
	}
	return true
}

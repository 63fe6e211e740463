package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/entente-dev/entente/peering"
)

// CheckParts refuses a message that would become much larger by being decoded: an element of a
// list takes two bytes on the wire and a hundred in memory. It checks the encoded message alone,
// which is of the type of m. The decoder refuses malformed messages.
func CheckParts(encoded []byte, m proto.Message) error {
	left := MaxParts
	path, ok := countParts(encoded, m.ProtoReflect().Descriptor(), &left, maxNesting)
	if ok {
		return nil
	}
	return &peering.Error{
		Reason: peering.ReasonRequestInvalid, Message: fmt.Sprintf("a message may have %d parts", MaxParts),
		Violations: []peering.Violation{{Field: path, Message: "it has too many parts, or too deep ones"}},
	}
}

// countParts subtracts the fields of a message from left. If there are too many it returns false
// and the path of the field.
func countParts(b []byte, d protoreflect.MessageDescriptor, left *int, depth int) (path string, ok bool) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", true
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return "", true
		}
		value := b[:n]
		b = b[n:]
		field := d.Fields().ByNumber(number)
		name := fmt.Sprintf("unknown field %d", number)
		if field != nil {
			name = string(field.Name())
		}
		*left--
		if *left < 0 || depth == 0 {
			return name, false
		}
		if field == nil || field.Message() == nil || kind != protowire.BytesType {
			continue
		}
		inner, _ := protowire.ConsumeBytes(value)
		path, ok := countParts(inner, field.Message(), left, depth-1)
		switch {
		case ok:
		case field.IsMap():
			// The path names the map's field, and not the key or value of an entry.
			return name, false
		default:
			return name + "." + path, false
		}
	}
	return "", true
}

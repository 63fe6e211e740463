package middleware

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// requestCodec refuses messages that would take too much memory. gRPC turns an error of a codec
// into INTERNAL, before any middleware runs. So a refused message becomes an empty one, with the
// error in a field number that no message uses.
type requestCodec struct {
	encoding.CodecV2
	log *slog.Logger
}

// refusedField is the last number that a field can have.
const refusedField = protowire.MaxValidNumber

// requests makes gRPC decode by a requestCodec.
func requests(log *slog.Logger) grpc.ServerOption {
	return grpc.ForceServerCodecV2(requestCodec{wire.Codec(markRefused), log})
}

func (c requestCodec) Unmarshal(data mem.BufferSlice, v any) error {
	// A caller gets an internal error unchanged.
	err := OnFreshStack("a message", func() error { return c.CodecV2.Unmarshal(data, v) })
	if wire.ReasonOf(err) == peering.ReasonInternal {
		c.log.Error("a message cannot be decoded", "kind", fmt.Sprintf("%T", v), "err", err)
		return errors.New("the message cannot be decoded")
	}
	return err
}

// markRefused empties a message and records in it which field was refused.
func markRefused(m proto.Message, err error) error {
	mark := protowire.AppendTag(nil, refusedField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(mark, wire.FromStatus(err).Violations[0].Field))
	return nil
}

// refused returns why a message was not decoded.
func refused(m proto.Message) error {
	mark := protowire.AppendTag(nil, refusedField, protowire.BytesType)
	rest, ok := bytes.CutPrefix(m.ProtoReflect().GetUnknown(), mark)
	if !ok {
		return nil
	}
	field, n := protowire.ConsumeString(rest)
	if n < 0 {
		field = ""
	}
	return BadField(peering.Text(field, peering.MaxNameLen), "a message may have %d parts, and not too deep ones", wire.MaxParts)
}

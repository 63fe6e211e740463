package middleware

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// requestCodec decodes only what is worth it. gRPC makes of a codec's error that
// something is wrong here, before any middleware is asked. So a message that is
// refused becomes an empty one that says so, in a field that no message has.
type requestCodec struct {
	encoding.CodecV2
	log *slog.Logger
}

// refusedField is the last number that a field can have.
const refusedField = protowire.MaxValidNumber

// requests makes gRPC decode by a requestCodec.
func requests(log *slog.Logger) grpc.ServerOption {
	return grpc.ForceServerCodecV2(requestCodec{encoding.GetCodecV2(grpcproto.Name), log})
}

func (c requestCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", v)
	}
	// What went wrong here is said to the caller as it is.
	err := OnFreshStack("a message", func() error { return decode(data, m) })
	if wire.ReasonOf(err) == peering.ReasonInternal {
		c.log.Error("a message cannot be decoded", "kind", m.ProtoReflect().Descriptor().FullName(), "err", err)
		return errors.New("the message cannot be decoded")
	}
	return err
}

func decode(data mem.BufferSlice, m proto.Message) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if err := wire.CheckParts(buf.ReadOnlyData(), m); err != nil {
		e := wire.FromStatus(err)
		mark := protowire.AppendTag(nil, refusedField, protowire.BytesType)
		m.ProtoReflect().SetUnknown(protowire.AppendString(mark, e.Violations[0].Field))
		return nil
	}
	if err := proto.Unmarshal(buf.ReadOnlyData(), m); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
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

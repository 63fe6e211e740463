package wire

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec is gRPC's own for protobuf, but decodes only messages that CheckParts accepts.
type codec struct {
	encoding.CodecV2
	refuse func(m proto.Message, err error) error
}

// Codec returns a codec that refuses messages that would become much larger by being decoded,
// before it decodes them. Its error is what refuse returns for the reason.
func Codec(refuse func(m proto.Message, err error) error) encoding.CodecV2 {
	return codec{encoding.GetCodecV2(grpcproto.Name), refuse}
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if err := CheckParts(buf.ReadOnlyData(), m); err != nil {
		return c.refuse(m, err)
	}
	if err := proto.Unmarshal(buf.ReadOnlyData(), m); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

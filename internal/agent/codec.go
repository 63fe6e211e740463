package agent

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/internal/wire"
)

// answerCodec refuses answers that would become much larger by being decoded.
type answerCodec struct{ encoding.CodecV2 }

// answers makes gRPC decode what peers answer by an answerCodec.
func answers() grpc.CallOption {
	return grpc.ForceCodecV2(answerCodec{encoding.GetCodecV2(grpcproto.Name)})
}

func (answerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if err := wire.CheckParts(buf.ReadOnlyData(), m); err != nil {
		return err
	}
	if err := proto.Unmarshal(buf.ReadOnlyData(), m); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

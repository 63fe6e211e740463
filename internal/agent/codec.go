package agent

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/internal/wire"
)

// boundedResponses makes gRPC refuse responses of peers that would become much larger by being decoded.
func boundedResponses() grpc.CallOption {
	return grpc.ForceCodecV2(wire.Codec(func(_ proto.Message, err error) error { return err }))
}

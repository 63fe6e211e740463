package agent

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/internal/wire"
)

// answers makes gRPC refuse answers of peers that would become much larger by being decoded.
func answers() grpc.CallOption {
	return grpc.ForceCodecV2(wire.Codec(func(_ proto.Message, err error) error { return err }))
}

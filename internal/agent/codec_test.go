package agent

import (
	"bytes"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestResponsesThatWouldGrowAreRefused(t *testing.T) {
	codec := boundedResponses().(grpc.ForceCodecV2CallOption).CodecV2
	honest := &ententev1.PeerState{Sequence: 7, Endpoints: []string{"a:1"}}
	encoded, err := proto.Marshal(honest)
	if err != nil {
		t.Fatal(err)
	}
	var got ententev1.PeerState
	if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, &got); err != nil || !proto.Equal(&got, honest) {
		t.Errorf("an honest response became %v, %v", &got, err)
	}
	// Contracts without anything in them: two bytes each here, many in memory.
	bomb := bytes.Repeat([]byte{7<<3 | 2, 0}, 1<<20)
	if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(bomb)}, &got); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("a million empty contracts: %v", err)
	}
	if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer([]byte{0xff})}, &got); err == nil {
		t.Error("a malformed message was accepted")
	}
}

package server

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// manyStatements is a provider with a statement for each number, which returns more at once than
// the limit. A statement's payload is its number.
type manyStatements struct {
	fakePeering
	asked uint64
}

func (m *manyStatements) Statements(_ context.Context, _ peering.ClusterID, _ string, after uint64) ([]peering.Envelope, error) {
	m.asked = after
	var out []peering.Envelope
	for n := after; n < math.MaxUint64 && len(out) < 2*MaxStatements; n++ {
		out = append(out, peering.Envelope{Payload: binary.BigEndian.AppendUint64(nil, n+1), PayloadType: peering.PayloadType})
	}
	return out, nil
}

// FuzzStatementCursor reads what a peer sends to go on in a list of statements:
// whatever it is, it is a call that is refused, or a bounded answer that begins
// right behind the number asked for.
func FuzzStatementCursor(f *testing.F) {
	for _, req := range []*ententev1.ListStatementsRequest{
		{},
		{ContractId: "c-1"},
		{ContractId: "c-1", AfterSequence: 1},
		{ContractId: "c-1", AfterSequence: math.MaxInt64},
		{ContractId: "c-1", AfterSequence: math.MaxInt64 + 1},
		{ContractId: "c-1", AfterSequence: math.MaxUint64},
		{ContractId: "c-1", AfterSequence: math.MaxUint64 - 3},
		{ContractId: strings.Repeat("c", 65)},
		{ContractId: "../c"},
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x0a\x01c\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")) // a number of more than 64 bits
	f.Add([]byte("\x0a\x01c\x10\x05\x10\x01"))                             // two numbers
	f.Add([]byte("\x0a\x01c\x10\x05\x1a\x01x"))                            // an unknown field
	validator, err := protovalidate.New()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &ententev1.ListStatementsRequest{}
		if proto.Unmarshal(b, req) != nil || validator.Validate(req, protovalidate.WithFilter(protovalidate.FilterFunc(middleware.IgnoreUnknownValues))) != nil {
			return
		}
		provider := &manyStatements{}
		s := &peeringServer{cfg: PeerConfig{Contracts: provider}}
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: identity.AuthInfo{ID: peering.ClusterID(strings.Repeat("a", 32)), Trusted: true}})
		resp, err := s.ListStatements(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if provider.asked != req.GetAfterSequence() || len(resp.GetStatements()) > MaxStatements {
			t.Fatalf("after %d: %d statements after %d", req.GetAfterSequence(), len(resp.GetStatements()), provider.asked)
		}
		for i, e := range resp.GetStatements() {
			if n := binary.BigEndian.Uint64(e.GetPayload()); n != req.GetAfterSequence()+uint64(i)+1 {
				t.Fatalf("after %d: statement %d is number %d", req.GetAfterSequence(), i, n)
			}
		}
	})
}

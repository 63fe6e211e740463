package server

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// slowObjects takes objects and is done with none until it is let go.
type slowObjects struct {
	OffloadStreams
	begun chan string
	done  chan struct{}
}

func (slowObjects) Held(context.Context, string) ([]peering.Held, error) { return nil, nil }

func (o slowObjects) Apply(ctx context.Context, contract string, _ peering.Object) error {
	o.begun <- contract
	select {
	case <-o.done:
	case <-ctx.Done():
	}
	return nil
}

func (o slowObjects) Delete(ctx context.Context, contract string, _ peering.ObjectRef, _ *int64) error {
	return o.Apply(ctx, contract, peering.Object{})
}

func (slowObjects) Watch(ctx context.Context, _ string, _ func(peering.PodStatus), _ func(peering.PodEvent)) error {
	<-ctx.Done()
	return nil
}

// However many contracts a peer has, so much is done for it at once; what makes room
// does not wait for it, nor does another peer.
func TestWhatIsDoneForAPeerAtOnceIsBounded(t *testing.T) {
	t.Parallel()
	objects := slowObjects{begun: make(chan string, 1024), done: make(chan struct{})}
	svc, err := NewOffload(OffloadConfig{
		Objects: objects, Streams: objects,
		// A contract's name begins with its consumer's.
		Contracts: func(id string) (OffloadContract, bool) {
			return OffloadContract{Consumer: peering.ClusterID(id[:1])}, true
		},
		Peer: func(ctx context.Context) (peering.ClusterID, bool) {
			md, _ := metadata.FromIncomingContext(ctx)
			return peering.ClusterID(md.Get("peer")[0]), true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	ententev1.RegisterOffloadServiceServer(g, svc)
	listener := bufconn.Listen(1 << 20)
	go func() { _ = g.Serve(listener) }()
	defer g.Stop()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ref := func(n int) peering.ObjectRef {
		return peering.ObjectRef{Kind: peering.KindConfigMap, Namespace: fmt.Sprint("n-", n), Name: "x", UID: fmt.Sprint("u-", n)}
	}
	open := func(contract string, messages ...*ententev1.SyncRequest) {
		t.Helper()
		stream, err := ententev1.NewOffloadServiceClient(conn).Sync(metadata.AppendToOutgoingContext(t.Context(), "peer", contract[:1]))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range append([]*ententev1.SyncRequest{wire.OpenTo(contract)}, messages...) {
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	begun := func(n int) map[string]int {
		t.Helper()
		out := map[string]int{}
		for range n {
			select {
			case contract := <-objects.begun:
				out[contract[:1]]++
			case <-time.After(30 * time.Second):
				t.Fatalf("only %v were begun", out)
			}
		}
		return out
	}
	var many []*ententev1.SyncRequest
	for n := range 2 * offloadMaxWork {
		many = append(many, wire.ApplyTo(peering.Object{Ref: ref(n), JSON: []byte("{}")}))
	}
	open("a-1", many...)
	open("a-2", many...)
	begun(offloadMaxWork)
	open("b-1", many[0])
	if got := begun(1); got["b"] != 1 {
		t.Errorf("more was begun for a peer that had enough: %v", got)
	}
	open("a-3", wire.DeleteTo(ref(1), nil))
	begun(1)
	select {
	case <-objects.begun:
		t.Error("more was begun than may be")
	default:
	}
	close(objects.done)
	begun(3 * offloadMaxWork)
}

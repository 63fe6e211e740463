package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// slowObjects takes objects, and each call returns only once it is released.
type slowObjects struct {
	OffloadStreams
	begun chan string
	done  chan struct{}
}

func (slowObjects) Held(context.Context, string) ([]peering.Held, error) { return nil, nil }

func (slowObjects) Admit(context.Context, string) (func(), error) { return func() {}, nil }

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

// The limit of concurrent work for a peer is the same however many contracts it has; neither
// deletes nor another peer wait for it.
func TestConcurrentWorkForAPeerIsBounded(t *testing.T) {
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

// spentObjects is those of a consumer whose budget is spent: nothing is admitted until
// there is room, and what is applied takes until it is let go.
type spentObjects struct {
	slowObjects
	room chan struct{}
	log  chan string
}

func (o spentObjects) Admit(ctx context.Context, _ string) (func(), error) {
	select {
	case <-o.room:
		return func() {}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (o spentObjects) Apply(ctx context.Context, _ string, x peering.Object) error {
	o.log <- "apply " + x.Ref.Name
	select {
	case <-o.done:
	case <-ctx.Done():
	}
	return nil
}

func (o spentObjects) Delete(_ context.Context, _ string, ref peering.ObjectRef, _ *int64) error {
	o.log <- "delete " + ref.Name
	return nil
}

// pipe is a stream whose other side is the test.
type pipe struct {
	ententev1.OffloadService_SyncServer
	ctx context.Context
	in  chan *ententev1.SyncRequest
}

func (p pipe) Context() context.Context { return p.ctx }

func (p pipe) Recv() (*ententev1.SyncRequest, error) {
	select {
	case m := <-p.in:
		return m, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

func (pipe) Send(*ententev1.SyncResponse) error { return nil }

// syncWith runs a test as a consumer. did returns what was done since it was called last.
func syncWith(t *testing.T, f func(o spentObjects, send func(...*ententev1.SyncRequest), did func() []string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := spentObjects{slowObjects: slowObjects{done: make(chan struct{})}, room: make(chan struct{}), log: make(chan string, 1024)}
		svc, err := NewOffload(OffloadConfig{
			Objects: o, Streams: o,
			Contracts: func(string) (OffloadContract, bool) { return OffloadContract{Consumer: "a"}, true },
			Peer:      func(context.Context) (peering.ClusterID, bool) { return "a", true },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stream := pipe{ctx: ctx, in: make(chan *ententev1.SyncRequest)}
		ended := make(chan error)
		go func() { ended <- svc.Sync(stream) }()
		defer func() {
			cancel()
			<-ended
		}()
		send := func(messages ...*ententev1.SyncRequest) {
			for _, m := range messages {
				stream.in <- m
			}
			synctest.Wait()
		}
		send(wire.OpenTo("a-1"))
		f(o, send, func() (out []string) {
			synctest.Wait()
			for len(o.log) > 0 {
				out = append(out, <-o.log)
			}
			slices.Sort(out)
			return out
		})
	})
}

func applyTo(kind peering.Kind, name, uid string) *ententev1.SyncRequest {
	return wire.ApplyTo(peering.Object{Ref: peering.ObjectRef{Kind: kind, Namespace: "shop", Name: name, UID: uid}, JSON: []byte("{}")})
}

func deleteTo(kind peering.Kind, name, uid string) *ententev1.SyncRequest {
	return wire.DeleteTo(peering.ObjectRef{Kind: kind, Namespace: "shop", Name: name, UID: uid}, nil)
}

// However many objects wait to be applied, for the budget or for a slot, neither a delete of
// another object waits for them nor does reading it.
func TestADeleteWaitsForNoOtherObject(t *testing.T) {
	for name, admitted := range map[string]int{"applies wait for the budget": 0, "applies are at work": 1000} {
		t.Run(name, func(t *testing.T) {
			syncWith(t, func(o spentObjects, send func(...*ententev1.SyncRequest), did func() []string) {
				if admitted > 0 {
					close(o.room)
				}
				for i := range 3 * offloadMaxWork {
					send(applyTo(peering.KindPod, fmt.Sprint("web-", i), fmt.Sprint("u-", i)))
				}
				send(applyTo(peering.KindConfigMap, "config", "u"), applyTo(peering.KindSecret, "secret", "u"))
				did()
				send(deleteTo(peering.KindPod, "old", "u-old"), deleteTo(peering.KindConfigMap, "old", "u-old"))
				if diff := cmp.Diff([]string{"delete old", "delete old"}, did()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Changes of an object, and of another one of its name, are made in the order in which they were
// sent.
func TestChangesOfAnObjectStayInOrder(t *testing.T) {
	syncWith(t, func(o spentObjects, send func(...*ententev1.SyncRequest), did func() []string) {
		step := func(want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, did()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		send(applyTo(peering.KindPod, "web", "u-1"), deleteTo(peering.KindPod, "web", "u-1"), applyTo(peering.KindPod, "web", "u-2"))
		step()
		o.room <- struct{}{}
		step("apply web")
		o.done <- struct{}{}
		step("delete web")
		o.room <- struct{}{}
		step("apply web")
		o.done <- struct{}{}
		// What a pod may need is there before it.
		send(applyTo(peering.KindConfigMap, "config", "u"), applyTo(peering.KindSecret, "secret", "u"), applyTo(peering.KindPod, "db", "u"))
		for _, want := range []string{"apply config", "apply secret", "apply db"} {
			o.room <- struct{}{}
			step(want)
			o.done <- struct{}{}
		}
	})
}

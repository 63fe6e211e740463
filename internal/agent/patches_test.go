package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/test/bufconn"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// heldObjects is a provider's cluster: it outlives the provider's agent.
type heldObjects struct {
	server.OffloadStreams
	mu     sync.Mutex
	all    map[peering.ObjectRef]peering.Object
	refuse bool
}

func (h *heldObjects) Held(context.Context, string) (out []peering.Held, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ref, o := range h.all {
		out = append(out, peering.Held{Ref: ref, Hash: o.Hash()})
	}
	return out, nil
}

func (*heldObjects) Admit(context.Context, string) (func(), error) { return func() {}, nil }

func (h *heldObjects) Apply(_ context.Context, _ string, o peering.Object) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse {
		h.refuse = false
		return &peering.Refusal{Reason: peering.RefusedInternal, Retryable: true, Message: "once"}
	}
	h.all[o.Ref] = o
	return nil
}

func (h *heldObjects) Delete(_ context.Context, _ string, ref peering.ObjectRef, _ *int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, ref)
	return nil
}

func (*heldObjects) Watch(ctx context.Context, _ string, _ func(peering.PodStatus), _ func(peering.PodEvent)) error {
	<-ctx.Done()
	return nil
}

func (h *heldObjects) has() map[peering.ObjectRef]peering.Hash {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[peering.ObjectRef]peering.Hash{}
	for ref, o := range h.all {
		out[ref] = o.Hash()
	}
	return out
}

type noHandler struct{}

func (noHandler) Connected(bool)                            {}
func (noHandler) PodStatus(peering.PodStatus)               {}
func (noHandler) PodEvent(peering.PodEvent)                 {}
func (noHandler) Ack(peering.Ack)                           {}
func (noHandler) Orphan(context.Context, peering.Held) bool { return true }

// sentBytes counts what a consumer sends.
type sentBytes struct{ atomic.Int64 }

func (*sentBytes) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*sentBytes) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (*sentBytes) HandleConn(context.Context, stats.ConnStats)                       {}
func (s *sentBytes) HandleRPC(_ context.Context, r stats.RPCStats) {
	if out, ok := r.(*stats.OutPayload); ok {
		s.Add(int64(out.WireLength))
	}
}

// crossing is a consumer and a provider, whose objects cross over gRPC.
type crossing struct {
	t      *testing.T
	held   *heldObjects
	sent   sentBytes
	conns  sync.Map
	old    bool // the provider remembers nothing, as before it could
	serve  *grpc.Server
	conn   *grpc.ClientConn
	mirror *client.Mirror
	end    func()
	lis    atomic.Pointer[bufconn.Listener]
}

// forgetful is a provider that remembers nothing.
type forgetful struct{ grpc.ServerStream }

func (f forgetful) SendMsg(m any) error {
	if ack := m.(*ententev1.SyncResponse).GetAck(); ack != nil {
		ack.Remembered = false
	}
	return f.ServerStream.SendMsg(m)
}

func newCrossing(t *testing.T, old bool) *crossing {
	t.Helper()
	c := &crossing{t: t, held: &heldObjects{all: map[peering.ObjectRef]peering.Object{}}, old: old}
	c.provide()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(&c.sent),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := c.lis.Load().DialContext(ctx)
			if err == nil {
				c.conns.Store(conn, true)
			}
			return conn, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	c.conn = conn
	c.consume()
	t.Cleanup(func() {
		c.end()
		_ = conn.Close()
		c.serve.Stop()
	})
	return c
}

// provide starts the provider's agent, and ends an earlier one.
func (c *crossing) provide() {
	c.t.Helper()
	svc, err := server.NewOffload(server.OffloadConfig{
		Objects: c.held, Streams: c.held,
		Contracts: func(string) (server.OffloadContract, bool) { return server.OffloadContract{Consumer: "a"}, true },
		Peer:      func(context.Context) (peering.ClusterID, bool) { return "a", true },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	before := c.serve
	c.serve = grpc.NewServer(grpc.MaxRecvMsgSize(wire.MaxOffloadMessage), grpc.StreamInterceptor(
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if c.old {
				ss = forgetful{ss}
			}
			return h(srv, ss)
		}))
	ententev1.RegisterOffloadServiceServer(c.serve, svc)
	lis, server := bufconn.Listen(1<<20), c.serve
	c.lis.Store(lis)
	if before != nil {
		before.Stop()
	}
	go func() { _ = server.Serve(lis) }()
}

// consume starts the consumer's agent.
func (c *crossing) consume() {
	c.t.Helper()
	mirror, err := client.NewMirror(client.MirrorConfig{Contract: "k", Conn: c.conn, Handler: noHandler{}, MinBackoff: time.Millisecond, MaxBackoff: 50 * time.Millisecond})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = mirror.Run(ctx) }()
	c.mirror, c.end = mirror, func() { cancel(); <-done }
}

// cut ends the connection, with whatever is on its way.
func (c *crossing) cut() {
	c.conns.Range(func(conn, _ any) bool {
		_ = conn.(net.Conn).Close()
		c.conns.Delete(conn)
		return true
	})
}

func (c *crossing) await(want map[peering.ObjectRef]peering.Hash) {
	c.t.Helper()
	waittest.Eventually(c.t, "the provider to have what is wanted", func() bool { return maps.Equal(c.held.has(), want) })
}

func manyEndpoints(t *testing.T, name string, list []peering.ServiceEndpoint) peering.Object {
	t.Helper()
	text, err := json.Marshal(peering.ServiceObject{Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}, Endpoints: list})
	if err != nil {
		t.Fatal(err)
	}
	return peering.Object{Ref: peering.ObjectRef{Kind: peering.KindService, Namespace: "shop", Name: name, UID: "u-" + name}, JSON: text}
}

func endpointsFrom(n int) (out []peering.ServiceEndpoint) {
	for i := range n {
		out = append(out, peering.ServiceEndpoint{
			Address: fmt.Sprintf("10.1.%d.%d", i/250, i%250), Ready: true, Serving: true, Ports: map[string]int32{"http": 8080},
			PodUID: fmt.Sprintf("0b4c2e1a-7f7e-4a9e-9a53-3f4f7c%06d", i),
		})
	}
	return out
}

// inNamespace wants the namespace in which the Services are.
func (c *crossing) inNamespace() peering.Object {
	space := peering.Object{Ref: peering.ObjectRef{Kind: peering.KindNamespace, Name: "shop", UID: "u"}, JSON: []byte("{}")}
	c.mirror.Want(space)
	return space
}

func TestAChangeOfOneEndpointSendsLittle(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]bool{"a provider that remembers": false, "one of before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrossing(t, old)
			space, list := c.inNamespace(), endpointsFrom(5000)
			for i := range 4 {
				list[1000*i].Ready = false
				o, before := manyEndpoints(t, "web", list), c.sent.Load()
				c.mirror.Want(o)
				c.await(map[peering.ObjectRef]peering.Hash{space.Ref: space.Hash(), o.Ref: o.Hash()})
				sent, whole := c.sent.Load()-before, int64(len(o.JSON))
				t.Logf("%d bytes are sent of %d", sent, whole)
				if few := sent <= whole/20; few != (i > 0 && !old) {
					t.Errorf("change %d sends %d bytes of %d", i, sent, whole)
				}
				time.Sleep(100 * time.Millisecond) // the acknowledgement
			}
		})
	}
}

// Whatever changes, and whatever is lost, the provider has in the end what the consumer wants, to the byte.
func TestPatchesEndWithTheWholeObject(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("sequence ", seed), func(t *testing.T) {
			t.Parallel()
			c, r := newCrossing(t, false), rand.New(rand.NewPCG(seed, 1))
			space := c.inNamespace()
			lists := map[string][]peering.ServiceEndpoint{"a": endpointsFrom(300), "b": endpointsFrom(40), "c": endpointsFrom(3)}
			want := map[peering.ObjectRef]peering.Hash{space.Ref: space.Hash()}
			objects := map[peering.ObjectRef]peering.Object{}
			for step := range 150 {
				for name, list := range lists {
					i := r.IntN(len(list))
					list[i].Ready = !list[i].Ready
					if r.IntN(4) == 0 {
						list = append(list[:i:i], append(endpointsFrom(r.IntN(3)), list[i:]...)...)
					}
					lists[name] = list
					o := manyEndpoints(t, name, list)
					c.mirror.Want(o)
					want[o.Ref], objects[o.Ref] = o.Hash(), o
				}
				switch r.IntN(20) {
				case 0:
					c.cut()
				case 1:
					c.provide()
				case 2: // the consumer begins again
					c.end()
					c.consume()
					c.inNamespace()
					for _, o := range objects {
						c.mirror.Want(o)
					}
				case 3:
					c.held.mu.Lock()
					c.held.refuse = true
					c.held.mu.Unlock()
				}
				if step%10 == 0 {
					c.await(want)
				} else {
					time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
				}
			}
			c.await(want)
		})
	}
}

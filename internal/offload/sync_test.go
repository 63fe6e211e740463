package offload_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

const (
	consumer = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	stranger = peering.ClusterID("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
	contract = "c-1"
)

// memory keeps objects in memory, and counts its calls.
type memory struct {
	mu      sync.Mutex
	objects map[peering.ObjectRef]peering.Hash
	applies map[peering.ObjectRef]int
	deletes map[peering.ObjectRef]int
	refuse  map[string]*peering.Refusal
	block   chan struct{}
	watches map[*watcher]struct{}
	sizes   []remotecommand.TerminalSize
}

type watcher struct {
	status func(peering.PodStatus)
	event  func(peering.PodEvent)
}

func newMemory() *memory {
	return &memory{
		objects: map[peering.ObjectRef]peering.Hash{}, applies: map[peering.ObjectRef]int{},
		deletes: map[peering.ObjectRef]int{}, refuse: map[string]*peering.Refusal{}, watches: map[*watcher]struct{}{},
	}
}

func (m *memory) Held(context.Context, string) (held []peering.Held, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r, h := range m.objects {
		held = append(held, peering.Held{Ref: r, Hash: h})
	}
	return held, nil
}

func (m *memory) Admit(context.Context, string) (func(), error) { return func() {}, nil }

func (m *memory) Apply(ctx context.Context, _ string, o peering.Object) error {
	if m.block != nil {
		select {
		case <-m.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if bytes.Contains(o.JSON, []byte("panic")) {
		panic("hostile object")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applies[o.Ref]++
	if r := m.refuse[o.Ref.Name]; r != nil {
		return r
	}
	m.objects[o.Ref] = o.Hash()
	return nil
}

func (m *memory) Delete(_ context.Context, _ string, ref peering.ObjectRef, _ *int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deletes[ref]++
	delete(m.objects, ref)
	if ref.Kind == peering.KindPod {
		for w := range m.watches {
			w.status(peering.PodStatus{Ref: ref, Gone: true})
		}
	}
	return nil
}

func (m *memory) Watch(ctx context.Context, _ string, st func(peering.PodStatus), ev func(peering.PodEvent)) error {
	w := &watcher{st, ev}
	m.mu.Lock()
	m.watches[w] = struct{}{}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	delete(m.watches, w)
	m.mu.Unlock()
	return nil
}

func (m *memory) Logs(_ context.Context, _ string, pod peering.ObjectRef, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	if pod.Name == "nobody" {
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
	}
	return io.NopCloser(strings.NewReader(strings.Repeat("a line of "+o.Container+"\n", 10_000))), nil
}

func (m *memory) Exec(ctx context.Context, _ string, pod peering.ObjectRef, o *corev1.PodExecOptions, s remotecommand.StreamOptions, ready func()) error {
	if pod.Name == "nobody" {
		return apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
	}
	ready()
	if s.TerminalSizeQueue != nil {
		size := s.TerminalSizeQueue.Next()
		m.mu.Lock()
		m.sizes = append(m.sizes, *size)
		m.mu.Unlock()
	}
	if s.Stdin != nil {
		if _, err := io.Copy(s.Stdout, s.Stdin); err != nil {
			return err
		}
	}
	if s.Stderr != nil {
		fmt.Fprint(s.Stderr, strings.Join(o.Command, " "))
	}
	if len(o.Command) > 0 && o.Command[0] == "false" {
		return exec.CodeExitError{Err: errors.New("exit 3"), Code: 3}
	}
	return nil
}

func (m *memory) PortForward(_ context.Context, _ string, _ peering.ObjectRef, port int32, rw io.ReadWriteCloser, ready func()) error {
	defer rw.Close()
	ready()
	fmt.Fprintf(rw, "port %d\n", port)
	_, err := io.Copy(rw, rw)
	return err
}

// site is a server and a way to it.
type site struct {
	mem    *memory
	conn   *grpc.ClientConn
	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

func newSite(t *testing.T, mem *memory, as peering.ClusterID) *site {
	t.Helper()
	s := &site{mem: mem}
	svc, err := server.NewOffload(server.OffloadConfig{
		Objects: mem, Streams: mem,
		Contracts: func(id string) (server.OffloadContract, bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return server.OffloadContract{Consumer: consumer, Closed: s.closed}, id == contract
		},
		Peer: func(ctx context.Context) (peering.ClusterID, bool) {
			md, _ := metadata.FromIncomingContext(ctx)
			v := md.Get("peer")
			if len(v) != 1 {
				return "", false
			}
			return peering.ClusterID(v[0]), true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	lis := bufconn.Listen(1 << 20)
	g := wiretest.NewServer(grpc.MaxRecvMsgSize(wire.MaxOffloadMessage))
	ententev1.RegisterOffloadServiceServer(g, svc)
	go g.Serve(lis)
	t.Cleanup(g.Stop)
	tag := func(ctx context.Context) context.Context {
		if as == "" {
			return ctx
		}
		return metadata.AppendToOutgoingContext(ctx, "peer", string(as))
	}
	s.conn, err = grpc.NewClient("passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := lis.DialContext(ctx)
			if err == nil {
				s.mu.Lock()
				s.conns = append(s.conns, c)
				s.mu.Unlock()
			}
			return c, err
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			return next(tag(ctx), d, cc, m, o...)
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	return s
}

// cut breaks the connections there are.
func (s *site) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

// ear is a MirrorHandler that remembers.
type ear struct {
	mu       sync.Mutex
	up       int
	acks     map[peering.ObjectRef]peering.Ack
	statuses map[peering.ObjectRef]peering.PodStatus
	events   []peering.PodEvent
	orphan   func(peering.Held) bool
}

func newEar() *ear {
	return &ear{acks: map[peering.ObjectRef]peering.Ack{}, statuses: map[peering.ObjectRef]peering.PodStatus{}}
}

func (e *ear) Connected(up bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if up {
		e.up++
	}
}

func (e *ear) PodStatus(s peering.PodStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.statuses[s.Ref] = s
}

func (e *ear) PodEvent(ev peering.PodEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, ev)
}

func (e *ear) Ack(a peering.Ack) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.acks[a.Ref] = a
}

func (e *ear) Orphan(_ context.Context, h peering.Held) bool { return e.orphan != nil && e.orphan(h) }

func (e *ear) ack(r peering.ObjectRef) (peering.Ack, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a, ok := e.acks[r]
	return a, ok
}

func mirror(t *testing.T, s *site, e *ear) *client.Mirror {
	t.Helper()
	m, err := client.NewMirror(client.MirrorConfig{Contract: contract, Conn: s.conn, Handler: e, MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return m
}

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

func ref(k peering.Kind, name string) peering.ObjectRef {
	r := peering.ObjectRef{Kind: k, Namespace: "shop", Name: name, UID: "uid-" + name}
	if k == peering.KindNamespace {
		r.Namespace = ""
	}
	return r
}

func obj(k peering.Kind, name, json string) peering.Object {
	return peering.Object{Ref: ref(k, name), JSON: []byte(json)}
}

func TestAReconnectIsAComparisonNotAResend(t *testing.T) {
	mem := newMemory()
	s, e := newSite(t, mem, consumer), newEar()
	m := mirror(t, s, e)
	m.Want(obj(peering.KindNamespace, "shop", "{}"))
	for i := range 50 {
		m.Want(obj(peering.KindPod, fmt.Sprint("web-", i), "{}"))
	}
	m.Ready()
	eventually(t, "all is held", func() bool { mem.mu.Lock(); defer mem.mu.Unlock(); return len(mem.objects) == 51 })
	eventually(t, "all is acknowledged", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.acks) == 51 })
	for range 3 {
		e.mu.Lock()
		before := e.up
		e.mu.Unlock()
		s.cut()
		eventually(t, "it reconnects", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.up > before })
	}
	m.Want(obj(peering.KindPod, "web-7", `{"changed":true}`))
	eventually(t, "the change arrives", func() bool {
		mem.mu.Lock()
		defer mem.mu.Unlock()
		return mem.objects[ref(peering.KindPod, "web-7")] == obj(peering.KindPod, "web-7", `{"changed":true}`).Hash()
	})
	mem.mu.Lock()
	defer mem.mu.Unlock()
	total := 0
	for _, n := range mem.applies {
		total += n
	}
	if total != 52 || len(mem.deletes) != 0 {
		t.Fatalf("%d applies and %d deletes, want 52 and 0", total, len(mem.deletes))
	}
}

func TestOnlyConfirmedOrphansAreDeleted(t *testing.T) {
	mem := newMemory()
	gone, stays := obj(peering.KindPod, "gone", "{}"), obj(peering.KindPod, "stays", "{}")
	mem.objects[gone.Ref], mem.objects[stays.Ref] = gone.Hash(), stays.Hash()
	s, e := newSite(t, mem, consumer), newEar()
	asked := make(chan peering.ObjectRef, 10)
	e.orphan = func(h peering.Held) bool { asked <- h.Ref; return h.Ref == gone.Ref }
	m := mirror(t, s, e)
	wanted := obj(peering.KindPod, "wanted", "{}")
	m.Want(wanted)
	eventually(t, "the wanted pod is held", func() bool { _, ok := e.ack(wanted.Ref); return ok })
	if len(asked) > 0 {
		t.Fatal("asked about orphans before all statuses were sent")
	}
	m.Ready()
	eventually(t, "the orphan is deleted", func() bool { mem.mu.Lock(); defer mem.mu.Unlock(); return mem.deletes[gone.Ref] == 1 })
	m.Unwant(wanted.Ref, nil)
	eventually(t, "the unwanted pod is gone", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.statuses[wanted.Ref].Gone })
	mem.mu.Lock()
	defer mem.mu.Unlock()
	if _, ok := mem.objects[stays.Ref]; !ok || mem.deletes[stays.Ref] > 0 {
		t.Fatal("an orphan was deleted without evidence")
	}
}

func TestARefusedObjectIsTriedAgainOnlyWhereThatMayHelp(t *testing.T) {
	mem := newMemory()
	mem.refuse["later"] = &peering.Refusal{Reason: peering.RefusedQuota, Message: "full", Retryable: true}
	mem.refuse["never"] = &peering.Refusal{Reason: peering.RefusedPodSecurity, Message: "host network"}
	s, e := newSite(t, mem, consumer), newEar()
	m := mirror(t, s, e)
	m.Want(obj(peering.KindPod, "later", "{}"))
	m.Want(obj(peering.KindPod, "never", "{}"))
	m.Want(obj(peering.KindPod, "boom", `{"panic":1}`))
	eventually(t, "all three are answered", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.acks) == 3 })
	if a, _ := e.ack(ref(peering.KindPod, "never")); a.Refusal == nil || a.Refusal.Reason != peering.RefusedPodSecurity || a.Refusal.Message != "host network" {
		t.Errorf("refusal %+v", a.Refusal)
	}
	if a, _ := e.ack(ref(peering.KindPod, "boom")); a.Refusal == nil || a.Refusal.Reason != peering.RefusedInternal || strings.Contains(a.Refusal.Message, "goroutine") {
		t.Errorf("refusal %+v", a.Refusal)
	}
	mem.mu.Lock()
	delete(mem.refuse, "later")
	mem.mu.Unlock()
	eventually(t, "the one that may pass, passes", func() bool { a, _ := e.ack(ref(peering.KindPod, "later")); return a.Refusal == nil })
	m.Want(obj(peering.KindPod, "never", `{"other":1}`))
	eventually(t, "another form is tried at once", func() bool {
		mem.mu.Lock()
		defer mem.mu.Unlock()
		return mem.applies[ref(peering.KindPod, "never")] == 2
	})
	huge := obj(peering.KindConfigMap, "huge", `{"a":"`+strings.Repeat("x", wire.MaxObjectBytes)+`"}`)
	m.Want(huge)
	eventually(t, "an oversized object is refused here", func() bool { a, ok := e.ack(huge.Ref); return ok && a.Refusal != nil })
	mem.mu.Lock()
	defer mem.mu.Unlock()
	if mem.applies[huge.Ref] > 0 {
		t.Error("an oversized object crossed")
	}
}

func open(t *testing.T, s *site, id string) ententev1.OffloadService_SyncClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := ententev1.NewOffloadServiceClient(s.conn).Sync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(wire.OpenTo(id)); err != nil {
		t.Fatal(err)
	}
	return stream
}

// end receives until the stream ends.
func end(stream ententev1.OffloadService_SyncClient) (msgs []*ententev1.SyncResponse, err error) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return msgs, err
		}
		msgs = append(msgs, m)
	}
}

func TestANewerStreamSupersedesTheOlder(t *testing.T) {
	mem := newMemory()
	s := newSite(t, mem, consumer)
	first := open(t, s, contract)
	if m, err := first.Recv(); err != nil || m.GetSynced() == nil {
		t.Fatalf("first: %v %v", m, err)
	}
	second := open(t, s, contract)
	if m, err := second.Recv(); err != nil || m.GetSynced() == nil {
		t.Fatalf("second: %v %v", m, err)
	}
	_, err := end(first)
	if status.Code(err) != codes.Aborted || wire.ReasonOf(err) != peering.ReasonSyncSuperseded {
		t.Fatalf("the older stream ended with %v", err)
	}
	o := obj(peering.KindPod, "web", "{}")
	if err := second.Send(wire.ApplyTo(o)); err != nil {
		t.Fatal(err)
	}
	if m, err := second.Recv(); err != nil || m.GetAck().GetReason() != "" {
		t.Fatalf("the newer stream: %v %v", m, err)
	}
}

func TestAStreamOfAnUnauthorisedPeerEnds(t *testing.T) {
	tests := map[string]struct {
		as     peering.ClusterID
		id     string
		closed bool
		want   peering.Reason
	}{
		"nobody":                     {as: "", id: contract, want: peering.ReasonPeerNotTrusted},
		"another cluster":            {as: stranger, id: contract, want: peering.ReasonContractUnknown},
		"a contract there is not":    {as: consumer, id: "c-2", want: peering.ReasonContractUnknown},
		"a contract with a bad name": {as: consumer, id: "../c", want: peering.ReasonRequestInvalid},
		"a closed contract":          {as: consumer, id: contract, closed: true, want: peering.ReasonContractClosed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, newMemory(), tc.as)
			s.closed = tc.closed
			if _, err := end(open(t, s, tc.id)); wire.ReasonOf(err) != tc.want {
				t.Errorf("sync ended with %v, want %s", err, tc.want)
			}
			_, err := client.Logs(t.Context(), s.conn, tc.id, ref(peering.KindPod, "web"), peering.LogOptions{Container: "c"})
			if wire.ReasonOf(err) != tc.want {
				t.Errorf("logs ended with %v, want %s", err, tc.want)
			}
			err = client.Exec(t.Context(), s.conn, tc.id, ref(peering.KindPod, "web"), peering.ExecOptions{Container: "c", Stdout: io.Discard, Command: []string{"x"}})
			if wire.ReasonOf(err) != tc.want {
				t.Errorf("exec ended with %v, want %s", err, tc.want)
			}
			a, _ := net.Pipe()
			err = client.PortForward(t.Context(), s.conn, tc.id, ref(peering.KindPod, "web"), 80, a)
			if wire.ReasonOf(err) != tc.want {
				t.Errorf("port-forward ended with %v, want %s", err, tc.want)
			}
		})
	}
}

func TestAStreamEndsWhenItsContractCloses(t *testing.T) {
	s := newSite(t, newMemory(), consumer)
	stream := open(t, s, contract)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if _, err := end(stream); wire.ReasonOf(err) != peering.ReasonContractClosed || status.Code(err) != codes.FailedPrecondition {
		t.Fatalf("ended with %v", err)
	}
}

func TestHostileMessagesAreErrorsForTheSender(t *testing.T) {
	good := wire.ApplyTo(obj(peering.KindPod, "web", "{}"))
	lie := wire.ApplyTo(obj(peering.KindPod, "web", "{}"))
	lie.GetApply().Object = []byte(`{"spec":{}}`)
	noRef := wire.ApplyTo(obj(peering.KindPod, "web", "{}"))
	noRef.GetApply().Ref = nil
	path := wire.DeleteTo(peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "../../etc", UID: "u"}, nil)
	tests := map[string]struct {
		msg  *ententev1.SyncRequest
		ends bool
	}{
		"a second open":             {wire.OpenTo(contract), true},
		"nothing":                   {&ententev1.SyncRequest{}, true},
		"an object without a name":  {noRef, true},
		"a name that is a path":     {path, true},
		"another object's hash":     {lie, false},
		"something that is in fact": {good, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			mem := newMemory()
			s := newSite(t, mem, consumer)
			stream := open(t, s, contract)
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(tc.msg); err != nil {
				t.Fatal(err)
			}
			m, err := stream.Recv()
			if tc.ends {
				if status.Code(err) != codes.InvalidArgument {
					t.Fatalf("got %v, %v", m, err)
				}
				return
			}
			if err != nil || (m.GetAck().GetReason() != "") != (tc.msg == lie) {
				t.Fatalf("got %v, %v", m, err)
			}
		})
	}
	t.Run("a message larger than any object", func(t *testing.T) {
		mem := newMemory()
		stream := open(t, newSite(t, mem, consumer), contract)
		_ = stream.Send(wire.ApplyTo(obj(peering.KindPod, "web", strings.Repeat(" ", 4<<20))))
		if _, err := end(stream); status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("ended with %v", err)
		}
		if len(mem.applies) > 0 {
			t.Fatal("it was applied")
		}
	})
	t.Run("words where start should be", func(t *testing.T) {
		s := newSite(t, newMemory(), consumer)
		ex, err := ententev1.NewOffloadServiceClient(s.conn).Exec(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = ex.Send(&ententev1.ExecRequest{Message: &ententev1.ExecRequest_Stdin{Stdin: []byte("x")}})
		if _, err := ex.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Fatalf("exec: %v", err)
		}
	})
}

func TestAProviderThatDoesNotKeepUpIsNotFloodedWithWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMemory()
		mem.block = make(chan struct{})
		s := newSite(t, mem, consumer)
		stream := open(t, s, contract)
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		// More than the 16 MiB to which gRPC lets a flow-control window grow.
		const messages = 512
		sent := make(chan int, 1)
		go func() {
			n := 0
			for i := range messages {
				if stream.Send(wire.ApplyTo(obj(peering.KindPod, fmt.Sprint("p", i), `{"a":"`+strings.Repeat("x", 64<<10)+`"}`))) != nil {
					break
				}
				n++
			}
			sent <- n
		}()
		synctest.Wait()
		select {
		case n := <-sent:
			t.Fatalf("%d messages of 64 KiB were taken though none was carried out", n)
		default:
		}
		close(mem.block)
		for range messages {
			if m, err := stream.Recv(); err != nil || m.GetAck().GetReason() != "" {
				t.Fatalf("%v %v", m, err)
			}
		}
	})
}

func TestStatusesAndEventsComeBack(t *testing.T) {
	mem := newMemory()
	s, e := newSite(t, mem, consumer), newEar()
	m := mirror(t, s, e)
	pod := obj(peering.KindPod, "web", "{}")
	m.Want(pod)
	eventually(t, "the pod is taken", func() bool { _, ok := e.ack(pod.Ref); return ok })
	eventually(t, "someone watches", func() bool { mem.mu.Lock(); defer mem.mu.Unlock(); return len(mem.watches) == 1 })
	mem.mu.Lock()
	for w := range mem.watches {
		for i := range 5000 {
			w.status(peering.PodStatus{Ref: pod.Ref, RemoteUID: fmt.Sprint("r", i), Status: []byte(`{"phase":"Running"}`)})
			w.event(peering.PodEvent{Ref: pod.Ref, Type: "Normal", Reason: "Started", Message: fmt.Sprint(i), Count: 1})
		}
	}
	mem.mu.Unlock()
	eventually(t, "the latest status arrives", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.statuses[pod.Ref].RemoteUID == "r4999" })
	eventually(t, "the latest event arrives", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.events) > 0 && e.events[len(e.events)-1].Message == "4999"
	})
}

func TestStreamsReachIntoAPod(t *testing.T) {
	mem := newMemory()
	s := newSite(t, mem, consumer)
	pod, nobody := ref(peering.KindPod, "web"), ref(peering.KindPod, "nobody")
	t.Run("logs come whole", func(t *testing.T) {
		log, err := client.Logs(t.Context(), s.conn, contract, pod, peering.LogOptions{Container: "app"})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		b, err := io.ReadAll(log)
		if err != nil || string(b) != strings.Repeat("a line of app\n", 10_000) {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
	})
	t.Run("a pod there is not is an error at once", func(t *testing.T) {
		if _, err := client.Logs(t.Context(), s.conn, contract, nobody, peering.LogOptions{Container: "app"}); wire.ReasonOf(err) != peering.ReasonPodUnknown {
			t.Errorf("logs: %v", err)
		}
		if err := client.Exec(t.Context(), s.conn, contract, nobody, peering.ExecOptions{Container: "app", Command: []string{"x"}, Stdout: io.Discard}); wire.ReasonOf(err) != peering.ReasonPodUnknown {
			t.Errorf("exec: %v", err)
		}
	})
	t.Run("exec carries input, output, errors and the exit code", func(t *testing.T) {
		var out, errs bytes.Buffer
		in := strings.Repeat("0123456789", 20_000)
		err := client.Exec(t.Context(), s.conn, contract, pod, peering.ExecOptions{
			Container: "app", Command: []string{"false", "x"}, Stdin: strings.NewReader(in), Stdout: &out, Stderr: &errs,
		})
		var exit exec.CodeExitError
		if !errors.As(err, &exit) || exit.Code != 3 {
			t.Errorf("exec: %v", err)
		}
		if out.String() != in || errs.String() != "false x" {
			t.Errorf("%d bytes out, %q", out.Len(), errs.String())
		}
	})
	t.Run("a terminal has a size", func(t *testing.T) {
		sized := false
		resize := func(context.Context) (peering.TerminalSize, bool) {
			first := !sized
			sized = true
			return peering.TerminalSize{Width: 80, Height: 25}, first
		}
		if err := client.Exec(t.Context(), s.conn, contract, pod, peering.ExecOptions{
			Container: "app", Command: []string{"sh"}, Stdout: io.Discard, TTY: true, Resize: resize,
		}); err != nil {
			t.Fatal(err)
		}
		mem.mu.Lock()
		defer mem.mu.Unlock()
		if len(mem.sizes) != 1 || mem.sizes[0] != (remotecommand.TerminalSize{Width: 80, Height: 25}) {
			t.Errorf("sizes %v", mem.sizes)
		}
	})
	t.Run("port-forward carries bytes both ways until one side closes", func(t *testing.T) {
		near, far := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- client.PortForward(t.Context(), s.conn, contract, pod, 8080, far) }()
		buf := make([]byte, 10)
		if _, err := io.ReadFull(near, buf); err != nil || string(buf) != "port 8080\n" {
			t.Fatalf("%q %v", buf, err)
		}
		if _, err := near.Write([]byte("0123456789")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(near, buf); err != nil || string(buf) != "0123456789" {
			t.Fatalf("%q %v", buf, err)
		}
		near.Close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// A consumer that rewrites an object faster than this cluster takes it has the
// last state written, and no queue of those before.
func TestOnlyTheLastQueuedStateOfAnObjectIsWritten(t *testing.T) {
	mem := newMemory()
	mem.block = make(chan struct{})
	stream := open(t, newSite(t, mem, consumer), contract)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	const rewrites = 100
	var last peering.Object
	for i := range rewrites {
		last = obj(peering.KindConfigMap, "cfg", fmt.Sprintf(`{"data":{"n":"%d"}}`, i))
		if err := stream.Send(wire.ApplyTo(last)); err != nil {
			t.Fatal(err)
		}
	}
	// A delete of another object is answered meanwhile.
	if err := stream.Send(wire.DeleteTo(ref(peering.KindSecret, "other"), nil)); err != nil {
		t.Fatal(err)
	}
	answered, superseded := 0, 0
	unblock := sync.OnceFunc(func() { close(mem.block) })
	for answered+superseded < rewrites+1 {
		if superseded >= rewrites-2 {
			unblock()
		}
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if a := m.GetAck(); a.GetReason() == "" {
			answered++
		} else if a.GetRetryable() && strings.Contains(a.GetMessage(), "newer state") {
			superseded++
		} else {
			t.Fatalf("answer %v", a)
		}
	}
	if mem.applies[last.Ref] > 2 || mem.objects[last.Ref] != last.Hash() {
		t.Errorf("%d states were written, and the last is held: %v", mem.applies[last.Ref], mem.objects[last.Ref] == last.Hash())
	}
}

package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/intake"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
	"github.com/entente-dev/entente/server/internal/servertest"
)

// unread changes the limits on messages that no handler has read.
func unread(change func(*intake.Config)) func(*PeerConfig) {
	return func(c *PeerConfig) { c.unread = change }
}

// unread is how many bytes of messages that were not taken the server has in memory.
func (p *peerTest) unread() int64 {
	return p.server.meter.Unread()
}

// released waits until no more than most bytes are unread.
func (p *peerTest) released(t *testing.T, most int64) {
	t.Helper()
	if !waittest.Soon(func() bool { return p.unread() <= most }) {
		t.Errorf("%d bytes are unread, %d are never released", p.unread(), p.unread()-most)
	}
}

// A trusted peer announces the largest message on each call and sends all but the end, in frames
// of any size: the memory for that is counted exactly, bounded, and released.
func TestUnfinishedMessagesOfAPeerAreBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		size int
		cost int64
	}{
		"in frames as large as may be":      {16 << 10, 16<<10 + 128},
		"in frames that just miss a buffer": {4<<10 + 1, 16<<10 + 128},
		"in frames of a byte":               {1, 1 + 128},
	} {
		t.Run(name, func(t *testing.T) {
			size, cost := tc.size, tc.cost
			const limit = 24 << 20
			p := newPeerTest(t, unread(func(c *intake.Config) { c.Peer = limit }))
			p.trustCaller(t)
			other := p.another(t)
			p.served(t, "another", other)
			before := servertest.Heap()
			r := p.raw(t, p.caller)
			perCall := min(CallUnread, int64(MaxMessage-16<<10)/int64(size)*cost)
			var chunk []byte
			stream, sent := uint32(1), int64(0)
			fill := func(until int64) bool {
				for ; sent < until; stream += 2 {
					if !r.Announce(t, stream, ententev1.PeeringService_SignContract_FullMethodName, MaxMessage) {
						return false
					}
					chunk = chunk[:0]
					for range 64 << 10 / (size + 9) {
						chunk = servertest.Frame(chunk, servertest.FrameData, 0, stream, make([]byte, size))
					}
					frames := int64(64 << 10 / (size + 9))
					for mine := int64(0); mine+frames*cost < perCall && sent < until; {
						if _, err := r.Conn.Write(chunk); err != nil {
							return false
						}
						mine += frames * cost
						sent += frames * cost
					}
				}
				return true
			}
			if !fill(limit * 5 / 8) {
				t.Fatal("it was cut off before it was due")
			}
			if r.Ends.Load() != 0 {
				t.Error("calls were ended before it was due")
			}
			if !r.Reached(t) {
				t.Fatal("it was cut off before it was due")
			}
			unread, grown := p.unread(), servertest.Heap()-before
			// What came while the heap was measured is in both.
			unread = max(unread, p.unread())
			t.Logf("%d calls, %d KiB are counted, the heap grew by %d KiB", stream/2, unread>>10, grown>>10)
			if unread < limit/2 || unread > limit {
				t.Errorf("%d KiB are counted", unread>>10)
			}
			if grown > unread*5/4+4<<20 {
				t.Errorf("the heap grew by %d KiB, and %d are counted", grown>>10, unread>>10)
			}
			fill(4 * limit)
			if unread := p.unread(); unread > limit+64<<10 { // what is being read
				t.Errorf("more than its share is unread: %d KiB", unread>>10)
			}
			if r.Ends.Load() == 0 && !r.Cut() {
				t.Error("no call was ended")
			}
			_ = r.Conn.Close()
			p.released(t, 0)
			p.served(t, "another", other)
			p.served(t, "the same", p.caller)
		})
	}
}

// When all callers together exceed the limit, the calls of the caller with the most unread bytes
// are ended.
func TestCallersWithTheMostUnreadBytesLoseTheirCalls(t *testing.T) {
	p := newPeerTest(t, unread(func(c *intake.Config) { c.All = 12 << 20 }))
	p.trustCaller(t)
	var small []*servertest.H2
	hold := func(r *servertest.H2, calls int) {
		block := make([]byte, 16<<10)
		for i := range uint32(calls) {
			if !r.Announce(t, 2*i+1, ententev1.PeeringService_SignContract_FullMethodName, MaxMessage) {
				return
			}
			for sent := 0; sent < MaxMessage-len(block); sent += len(block) {
				if r.Frame(servertest.FrameData, 0, 2*i+1, block) != nil {
					return
				}
			}
		}
	}
	for range 3 {
		r := p.raw(t, p.another(t))
		hold(r, 1)
		small = append(small, r)
	}
	hog := p.raw(t, p.caller)
	hold(hog, 8)
	if !waittest.Soon(func() bool { return hog.Ends.Load() > 0 }) {
		t.Fatal("more is unread than the limit of all callers")
	}
	for i, r := range small {
		if r.Ends.Load() != 0 {
			t.Errorf("a call of %d, which had few unread bytes, was ended", i)
		}
		if !r.Reached(t) {
			t.Errorf("%d, which had few unread bytes, was cut off", i)
		}
	}
	p.released(t, 12<<20)
	p.served(t, "the same", p.caller)
}

// One that sends a byte at a time, and whose handler does not read, ends alone; the
// rest of its peer's calls go on.
func TestACallThatStallsEndsAlone(t *testing.T) {
	p := newStalledExec(t, unread(func(c *intake.Config) { c.Call = 1 << 20 }))
	conn := p.dial(t, p.caller)
	quiet, err := ententev1.NewOffloadServiceClient(conn).Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ententev1.NewOffloadServiceClient(conn).Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// It fills its window, unless it receives a status before.
	go typeOn(s)
	status := make(chan error, 1)
	go func() {
		_, err := s.Recv()
		status <- err
	}()
	select {
	case err := <-status:
		if wire.ReasonOf(err) != peering.ReasonTooManyCalls {
			t.Errorf("its status is %v", err)
		}
	case <-time.After(servertest.Patience):
		t.Fatal("it goes on")
	}
	p.released(t, 0)
	if err := quiet.Context().Err(); err != nil {
		t.Errorf("the other ended: %v", err)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	if n := p.server.meter.Conns(); n != 1 {
		t.Errorf("there are %d connections", n)
	}
}

// As many calls that stall as there may be are the doing of tenants: they end, and the
// connection does not.
func TestCallsThatStallLeaveTheConnection(t *testing.T) {
	p := newStalledExec(t, unread(func(c *intake.Config) { c.Peer = 12 << 20 }))
	conn := p.dial(t, p.caller)
	var calls sync.WaitGroup
	var ended, limited atomic.Int64
	// It goes on until some ended, and a moment longer.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var first sync.Once
	for range 16 {
		calls.Go(func() {
			s, err := ententev1.NewOffloadServiceClient(conn).Exec(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			go typeOn(s)
			if _, err = s.Recv(); ctx.Err() == nil {
				ended.Add(1)
				if wire.ReasonOf(err) == peering.ReasonTooManyCalls {
					limited.Add(1)
				}
				first.Do(func() { time.AfterFunc(time.Second, cancel) })
			}
		})
	}
	calls.Wait()
	if ended.Load() == 0 || limited.Load() != ended.Load() {
		t.Errorf("%d ended, %d of them for their unread bytes", ended.Load(), limited.Load())
	}
	if n := p.server.meter.Conns(); n != 1 {
		t.Errorf("there are %d connections", n)
	}
	// Its answer comes after all that was sent before.
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	p.released(t, 12<<20)
	t.Logf("%d were ended", ended.Load())
}

// newStalledExec serves an Exec that reads nothing to a trusted caller.
func newStalledExec(t *testing.T, change ...func(*PeerConfig)) *peerTest {
	t.Helper()
	stalled := &stalledExec{free: make(chan struct{})}
	p := newPeerTest(t, append(change, func(c *PeerConfig) { c.Offload = stalled })...)
	t.Cleanup(func() { close(stalled.free) })
	p.trustCaller(t)
	return p
}

// typeOn sends a byte at a time, until the call ends.
func typeOn(s ententev1.OffloadService_ExecClient) {
	for s.Send(&ententev1.ExecRequest{Message: &ententev1.ExecRequest_Stdin{Stdin: []byte{1}}}) == nil {
	}
}

// stalledExec has an Exec that reads nothing, even when its context ends.
type stalledExec struct {
	ententev1.UnimplementedOffloadServiceServer
	free chan struct{}
}

func (e *stalledExec) Exec(grpc.BidiStreamingServer[ententev1.ExecRequest, ententev1.ExecResponse]) error {
	<-e.free
	return nil
}

// gRPC lets go of the context of a call that was refused at the caller's deadline
// only, so they must not outlive their connection, nor gather on it.
func TestCallsThatAreRefusedAreNotKept(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	stranger := identitytest.NewSource(t)
	before := servertest.Heap()
	calls := 0
	for range 24 {
		r := p.raw(t, stranger)
		sent := uint32(0)
		for ; sent < 20*StrangerRefused; sent++ {
			if r.CallWith(2*sent+1, "/none/none", [2]string{"grpc-timeout", "9999999M"}) != nil {
				break
			}
		}
		if !r.Cut() {
			t.Fatalf("%d calls were refused, and more are taken", sent)
		}
		if n := int(r.Ends.Load()); n > StrangerRefused+StrangerBurst+100 {
			t.Errorf("%d were answered", n)
		}
		calls += StrangerRefused
	}
	if !waittest.Soon(func() bool { return p.server.meter.Conns() == 0 }) {
		t.Errorf("%d connections are left", p.server.meter.Conns())
	}
	grown := int64(0)
	if !waittest.Soon(func() bool {
		grown = servertest.Heap() - before
		return grown <= 2<<20
	}) {
		t.Errorf("the heap grew by %d KiB for %d calls", grown>>10, calls)
	}
	p.served(t, "a peer", p.caller)
}

// Messages of the largest size that are taken take no memory, however many there are.
func TestLargeMessagesThatAreTakenPass(t *testing.T) {
	p := newPeerTest(t, unread(func(c *intake.Config) { c.Peer = 8 << 20 }))
	p.trustCaller(t)
	conn := p.dial(t, p.caller)
	large := servertest.UnknownField(MaxMessage - 1024)
	for range 8 {
		if err := conn.Invoke(t.Context(), healthpb.Health_Check_FullMethodName, large, new([]byte), grpc.ForceCodec(servertest.Bytes{})); err != nil {
			t.Fatal(err)
		}
	}
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName, grpc.ForceCodec(servertest.Bytes{}))
	if err != nil {
		t.Fatal(err)
	}
	list := protowire.AppendString(protowire.AppendTag(nil, 7, protowire.BytesType), "")
	for i := range 12 {
		if err := s.SendMsg(append(list, large...)); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		// Small ones in between, of which a frame has several.
		for range 50 {
			if err := s.SendMsg(list); err != nil {
				t.Fatal(err)
			}
		}
		for range 51 {
			if err := s.RecvMsg(new([]byte)); err != nil {
				t.Fatalf("message %d: %v", i, err)
			}
		}
	}
	p.released(t, 0)
}

func TestDataForAnUnopenedStreamIsNotKept(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	r := p.raw(t, p.caller)
	if err := r.Frame(servertest.FrameData, 0, 99, bytes.Repeat([]byte{1}, 1000)); err != nil {
		t.Fatal(err)
	}
	if !r.Reached(t) {
		t.Fatal("it was cut off")
	}
	if unread := p.unread(); unread != 0 {
		t.Errorf("%d bytes are unread", unread)
	}
}

// Headers that never end lead to the end of the connection: its frames have to wait for them, so
// no ping is answered either.
func TestHeadersThatNeverEndEndTheConnection(t *testing.T) {
	t.Parallel()
	const probe = time.Second // gRPC takes no less
	p := newPeerTest(t, func(c *PeerConfig) { c.Keepalive = probe })
	p.trustCaller(t)
	r := p.raw(t, p.caller)
	if err := r.Frame(servertest.FrameHeaders, 0, 1, []byte{0x82}); err != nil {
		t.Fatal(err)
	}
	p.served(t, "the same", p.caller)
	select {
	case <-r.Closed:
	case <-time.After(probe + middleware.KeepaliveTimeout + servertest.Patience):
		t.Error("they are waited for still")
	}
}

// Headers that go on and on in further frames end their connection and fill nothing
// (CVE-2023-45288).
func TestAFloodOfContinuationsEndsItsConnection(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	before := servertest.Heap()
	r := p.raw(t, p.caller)
	// A name and a value that are not indexed, again and again.
	block := bytes.Repeat([]byte{0x10, 1, 'a', 1, 'b'}, 3200)
	if err := r.Frame(servertest.FrameHeaders, 0, 1, block); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for ; sent < 4000; sent++ {
		if r.Frame(servertest.FrameContinuation, 0, 1, block) != nil {
			break
		}
	}
	if !r.Cut() {
		t.Error("the connection is still there")
	}
	if grown := servertest.Heap() - before; grown > 8<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	t.Logf("cut off after at most %d KiB", sent*len(block)>>10)
	p.served(t, "the same", p.caller)
}

// Frames that need a response are not read from a client that reads no responses, so that no
// responses pile up.
func TestAFloodOfSettingsFillsNoMemory(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	other := p.another(t)
	before := servertest.Heap()
	r := p.rawSilent(t, p.caller)
	flood := bytes.Repeat(servertest.Frame(nil, servertest.FrameSettings, 0, 0, []byte{0, 4, 0, 1, 0, 0}), 4000)
	_ = r.Conn.SetWriteDeadline(time.Now().Add(4 * time.Second))
	sent := 0
	for range 2000 {
		n, err := r.Conn.Write(flood)
		sent += n
		if err != nil {
			break
		}
	}
	if grown := servertest.Heap() - before; grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	t.Logf("%d KiB were taken", sent>>10)
	p.served(t, "another", other)
}

// Calls that are refused have to be answered too.
func TestAFloodOfCallsThatAreRefusedFillsNoMemory(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	other := p.another(t)
	before := servertest.Heap()
	r := p.rawSilent(t, p.caller)
	_ = r.Conn.SetWriteDeadline(time.Now().Add(4 * time.Second))
	calls := uint32(0)
	for ; calls < 400_000; calls++ {
		if r.Call(2*calls+1, "/none/none") != nil {
			break
		}
	}
	if grown := servertest.Heap() - before; grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	t.Logf("%d calls were taken", calls)
	p.served(t, "another", other)
}

// Nothing is decompressed, so nothing can become large by it.
func TestCompressedMessagesAreNotTaken(t *testing.T) {
	if encoding.GetCompressor("gzip") != nil {
		t.Fatal("gRPC would decompress gzip")
	}
	p := newPeerTest(t)
	p.trustCaller(t)
	p.peering.advertise = func(peering.Ask) (peering.Advertisement, error) {
		t.Error("it was taken")
		return peering.Advertisement{}, errors.New("no")
	}
	r := p.raw(t, p.caller)
	if err := r.CallWith(1, ententev1.PeeringService_RequestPeering_FullMethodName, [2]string{"grpc-encoding", "gzip"}); err != nil {
		t.Fatal(err)
	}
	request, err := proto.Marshal(&ententev1.RequestPeeringRequest{Request: &ententev1.PeeringRequest{RequestId: "r", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1"}}}})
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(request)
	_ = w.Close()
	// Its flag says that it is compressed.
	message := servertest.Message(packed.Len(), packed.Bytes()...)
	message[0] = 1
	if err := r.Frame(servertest.FrameData, 1, 1, message); err != nil {
		t.Fatal(err)
	}
	if !waittest.Soon(func() bool { return r.Ends.Load() > 0 }) {
		t.Fatal("no response came")
	}
	p.served(t, "the same", p.caller)
}

// Malformed UTF-8 is an error of its call alone.
func TestMalformedUTF8IsRefused(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	bad := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "a\xff\xfe\x00\x1b[2J")
	conn := p.dial(t, p.caller)
	for method, message := range map[string][]byte{
		ententev1.PeeringService_RequestPeering_FullMethodName:    nested(bad),
		ententev1.PeeringService_TerminateContract_FullMethodName: bad,
		ententev1.TrustService_Join_FullMethodName:                bad,
		ententev1.PeeringService_Session_FullMethodName:           nested(entries(4, 1, func(int) []byte { return []byte("\xff") })),
	} {
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodec(servertest.Bytes{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SendMsg(message); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		_ = s.CloseSend()
		for err = nil; err == nil; {
			err = s.RecvMsg(new([]byte))
		}
		if code := status.Code(err); code != codes.Internal && code != codes.InvalidArgument {
			t.Errorf("%s: got %v", method, err)
		}
	}
	p.served(t, "the same", p.caller)
}

// What gRPC's own options leave a caller: see docs/design/0020.
func TestMeasureUnreadMessages(t *testing.T) {
	if os.Getenv("INTAKE_BENCH") == "" {
		t.Skip("INTAKE_BENCH is not set")
	}
	off := func(c *intake.Config) { c.Call, c.Peer, c.Stranger, c.All = 1<<50, 1<<50, 1<<50, 1<<50 }
	for _, change := range []func(*intake.Config){off, func(*intake.Config) {}} {
		for _, trusted := range []bool{true, false} {
			for _, size := range []int{16 << 10, 4<<10 + 1, 1} {
				p := newPeerTest(t, unread(change))
				calls, method, as := StrangerCalls-1, healthpb.Health_Check_FullMethodName, p.caller
				if trusted {
					p.trustCaller(t)
					calls, method = 64, ententev1.PeeringService_SignContract_FullMethodName
				}
				if size == 1 {
					calls = 1
				}
				before, r := servertest.Heap(), p.raw(t, as)
				frames := 16 << 10 / size
				for i := range uint32(calls) {
					if !r.Announce(t, 2*i+1, method, MaxMessage) {
						break
					}
					chunk := bytes.Repeat(servertest.Frame(nil, servertest.FrameData, 0, 2*i+1, make([]byte, size)), frames)
					for sent := 0; sent < MaxMessage-2*len(chunk); sent += frames * size {
						if _, err := r.Conn.Write(chunk); err != nil {
							break
						}
					}
				}
				time.Sleep(time.Second)
				t.Logf("trusted %v, %d calls, frames of %d bytes: %d MiB, %d calls ended", trusted, calls, size, (servertest.Heap()-before)>>20, r.Ends.Load())
				_ = r.Conn.Close()
			}
		}
	}
}

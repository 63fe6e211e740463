package server

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// heapNow is what is in use after a collection.
func heapNow() int64 {
	var m runtime.MemStats
	// What is pooled goes with the second one.
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// holds is what the server holds of all messages that were not taken.
func (p *peerTest) holds() int64 {
	p.server.in.mu.Lock()
	defer p.server.in.mu.Unlock()
	return p.server.in.held
}

// givenBack waits until the server holds no more than so much.
func (p *peerTest) givenBack(t *testing.T, most int64) {
	t.Helper()
	if !eventually(func() bool { return p.holds() <= most }) {
		t.Errorf("%d bytes are held, %d are never given back", p.holds(), p.holds()-most)
	}
}

// quiet waits until the server holds so much, and no more comes.
func (p *peerTest) quiet() int64 {
	for last := p.holds(); ; {
		time.Sleep(300 * time.Millisecond)
		now := p.holds()
		if now == last {
			return now
		}
		last = now
	}
}

// A trusted peer announces the largest message on each call and sends all of it but
// the end, in frames of any size: what that takes is counted as it is, bounded, and
// given back.
func TestWhatAPeerDoesNotEndIsBounded(t *testing.T) {
	for name, size := range map[string]int{"in frames as large as may be": 16 << 10, "in frames that just miss a buffer": 4<<10 + 1, "in frames of a byte": 1} {
		t.Run(name, func(t *testing.T) {
			p := newPeerTest(t)
			p.trustCaller(t)
			const limit = 24 << 20
			p.server.in.peer = limit
			other := p.another(t)
			p.served(t, "another", other)
			before := heapNow()
			r := p.raw(t, p.caller)
			perCall := min(CallUnread, int64(MaxMessage-16<<10)/int64(size)*frameCost(uint32(size)))
			var chunk []byte
			stream, sent := uint32(1), int64(0)
			fill := func(until int64) bool {
				for ; sent < until; stream += 2 {
					if !r.announce(t, stream, ententev1.PeeringService_SignContract_FullMethodName) {
						return false
					}
					chunk = chunk[:0]
					for range 64 << 10 / (size + 9) {
						chunk = h2Frame(chunk, h2Data, 0, stream, make([]byte, size))
					}
					frames := int64(64 << 10 / (size + 9))
					for mine := int64(0); mine+frames*frameCost(uint32(size)) < perCall && sent < until; {
						if _, err := r.conn.Write(chunk); err != nil {
							return false
						}
						mine += frames * frameCost(uint32(size))
						sent += frames * frameCost(uint32(size))
					}
				}
				return true
			}
			if !fill(limit * 5 / 8) {
				t.Fatal("it was cut off before it was due")
			}
			if r.ends.Load() != 0 {
				t.Error("calls were ended before it was due")
			}
			eventually(func() bool { return p.holds() >= limit/2 })
			held, grown := p.quiet(), heapNow()-before
			// What came while the heap was measured is in both.
			held = max(held, p.holds())
			t.Logf("%d calls, %d KiB are counted, the heap grew by %d KiB", stream/2, held>>10, grown>>10)
			if held < limit/2 || held > limit {
				t.Errorf("%d KiB are counted", held>>10)
			}
			if grown > held*5/4+4<<20 {
				t.Errorf("the heap grew by %d KiB, and %d are counted", grown>>10, held>>10)
			}
			fill(4 * limit)
			if held := p.holds(); held > limit {
				t.Errorf("it may hold more than its share: %d KiB", held>>10)
			}
			if r.ends.Load() == 0 && !r.cut() {
				t.Error("no call was ended")
			}
			_ = r.conn.Close()
			p.givenBack(t, 0)
			p.served(t, "another", other)
			p.served(t, "the same", p.caller)
		})
	}
}

// When all together hold too much, it is who holds the most whose calls have to go.
func TestTheCallsOfWhoHoldsTheMostAreEnded(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	p.server.in.all = 12 << 20
	var small []*rawH2
	hold := func(r *rawH2, calls int) {
		block := make([]byte, 16<<10)
		for i := range uint32(calls) {
			if !r.announce(t, 2*i+1, ententev1.PeeringService_SignContract_FullMethodName) {
				return
			}
			for sent := 0; sent < MaxMessage-len(block); sent += len(block) {
				if r.frame(h2Data, 0, 2*i+1, block) != nil {
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
	if !eventually(func() bool { return hog.ends.Load() > 0 }) {
		t.Fatal("it holds more than all may")
	}
	for i, r := range small {
		if r.ends.Load() != 0 {
			t.Errorf("a call of %d, which held little, was ended", i)
		}
		if err := r.frame(h2Ping, 0, 0, make([]byte, 8)); err != nil {
			t.Errorf("%d, which held little, was cut off: %v", i, err)
		}
		select {
		case <-r.told:
			t.Errorf("%d, which held little, was cut off", i)
		case <-time.After(200 * time.Millisecond):
		}
	}
	p.quiet()
	p.givenBack(t, 9<<20)
	p.served(t, "the same", p.caller)
}

// heldFor is a call of a connection that holds so much. Its handler does not let go of
// it, whatever its context says.
func heldFor(c *meteredConn, id uint32, cost int64) (*inbound, context.Context) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &inbound{conn: c, intakeState: intakeState{cancel: cancel}}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.streams[id] = s
	c.in.add(s, cost)
	return s, ctx
}

// Whose calls do not end though they should is cut off: the one of all who holds the
// most, but no peer while a stranger holds anything. What is cut off counts no more at
// once, and nobody waits until it is closed.
func TestWhoHoldsTheMostIsCutOff(t *testing.T) {
	peers := map[peering.ClusterID]bool{"a": true, "b": true}
	in := newIntake(slog.New(slog.DiscardHandler), func(info identity.AuthInfo) bool { return peers[info.ID] })
	in.peer, in.all = 60<<10, 100<<10
	stuck := &stuckConn{closing: make(chan struct{}), never: make(chan struct{})}
	defer close(stuck.never)
	a, b := in.meter(stuck, identity.AuthInfo{ID: "a"}), in.meter(&addressed{}, identity.AuthInfo{ID: "b"})
	stranger := in.meter(&addressed{}, identity.AuthInfo{})
	heldFor(a, 1, 52<<10)
	heldFor(b, 1, 40<<10)
	heldFor(stranger, 1, 4<<10)
	if cut := b.feed(nil); len(cut) != 0 {
		t.Fatal("somebody was cut off before it was due")
	}
	heldFor(b, 3, 8<<10)
	if cut := b.feed(nil); !slices.Equal(cut, []*meteredConn{stranger}) {
		t.Fatalf("%d were cut off, want the stranger", len(cut))
	}
	heldFor(b, 5, 3<<10)
	// It is b's turn to read, and a's to go.
	ping := h2Frame(nil, h2Ping, 0, 0, make([]byte, 8))
	b.preface, b.r = 0, bufio.NewReader(bytes.NewReader(ping))
	read := make(chan error, 1)
	go func() {
		_, err := b.Read(make([]byte, 100))
		read <- err
	}()
	select {
	case err := <-read:
		if err != nil {
			t.Errorf("who reads is told %v", err)
		}
	case <-time.After(patience):
		t.Fatal("who reads waits for another's connection")
	}
	<-stuck.closing
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.held != 51<<10 || in.ending > in.held || b.from.held != in.held {
		t.Errorf("%d are held, %d of them end, %d by who is left", in.held, in.ending, b.from.held)
	}
}

// stuckConn does not come back from Close.
type stuckConn struct {
	addressed
	closing, never chan struct{}
}

func (c *stuckConn) Close() error {
	close(c.closing)
	<-c.never
	return nil
}

// A sender near its limit loses the call that holds the most, and what that one holds
// is asked of no other.
func TestTheLargestCallEndsFirst(t *testing.T) {
	in := newIntake(slog.New(slog.DiscardHandler), func(identity.AuthInfo) bool { return true })
	in.peer = 100 << 10
	c := in.meter(&addressed{}, identity.AuthInfo{ID: "a"})
	_, small := heldFor(c, 1, 20<<10)
	largest, end := heldFor(c, 3, 50<<10)
	if cut := c.feed(nil); len(cut) != 0 || end.Err() != nil {
		t.Fatal("it was ended before it was due")
	}
	_, last := heldFor(c, 5, 10<<10)
	for range 3 {
		if cut := c.feed(nil); len(cut) != 0 {
			t.Fatal("the connection was cut off")
		}
	}
	if !errors.Is(context.Cause(end), errCallHeldTooMuch) || small.Err() != nil || last.Err() != nil {
		t.Errorf("%v, %v and %v", context.Cause(end), small.Err(), last.Err())
	}
	in.mu.Lock()
	in.add(largest, -largest.held)
	left := in.load
	in.mu.Unlock()
	if left != (load{held: 30 << 10}) {
		t.Errorf("%+v is left", left)
	}
}

// One that sends a byte at a time, and whose handler does not read, ends alone; the
// rest of its peer's calls go on.
func TestACallThatStallsEndsAlone(t *testing.T) {
	p := newStalledExec(t)
	p.server.in.call = 1 << 20
	conn := p.dial(t, p.caller)
	quiet, err := ententev1.NewOffloadServiceClient(conn).Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ententev1.NewOffloadServiceClient(conn).Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// It fills its window, unless it is told before.
	go typeOn(s)
	told := make(chan error, 1)
	go func() {
		_, err := s.Recv()
		told <- err
	}()
	select {
	case err := <-told:
		if wire.ReasonOf(err) != peering.ReasonTooManyCalls {
			t.Errorf("it is told %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	p.givenBack(t, 0)
	if err := quiet.Context().Err(); err != nil {
		t.Errorf("the other ended: %v", err)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	if n := p.server.in.conns(); n != 1 {
		t.Errorf("there are %d connections", n)
	}
}

// As many calls that stall as there may be are the doing of tenants: they end, and the
// connection does not.
func TestCallsThatStallLeaveTheConnection(t *testing.T) {
	p := newStalledExec(t)
	p.server.in.peer = 12 << 20
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
		t.Errorf("%d ended, %d of them for what they hold", ended.Load(), limited.Load())
	}
	if n := p.server.in.conns(); n != 1 {
		t.Errorf("there are %d connections", n)
	}
	if held := p.quiet(); held > 12<<20 {
		t.Errorf("%d bytes are held", held)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	t.Logf("%d were ended", ended.Load())
}

// newStalledExec serves an Exec that reads nothing to a trusted caller.
func newStalledExec(t *testing.T) *peerTest {
	t.Helper()
	stalled := &stalledExec{free: make(chan struct{})}
	p := newPeerTest(t, func(c *PeerConfig) { c.Offload = stalled })
	t.Cleanup(func() { close(stalled.free) })
	p.trustCaller(t)
	return p
}

// typeOn sends a byte at a time, until the call ends.
func typeOn(s ententev1.OffloadService_ExecClient) {
	for s.Send(&ententev1.ExecRequest{Message: &ententev1.ExecRequest_Stdin{Stdin: []byte{1}}}) == nil {
	}
}

// stalledExec has an Exec that reads nothing, whatever its context says.
type stalledExec struct {
	ententev1.UnimplementedOffloadServiceServer
	free chan struct{}
}

func (e *stalledExec) Exec(grpc.BidiStreamingServer[ententev1.ExecRequest, ententev1.ExecResponse]) error {
	<-e.free
	return nil
}

func (in *intake) conns() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := 0
	for _, s := range in.senders {
		n += len(s.conns)
	}
	return n
}

// gRPC lets go of the context of a call that was refused at the caller's deadline
// only, so they must not outlive their connection, nor gather on it.
func TestCallsThatAreRefusedAreNotKept(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	stranger := newSource(t)
	before := heapNow()
	calls := 0
	for range 24 {
		r := p.raw(t, stranger)
		sent := uint32(0)
		for ; sent < 20*StrangerRefused; sent++ {
			if r.callWith(2*sent+1, "/none/none", [2]string{"grpc-timeout", "9999999M"}) != nil {
				break
			}
		}
		if !r.cut() {
			t.Fatalf("%d calls were refused, and more are taken", sent)
		}
		if n := int(r.ends.Load()); n > StrangerRefused+StrangerBurst+100 {
			t.Errorf("%d were answered", n)
		}
		calls += StrangerRefused
	}
	if !eventually(func() bool { return p.server.in.conns() == 0 }) {
		t.Errorf("%d connections are left", p.server.in.conns())
	}
	grown := int64(0)
	if !eventually(func() bool {
		grown = heapNow() - before
		return grown <= 2<<20
	}) {
		t.Errorf("the heap grew by %d KiB for %d calls", grown>>10, calls)
	}
	p.served(t, "a peer", p.caller)
}

// junk is an unknown field: what a message has in it is nobody's business here.
func junk(n int) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), make([]byte, n))
}

// Messages as large as may be that are taken hold nothing, whatever their number.
func TestLargeMessagesThatAreTakenPass(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	p.server.in.peer = 8 << 20
	conn := p.dial(t, p.caller)
	large := junk(MaxMessage - 1024)
	for range 8 {
		if err := conn.Invoke(t.Context(), healthpb.Health_Check_FullMethodName, large, new([]byte), grpc.ForceCodec(bytesCodec{})); err != nil {
			t.Fatal(err)
		}
	}
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName, grpc.ForceCodec(bytesCodec{}))
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
	p.givenBack(t, 0)
}

// What a call holds adds up, however its frames cut its messages, and padded or not.
func TestFramesAndMessagesAreCountedInAnyPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		in := newIntake(nil, func(identity.AuthInfo) bool { return false })
		in.stranger, in.all = 1<<40, 1<<40
		in.call = 1 << 40
		c := in.meter(&addressed{}, identity.AuthInfo{})
		s := &inbound{conn: c}
		c.streams[1] = s
		var messages [][]byte
		var all []byte
		for range 1 + random.IntN(6) {
			size := random.IntN(3000)
			m := h2Message(size, make([]byte, size)...)
			messages = append(messages, m)
			all = append(all, m...)
		}
		sent := []byte(h2Preface)
		frames := int64(0)
		for rest := all; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(2000))
			body, flags := rest[:n], byte(0)
			rest = rest[n:]
			if random.IntN(2) == 0 {
				pad := random.IntN(200)
				body, flags = append(append([]byte{byte(pad)}, body...), make([]byte, pad)...), flagPadded
			}
			sent = h2Frame(sent, h2Data, flags, 1, body)
			frames += frameCost(uint32(len(body)))
			// And what is nobody's.
			sent = h2Frame(sent, h2Data, 0, 9, []byte{1, 2, 3})
			sent = h2Frame(sent, h2Ping, 0, 0, []byte{1, 2, 3, 4, 5, 6, 7, 8})
		}
		for len(sent) > 0 {
			n := min(len(sent), 1+random.IntN(500))
			if len(c.feed(sent[:n])) != 0 {
				t.Fatal("it was cut off")
			}
			sent = sent[n:]
		}
		if len(s.whole) != len(messages) || s.part != 0 || s.got != 0 {
			t.Fatalf("round %d: %d messages of %d, %d of another", round, len(s.whole), len(messages), s.part)
		}
		if sum := s.part + s.frame + sumOf(s.whole); sum != frames {
			t.Fatalf("round %d: the messages hold %d, want %d", round, sum, frames)
		}
		if in.held != frames || s.held != frames || c.held != frames || c.from.held != frames {
			t.Fatalf("round %d: %d, %d, %d and %d are held, want %d", round, in.held, s.held, c.held, c.from.held, frames)
		}
	}
}

func sumOf(costs []int64) (sum int64) {
	for _, c := range costs {
		sum += c
	}
	return sum
}

// addressed is a connection that has an address and nothing else.
type addressed struct{ net.Conn }

func (addressed) Close() error { return nil }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

func TestANumberOfStreamsThatNobodyOpenedHoldsNothing(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	r := p.raw(t, p.caller)
	if err := r.frame(h2Data, 0, 99, bytes.Repeat([]byte{1}, 1000)); err != nil {
		t.Fatal(err)
	}
	if held := p.quiet(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

// Headers that never end are given up: the frames of a connection have to wait for
// them, so no ping is answered either.
func TestHeadersThatNeverEndAreGivenUp(t *testing.T) {
	t.Parallel()
	const probe = time.Second // gRPC takes no less
	p := newPeerTest(t, func(c *PeerConfig) { c.Keepalive = probe })
	p.trustCaller(t)
	r := p.raw(t, p.caller)
	if err := r.frame(h2Headers, 0, 1, []byte{0x82}); err != nil {
		t.Fatal(err)
	}
	p.served(t, "the same", p.caller)
	select {
	case <-r.told:
	case <-time.After(probe + KeepaliveTimeout + patience):
		t.Error("they are waited for still")
	}
}

// Headers that go on and on in further frames end their connection and fill nothing
// (CVE-2023-45288).
func TestAFloodOfContinuationsEndsItsConnection(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	before := heapNow()
	r := p.raw(t, p.caller)
	// A name and a value that are not indexed, again and again.
	block := bytes.Repeat([]byte{0x10, 1, 'a', 1, 'b'}, 3200)
	if err := r.frame(h2Headers, 0, 1, block); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for ; sent < 4000; sent++ {
		if r.frame(h2Continuation, 0, 1, block) != nil {
			break
		}
	}
	if !r.cut() {
		t.Error("the connection is still there")
	}
	if grown := heapNow() - before; grown > 8<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	t.Logf("cut off after at most %d KiB", sent*len(block)>>10)
	p.served(t, "the same", p.caller)
}

// Frames that have to be answered, from one who reads no answer, are not read
// either, so that nothing waits to be said.
func TestAFloodOfSettingsFillsNothing(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	other := p.another(t)
	before := heapNow()
	r := p.rawSilent(t, p.caller)
	flood := bytes.Repeat(h2Frame(nil, h2Settings, 0, 0, []byte{0, 4, 0, 1, 0, 0}), 4000)
	_ = r.conn.SetWriteDeadline(time.Now().Add(4 * time.Second))
	sent := 0
	for range 2000 {
		n, err := r.conn.Write(flood)
		sent += n
		if err != nil {
			break
		}
	}
	if grown := heapNow() - before; grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	t.Logf("%d KiB were taken", sent>>10)
	p.served(t, "another", other)
}

// Calls that are refused have to be answered too.
func TestAFloodOfCallsThatAreRefusedFillsNothing(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	other := p.another(t)
	before := heapNow()
	r := p.rawSilent(t, p.caller)
	_ = r.conn.SetWriteDeadline(time.Now().Add(4 * time.Second))
	calls := uint32(0)
	for ; calls < 400_000; calls++ {
		if r.call(2*calls+1, "/none/none") != nil {
			break
		}
	}
	if grown := heapNow() - before; grown > 16<<20 {
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
	if err := r.callWith(1, ententev1.PeeringService_RequestPeering_FullMethodName, [2]string{"grpc-encoding", "gzip"}); err != nil {
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
	// It says of itself that it is compressed.
	message := h2Message(packed.Len(), packed.Bytes()...)
	message[0] = 1
	if err := r.frame(h2Data, 1, 1, message); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return r.ends.Load() > 0 }) {
		t.Fatal("there is no answer")
	}
	p.served(t, "the same", p.caller)
}

// What is not UTF-8 is no text, and an error of its call alone.
func TestTextThatIsNoneIsRefused(t *testing.T) {
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
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodec(bytesCodec{}))
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

// A message may be taken, by a goroutine of the handler's, while gRPC lets go of the
// call: who takes it then finds nothing.
func TestAMessageMayBeTakenWhileItsCallEnds(t *testing.T) {
	in := newIntake(nil, func(identity.AuthInfo) bool { return true })
	c := in.meter(&addressed{}, identity.AuthInfo{ID: "a"})
	for range 100 {
		ctx, end := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()}))
		own := in.enter(ctx)
		var taking sync.WaitGroup
		taking.Go(func() {
			for range 100 {
				taken(own)
			}
		})
		end()
		taking.Wait()
	}
	if !eventually(func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return len(c.streams) == 0 && in.held == 0
	}) {
		t.Errorf("%d calls are left, %d bytes are held", len(c.streams), in.held)
	}
}

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
	"github.com/entente-dev/entente/server/internal/servertest"
)

// another makes a second trusted cluster.
func (p *peerTest) another(t *testing.T) *identity.Source {
	t.Helper()
	s := identitytest.NewSource(t)
	if err := p.bundles.Trust(s.ID(), s.Identity().TrustBundle()); err != nil {
		t.Fatal(err)
	}
	return s
}

// served checks that a peer is served promptly.
func (p *peerTest) served(t *testing.T, who string, as *identity.Source) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servertest.Patience)
	defer cancel()
	begin := time.Now()
	if _, err := healthpb.NewHealthClient(p.dial(t, as)).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("%s is not served: %v", who, err)
	}
	if took := time.Since(begin); took > servertest.Prompt {
		t.Errorf("%s had to wait for %s", who, took)
	}
}

// entries is a message with so many entries in a field; each is at least one
// label as short as can be.
func entries(field protowire.Number, n int, entry func(i int) []byte) []byte {
	var out []byte
	for i := range n {
		out = protowire.AppendTag(out, field, protowire.BytesType)
		out = protowire.AppendBytes(out, entry(i))
	}
	return out
}

func label(i int) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprintf("l%d", i))
}

// nested puts a message into the first field of another.
func nested(message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), message)
}

// A million labels do not fit a message. As many as fit are refused by the name of the field,
// with a small response, before any of them is checked.
func TestAMillionLabelsAreRefusedAtOnce(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	p.peering.advertise = func(peering.Ask) (peering.Advertisement, error) {
		t.Error("the request got through")
		return peering.Advertisement{}, errors.New("no")
	}
	request := (&ententev1.PeeringRequest{}).ProtoReflect().Descriptor().Fields().ByName("node_selector").Number()
	state := (&ententev1.PeerState{}).ProtoReflect().Descriptor().Fields().ByName("capabilities").Number()
	for name, tc := range map[string]struct {
		method  string
		message []byte
		code    codes.Code
		field   string
	}{
		"a million": {ententev1.PeeringService_RequestPeering_FullMethodName, nested(entries(request, 1_000_000, label)), codes.ResourceExhausted, ""},
		"as many as fit": {
			ententev1.PeeringService_RequestPeering_FullMethodName, nested(entries(request, 160_000, label)), codes.InvalidArgument, "request.node_selector",
		},
		"a million in one": {
			ententev1.PeeringService_RequestPeering_FullMethodName,
			nested(entries(request, 1, func(int) []byte { return entries(1, 600_000, func(int) []byte { return []byte("l") }) })), codes.InvalidArgument, "",
		},
		"as many as fit in a state": {
			ententev1.PeeringService_Session_FullMethodName,
			nested(entries(state, 200_000, func(i int) []byte { return fmt.Appendf(nil, "l%d", i) })), codes.InvalidArgument, "state.capabilities",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.code != codes.ResourceExhausted && len(tc.message) > MaxMessage {
				t.Fatalf("what should fit has %d bytes", len(tc.message))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*servertest.Patience)
			defer cancel()
			s, err := p.dial(t, p.caller).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, tc.method, grpc.ForceCodec(servertest.Bytes{}))
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := s.SendMsg(tc.message); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			_ = s.CloseSend()
			for err = nil; err == nil; {
				err = s.RecvMsg(new([]byte))
			}
			if took := time.Since(begin); took > 2*servertest.Prompt {
				t.Errorf("it took %s", took)
			}
			if status.Code(err) != tc.code {
				t.Fatalf("got %.300v", err)
			}
			if e := wire.FromStatus(err); tc.field != "" && (e.Reason != peering.ReasonRequestInvalid || !slices.ContainsFunc(e.Violations, func(v peering.Violation) bool {
				// It was not decoded, or the field would have another.
				return v.Field == tc.field && strings.Contains(v.Message, "parts")
			})) {
				t.Errorf("the reason is %s, of %.300v", e.Reason, e.Violations)
			}
			if n := proto.Size(status.Convert(err).Proto()); n > 4<<10 {
				t.Errorf("the answer has %d bytes", n)
			}
		})
	}
	if n := len(p.log.String()); n > 16<<10 {
		t.Errorf("%d bytes were logged", n)
	}
	p.served(t, "the caller", p.caller)
}

func TestHeadersBeyondTheLimitAreRefused(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	conn := p.dial(t, p.caller)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-long", strings.Repeat("a", 2*middleware.MaxHeader))
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}); err == nil {
		t.Error("they were taken")
	}
	p.served(t, "the caller", p.caller)
}

// Pings are answered, so they cost: one that pings without end is cut off.
func TestAFloodOfPingsEndsItsConnection(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	other := p.another(t)
	r := p.raw(t, p.caller)
	for range 10_000 {
		if r.Frame(servertest.FramePing, 0, 0, make([]byte, 8)) != nil {
			break
		}
	}
	select {
	case <-r.Closed:
	case <-time.After(servertest.Patience):
		t.Fatal("the connection is still there")
	}
	if code := r.GoAway.Load(); code != servertest.EnhanceYourCalm {
		t.Errorf("it ended with code %d, want ENHANCE_YOUR_CALM", code)
	}
	p.served(t, "another", other)
}

// Calls that are begun and reset at once, as fast as they can be written, get as
// many handlers as calls may run and no more (CVE-2023-44487).
func TestCallsThatAreResetAtOnceDelayNoOtherCaller(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	other := p.another(t)
	var running, most atomic.Int64
	p.peering.advertise = func(peering.Ask) (peering.Advertisement, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(50 * time.Millisecond)
		return peering.Advertisement{}, errors.New("no")
	}
	body, err := proto.Marshal(&ententev1.RequestPeeringRequest{Request: &ententev1.PeeringRequest{RequestId: "r"}})
	if err != nil {
		t.Fatal(err)
	}
	message := servertest.Message(len(body), body...)
	r := p.raw(t, p.caller)
	var flood sync.WaitGroup
	flood.Go(func() {
		for i := range uint32(20_000) {
			stream := 2*i + 1
			if r.Call(stream, ententev1.PeeringService_RequestPeering_FullMethodName) != nil ||
				r.Frame(servertest.FrameData, 1, stream, message) != nil ||
				r.Frame(servertest.FrameReset, 0, stream, []byte{0, 0, 0, 8}) != nil {
				return
			}
		}
	})
	for range 5 {
		p.served(t, "another", other)
	}
	_ = r.Conn.SetDeadline(time.Now().Add(servertest.Patience))
	flood.Wait()
	_ = r.Conn.Close()
	p.served(t, "another", other)
	if n := most.Load(); n > PeerCalls {
		t.Errorf("%d handlers ran at once", n)
	}
}

// A peer that opens streams and does not read them, and begins calls and does not end them, uses
// up only its own limits: others are served, and the server stops in time.
func TestAPeerThatStallsItsStreamsDelaysNoOther(t *testing.T) {
	p := newPeerTest(t, func(c *PeerConfig) { c.HeartbeatInterval = 10 * time.Millisecond })
	p.trustCaller(t)
	other := p.another(t)
	r := p.raw(t, p.caller)
	// Streams on which the server sends, and a client that opens no window: that of a stream is 64
	// KiB, and nothing is ever read from these.
	stalled := p.dial(t, p.caller)
	for range MaxSessionsPerPeer {
		s, err := ententev1.NewPeeringServiceClient(stalled).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			// It sends heartbeats, so that it is not ended for its silence.
			for i := uint64(1); s.Send(&ententev1.SessionRequest{State: &ententev1.PeerState{Sequence: i}}) == nil; i++ {
				time.Sleep(10 * time.Millisecond)
			}
		}()
	}
	// Calls whose message is announced and never comes.
	for i := range uint32(PeerCalls / 2) {
		stream := 2*i + 1
		if err := r.Call(stream, ententev1.PeeringService_SignContract_FullMethodName); err != nil {
			t.Fatal(err)
		}
		if err := r.Frame(servertest.FrameData, 0, stream, servertest.Message(256)); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	for time.Since(begin) < 2*time.Second {
		p.served(t, "another", other)
		p.served(t, "the same", p.caller)
		time.Sleep(100 * time.Millisecond)
	}
	begin = time.Now()
	p.stop()
	select {
	case <-r.Closed:
	case <-time.After(servertest.Patience):
		t.Error("the server waits for calls that never come")
	}
	if took := time.Since(begin); took > middleware.DrainTimeout+servertest.Prompt {
		t.Errorf("it took %s to stop", took)
	}
}

// One peer's flood is refused beyond its rate, and takes nothing from another's.
func TestAFloodingPeerDoesNotDelayOthers(t *testing.T) {
	// The clock of the limits does not move: what is refused does not depend on how fast this
	// machine is.
	now := time.Now()
	p := newPeerTest(t, func(c *PeerConfig) { c.Now = func() time.Time { return now } })
	p.trustCaller(t)
	other := p.another(t)
	p.peering.advertise = func(ask peering.Ask) (peering.Advertisement, error) {
		return peering.Advertisement{}, &peering.Error{Reason: peering.ReasonPolicyRefused, Message: "no"}
	}
	flood := ententev1.NewPeeringServiceClient(p.dial(t, p.caller))
	var answered, limited atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 40 {
				_, err := flood.RequestPeering(t.Context(), &ententev1.RequestPeeringRequest{Request: &ententev1.PeeringRequest{RequestId: "r", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1"}}}})
				switch wire.ReasonOf(err) {
				case peering.ReasonPolicyRefused:
					answered.Add(1)
				case peering.ReasonRateLimited:
					limited.Add(1)
				default:
					t.Errorf("got %v", err)
				}
			}
		})
	}
	calm := ententev1.NewPeeringServiceClient(p.dial(t, other))
	for range 50 {
		begin := time.Now()
		_, err := calm.RequestPeering(t.Context(), &ententev1.RequestPeeringRequest{Request: &ententev1.PeeringRequest{RequestId: "r", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1"}}}})
		if wire.ReasonOf(err) != peering.ReasonPolicyRefused {
			t.Errorf("another got %v", err)
		}
		if took := time.Since(begin); took > servertest.Prompt {
			t.Errorf("another waited for %s", took)
		}
	}
	wg.Wait()
	if answered.Load() != PeerBurst || limited.Load() != 2000-PeerBurst {
		t.Errorf("%d were answered and %d were refused, want %d and the rest", answered.Load(), limited.Load(), PeerBurst)
	}
	// A flood must not become a flood of log lines: a call that is refused for its rate is logged
	// at the level of debugging alone.
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, string(peering.ReasonRateLimited)) && !strings.Contains(line, `"level":"DEBUG"`) {
			t.Fatalf("the log has %s", line)
		}
	}
}

// A stranger begins calls, announces the largest message for each and sends all but the end. gRPC
// keeps the part of a message that came, so a call has to have a place before its message comes:
// the other calls are refused unread.
func TestMessagesThatNeverEndFillNoMemory(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	stranger := identitytest.NewSource(t)
	r := p.raw(t, stranger)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const calls = 100
	block := make([]byte, 16<<10)
	for i := range uint32(calls) {
		// The server has to have made room for it or refused it, or what comes next
		// breaks HTTP/2.
		if !r.Announce(t, 2*i+1, healthpb.Health_Check_FullMethodName, MaxMessage) {
			t.Fatal("the connection was cut off")
		}
	}
	for i := range uint32(calls) {
		for sent := 0; sent < MaxMessage-len(block); sent += len(block) {
			if r.Frame(servertest.FrameData, 0, 2*i+1, block) != nil {
				break // who sends more than there is room for is cut off
			}
		}
	}
	if !waittest.Soon(func() bool { return r.Resets.Load() >= calls-StrangerCalls-1 }) {
		t.Errorf("%d calls were refused, want all but %d", r.Resets.Load(), StrangerCalls)
	}
	r.Reached(t) // or it was cut off
	after := heap()
	if grown := int64(after) - int64(before); grown > (StrangerCalls+8)*MaxMessage {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	p.served(t, "a peer", p.caller)
	_ = r.Conn.Close()
	<-r.Closed
	// Its places are free again.
	eventuallyServed(t, p, stranger)
}

func eventuallyServed(t *testing.T, p *peerTest, as *identity.Source) {
	t.Helper()
	c := healthpb.NewHealthClient(p.dial(t, as))
	var err error
	if !waittest.Soon(func() bool {
		_, err = c.Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err == nil
	}) {
		t.Fatalf("still: %v", err)
	}
}

package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Most states equal the last one.
func TestUnchangedStatesCostNoRead(t *testing.T) {
	const peer = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	lists := 0
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "peer"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peer)}}
	c := interceptor.NewClient(
		indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(fc).WithStatusSubresource(fc)),
		interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists++
			return c.List(ctx, list, opts...)
		}})
	synctest.Test(t, func(t *testing.T) {
		s := New(&controller.States{
			Client: c, Namespace: "entente-system", Endpoints: func() []string { return nil },
			Budget: &store.WriteBudget{Now: time.Now},
		}, slog.New(slog.DiscardHandler))
		reads := func(what string, want bool, do func() error) {
			t.Helper()
			before := lists
			if err := do(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got := lists > before; got != want {
				t.Errorf("%s: stored objects were read: %v, want %v", what, got, want)
			}
		}
		sequence := uint64(0)
		receive := func(endpoints ...string) func() error {
			sequence++
			return func() error {
				return s.Observe(t.Context(), peer, &ententev1.PeerState{Sequence: sequence, EchoSequence: sequence, Protocol: 1, Endpoints: endpoints})
			}
		}
		send := func() error {
			state, err := s.State(t.Context(), peer)
			if err == nil {
				// The session writes into the state that it gets.
				state.Sequence = 7
			}
			return err
		}
		reads("the first received", true, receive("a:1"))
		reads("an equal one", false, receive("a:1"))
		reads("a different one", true, receive("b:1"))
		reads("an equal one again", false, receive("b:1"))
		reads("the first sent", true, send)
		reads("the next sent", false, send)
		if state, err := s.State(t.Context(), peer); err != nil || state.GetSequence() != 0 {
			t.Errorf("a state is %v, %v: it has the sequence of the last one", state, err)
		}
		s.Changed(peer)
		reads("sent after a change", true, send)
		reads("received after a change", true, receive("b:1"))
		time.Sleep(sentLasts)
		reads("sent after a while", true, send)
		reads("received after a while", true, receive("b:1"))
	})
	var now v1alpha1.ForeignCluster
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(fc), &now); err != nil || len(now.Spec.Endpoints) != 1 || now.Spec.Endpoints[0] != "b:1" {
		t.Errorf("what was recorded is %v, %v", now.Spec.Endpoints, err)
	}
}

// A state that could not be recorded, or may have been undone, is recorded again without
// waiting for the peer to repeat it, which may take two minutes.
func TestAPeersStateIsRecordedAgain(t *testing.T) {
	const peer = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "peer"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peer)}}
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		c := interceptor.NewClient(
			indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(fc).WithStatusSubresource(fc)),
			interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if broken.Load() {
					return errors.New("the API server is away")
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			}})
		s := New(&controller.States{
			Client: c, Namespace: "entente-system", Endpoints: func() []string { return nil },
			Budget: &store.WriteBudget{Now: time.Now},
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		recorded := func() int32 {
			var now v1alpha1.ForeignCluster
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(fc), &now); err != nil {
				t.Fatal(err)
			}
			return now.Status.Protocol
		}
		defer s.Watch(peer, func() {})()
		if err := s.Observe(t.Context(), peer, &ententev1.PeerState{Sequence: 1, EchoSequence: 1, Protocol: 1}); err != nil {
			t.Fatalf("an API server that is away ends the session: %v", err)
		}
		time.Sleep(3 * retryAfter)
		if got := recorded(); got != 0 {
			t.Fatalf("recorded %d", got)
		}
		broken.Store(false)
		time.Sleep(maxRetryAfter)
		if got := recorded(); got != 1 {
			t.Errorf("recorded %d once that worked, want 1", got)
		}
		// Somebody writes something else, as an older copy of the status.
		var now v1alpha1.ForeignCluster
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(fc), &now); err != nil {
			t.Fatal(err)
		}
		now.Status.Protocol = 0
		if err := c.Status().Update(t.Context(), &now); err != nil {
			t.Fatal(err)
		}
		s.Changed(peer)
		time.Sleep(retryAfter + time.Millisecond)
		if got := recorded(); got != 1 {
			t.Errorf("recorded %d after it was undone, want 1", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// No agreement is made with a peer whose protocol this agent does not speak, even if its
// request comes before its first state.
func TestNegotiationWaitsForTheFirstState(t *testing.T) {
	const peer = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "peer"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peer)}}
	for protocol, agrees := range map[uint32]bool{
		peering.Protocol: true, peering.Protocol + peering.MaxProtocolSkew: true, peering.Protocol + peering.MaxProtocolSkew + 1: false,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(fc.DeepCopy()).WithStatusSubresource(fc))
			s := New(&controller.States{
				Client: c, Namespace: "entente-system", Endpoints: func() []string { return nil }, Budget: &store.WriteBudget{Now: time.Now},
			}, slog.New(slog.DiscardHandler))
			s.Started(peer, 1)
			checked := make(chan error, 1)
			began := time.Now()
			go func() { checked <- s.CheckProtocol(t.Context(), peer) }()
			const first = 543210 * time.Microsecond
			time.Sleep(first)
			if err := s.Observe(t.Context(), peer, &ententev1.PeerState{Sequence: 1, Protocol: protocol}); err != nil {
				t.Fatal(err)
			}
			if err := <-checked; (err == nil) != agrees {
				t.Errorf("with revision %d: %v", protocol, err)
			}
			if took := time.Since(began); took != first {
				t.Errorf("the first state came after %s, and the check ended after %s", first, took)
			}
			s.Ended(peer, 1)
			if err := s.CheckProtocol(t.Context(), peer); err != nil || time.Since(began) != first+firstStateTimeout {
				t.Errorf("without a state it returned %v after %s", err, time.Since(began)-first)
			}
			if len(s.peers) > 0 {
				t.Error("a peer without session and watchers is remembered")
			}
		})
	}
}

// TestStateWritesOfAPeerAreBounded: a peer that rewrites 256 texts four times a second causes
// no more writes than its budget allows, the last text is written in the end, and another peer's
// state is recorded at once.
func TestStateWritesOfAPeerAreBounded(t *testing.T) {
	const hostile, honest = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), peering.ClusterID("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
	of := func(name string, id peering.ClusterID) *v1alpha1.ForeignCluster {
		return &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(id)}}
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // what is recorded again is written beside what is said
		writes, bytes := 0, 0
		c := interceptor.NewClient(
			indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(of("hostile", hostile), of("honest", honest)).WithStatusSubresource(&v1alpha1.ForeignCluster{})),
			interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				if o.GetName() == "hostile" {
					text, err := json.Marshal(o)
					if err != nil {
						return err
					}
					mu.Lock()
					writes, bytes = writes+1, bytes+len(text)
					mu.Unlock()
				}
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			}})
		s := New(&controller.States{
			Client: c, Namespace: "entente-system", Endpoints: func() []string { return nil }, Budget: &store.WriteBudget{Now: time.Now},
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		stored := func(name string) v1alpha1.ForeignClusterStatus {
			t.Helper()
			var fc v1alpha1.ForeignCluster
			if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &fc); err != nil {
				t.Fatal(err)
			}
			return fc.Status
		}
		defer s.Watch(hostile, func() {})()
		defer s.Watch(honest, func() {})()
		begin, last := time.Now(), ""
		for n := range 4 * 30 {
			last = fmt.Sprintf("%06d%s", n, strings.Repeat("x", 900))
			state := &ententev1.PeerState{Sequence: uint64(n + 1), EchoSequence: 1, Protocol: 1}
			for i := range 256 {
				state.Contracts = append(state.Contracts, &ententev1.ContractState{
					ContractId: fmt.Sprintf("c-%d", i), Revision: 1, Phase: ententev1.ContractState_PHASE_ACTIVE, Message: last,
				})
			}
			if err := s.Observe(t.Context(), hostile, state); err != nil {
				t.Fatalf("the session of a peer with large states ends: %v", err)
			}
			time.Sleep(time.Second / 4)
			if n%100 == 99 {
				protocol := uint32(n)
				if err := s.Observe(t.Context(), honest, &ententev1.PeerState{Sequence: 1, EchoSequence: 1, Protocol: 1, BundleHash: make([]byte, 32), Endpoints: []string{fmt.Sprintf("h:%d", protocol)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		// 4 MiB at once and 32 KiB a second, as in limits.md.
		mu.Lock()
		if most := 4<<20 + int(time.Since(begin)/time.Second)<<15; bytes > most || writes == 0 {
			t.Errorf("it caused %d bytes in %d writes within %s, want at most %d", bytes, writes, time.Since(begin), most)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		got := stored("hostile").Contracts
		if len(got) != 256 || !strings.HasPrefix(got[0].Message, last[:6]) || len(got[0].Message) > 256 {
			t.Errorf("of its last state %d contracts are recorded", len(got))
		}
		var fc v1alpha1.ForeignCluster
		if err := c.Get(t.Context(), client.ObjectKey{Name: "honest"}, &fc); err != nil || len(fc.Spec.Endpoints) != 1 || fc.Spec.Endpoints[0] != "h:99" {
			t.Errorf("another peer's state has %v, %v", fc.Spec.Endpoints, err)
		}
	})
}

// A session's state counts until the session ends, but its end does not drop the state of a
// newer session; and each watcher is called once for each change.
func TestStatesEndWithTheirSession(t *testing.T) {
	const peer = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "peer"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peer)}}
	c := indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(fc).WithStatusSubresource(fc))
	s := New(&controller.States{
		Client: c, Namespace: "entente-system", Endpoints: func() []string { return nil },
		Budget: &store.WriteBudget{Now: time.Now},
	}, slog.New(slog.DiscardHandler))
	calls, changes := 0, 0
	unwatch, unwatchOffering := s.Watch(peer, func() { calls++ }), s.WatchOffering(peer, func() { changes++ })
	receive := func(l ententev1.PeerState_Offering) {
		t.Helper()
		if err := s.Observe(t.Context(), peer, &ententev1.PeerState{Sequence: 1, EchoSequence: 1, Protocol: 1, Offering: l}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, offering peering.Offering, wantCalls, wantChanges int) {
		t.Helper()
		if got := s.Offering(peer); got != offering || calls != wantCalls || changes != wantChanges {
			t.Errorf("%s: it offers %d, %d calls, %d changes of the offering, want %d, %d, %d", what, got, calls, changes, offering, wantCalls, wantChanges)
		}
	}
	want("before", peering.OfferingUnknown, 0, 0)
	s.Started(peer, 1)
	receive(ententev1.PeerState_OFFERING_NOTHING)
	receive(ententev1.PeerState_OFFERING_NOTHING)
	want("the first session", peering.OfferingNothing, 0, 1)
	s.Started(peer, 2)
	receive(ententev1.PeerState_OFFERING_SOMETHING)
	s.Ended(peer, 1)
	want("the first ended after the second began", peering.OfferingSomething, 0, 2)
	s.Changed(peer)
	want("after a change", peering.OfferingSomething, 1, 2)
	s.Ended(peer, 2)
	want("no session is left", peering.OfferingUnknown, 1, 3)
	unwatch()
	unwatchOffering()
	s.Changed(peer)
	want("without watchers", peering.OfferingUnknown, 1, 3)
	if len(s.peers) != 0 {
		t.Errorf("%d peers are remembered", len(s.peers))
	}
}

// indexed builds a client with the indexes of the agent's cache.
func indexed(b *fake.ClientBuilder) client.WithWatch {
	for _, i := range store.Indexes() {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	return b.Build()
}

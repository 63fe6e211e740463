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

// Most states say nothing new.
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
		looks := func(what string, want bool, do func() error) {
			t.Helper()
			before := lists
			if err := do(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got := lists > before; got != want {
				t.Errorf("%s: looked at what is stored is %v, want %v", what, got, want)
			}
		}
		sequence := uint64(0)
		hear := func(endpoints ...string) func() error {
			sequence++
			return func() error {
				return s.Observe(t.Context(), peer, &ententev1.PeerState{Sequence: sequence, EchoSequence: sequence, Protocol: 1, Endpoints: endpoints})
			}
		}
		say := func() error {
			state, err := s.State(t.Context(), peer)
			if err == nil {
				// The exchange writes into what it is given.
				state.Sequence = 7
			}
			return err
		}
		looks("the first word", true, hear("a:1"))
		looks("the same again", false, hear("a:1"))
		looks("another", true, hear("b:1"))
		looks("that again", false, hear("b:1"))
		looks("the first that is said", true, say)
		looks("the next", false, say)
		if state, err := s.State(t.Context(), peer); err != nil || state.GetSequence() != 0 {
			t.Errorf("a word is %v, %v: it has the last one's sequence", state, err)
		}
		s.Changed(peer)
		looks("said after a change", true, say)
		looks("heard after a change", true, hear("b:1"))
		time.Sleep(sentLasts)
		looks("said after a while", true, say)
		looks("heard after a while", true, hear("b:1"))
	})
	var now v1alpha1.ForeignCluster
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(fc), &now); err != nil || len(now.Spec.Endpoints) != 1 || now.Spec.Endpoints[0] != "b:1" {
		t.Errorf("what was recorded is %v, %v", now.Spec.Endpoints, err)
	}
}

// What could not be recorded, or may have been undone, is recorded without waiting for
// the peer to say it again: patient peers do so each two minutes.
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

// Nothing is agreed with a peer whose protocol is not spoken here, also where it asks
// before its first word is here.
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
			said := make(chan error, 1)
			began := time.Now()
			go func() { said <- s.CheckProtocol(t.Context(), peer) }()
			const first = 543210 * time.Microsecond
			time.Sleep(first)
			if err := s.Observe(t.Context(), peer, &ententev1.PeerState{Sequence: 1, Protocol: protocol}); err != nil {
				t.Fatal(err)
			}
			if err := <-said; (err == nil) != agrees {
				t.Errorf("with revision %d: %v", protocol, err)
			}
			if took := time.Since(began); took != first {
				t.Errorf("the first word came after %s, and was heard after %s", first, took)
			}
			s.Ended(peer, 1)
			if err := s.CheckProtocol(t.Context(), peer); err != nil || time.Since(began) != first+firstStateTimeout {
				t.Errorf("without a word it says %v after %s", err, time.Since(began)-first)
			}
			if len(s.peers) > 0 {
				t.Error("a peer with whom nothing goes on is kept")
			}
		})
	}
}

// TestStateWritesOfAPeerAreBounded: a peer that rewrites 256 texts four times a second has
// what its budget allows written, the last of them in the end, while what another says
// is recorded at once.
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
				t.Fatalf("a peer that says much is hung up on: %v", err)
			}
			time.Sleep(time.Second / 4)
			if n%100 == 99 {
				protocol := uint32(n)
				if err := s.Observe(t.Context(), honest, &ententev1.PeerState{Sequence: 1, EchoSequence: 1, Protocol: 1, BundleHash: make([]byte, 32), Endpoints: []string{fmt.Sprintf("h:%d", protocol)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		// 4 MiB at once and 32 KiB a second, as limits.md says.
		mu.Lock()
		if most := 4<<20 + int(time.Since(begin)/time.Second)<<15; bytes > most || writes == 0 {
			t.Errorf("it had %d bytes written in %d writes within %s, want at most %d", bytes, writes, time.Since(begin), most)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		got := stored("hostile").Contracts
		if len(got) != 256 || !strings.HasPrefix(got[0].Message, last[:6]) || len(got[0].Message) > 256 {
			t.Errorf("of its last state %d contracts are recorded", len(got))
		}
		var fc v1alpha1.ForeignCluster
		if err := c.Get(t.Context(), client.ObjectKey{Name: "honest"}, &fc); err != nil || len(fc.Spec.Endpoints) != 1 || fc.Spec.Endpoints[0] != "h:99" {
			t.Errorf("another peer's word is %v, %v", fc.Spec.Endpoints, err)
		}
	})
}

// What a session said counts until it ends, but a newer one's word is not its own to
// take along; and whoever watches hears of each change once.
func TestStatesEndWithTheirSession(t *testing.T) {
	const peer = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "peer"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peer)}}
	c := indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(fc).WithStatusSubresource(fc))
	s := New(&controller.States{
		Client: c, Namespace: "entente-system", Endpoints: func() []string { return nil },
		Budget: &store.WriteBudget{Now: time.Now},
	}, slog.New(slog.DiscardHandler))
	said, changes := 0, 0
	unwatch, unwatchOffering := s.Watch(peer, func() { said++ }), s.WatchOffering(peer, func() { changes++ })
	hear := func(l ententev1.PeerState_Lending) {
		t.Helper()
		if err := s.Observe(t.Context(), peer, &ententev1.PeerState{Sequence: 1, EchoSequence: 1, Protocol: 1, Lending: l}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, offering peering.Offering, timesSaid, timesOffering int) {
		t.Helper()
		if got := s.Offering(peer); got != offering || said != timesSaid || changes != timesOffering {
			t.Errorf("%s: it offers %d, said %d, with %d changes of that, want %d, %d, %d", what, got, said, changes, offering, timesSaid, timesOffering)
		}
	}
	want("before", peering.OfferingUnknown, 0, 0)
	s.Started(peer, 1)
	hear(ententev1.PeerState_LENDING_NOTHING)
	hear(ententev1.PeerState_LENDING_NOTHING)
	want("the first session", peering.OfferingNothing, 0, 1)
	s.Started(peer, 2)
	hear(ententev1.PeerState_LENDING_SOMETHING)
	s.Ended(peer, 1)
	want("the first ended after the second began", peering.OfferingSomething, 0, 2)
	s.Changed(peer)
	want("after a change", peering.OfferingSomething, 1, 2)
	s.Ended(peer, 2)
	want("none is left", peering.OfferingUnknown, 1, 3)
	unwatch()
	unwatchOffering()
	s.Changed(peer)
	want("nobody watches", peering.OfferingUnknown, 1, 3)
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

package agent

import (
	"context"
	"log/slog"
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
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Heartbeats come every two seconds from each peer, and most say nothing new.
func TestHeartbeatsThatSayNothingNewCostNoLook(t *testing.T) {
	const peer = peering.ClusterID("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	lists := 0
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "peer"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peer)}}
	c := interceptor.NewClient(
		indexed(fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(fc).WithStatusSubresource(fc)),
		interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists++
			return c.List(ctx, list, opts...)
		}})
	synctest.Test(t, func(t *testing.T) {
		s := &speech{log: slog.New(slog.DiscardHandler), states: &controller.States{
			Client: c, Namespace: "entente-system", Endpoints: func() []string { return nil },
		}}
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
			state, changed, err := s.State(t.Context(), peer)
			if err == nil {
				// The exchange writes into what it is given.
				state.Sequence = 7
			}
			if changed == nil {
				t.Error("nobody will hear of a change")
			}
			return err
		}
		looks("the first word", true, hear("a:1"))
		looks("the same again", false, hear("a:1"))
		looks("another", true, hear("b:1"))
		looks("that again", false, hear("b:1"))
		looks("the first that is said", true, say)
		looks("the next", false, say)
		if state, _, err := s.State(t.Context(), peer); err != nil || state.GetSequence() != 0 {
			t.Errorf("a word is %v, %v: it has the last one's sequence", state, err)
		}
		s.spoken(peer)
		looks("said after a change", true, say)
		looks("heard after a change", true, hear("b:1"))
		time.Sleep(wordLasts)
		looks("said after a while", true, say)
		looks("heard after a while", true, hear("b:1"))
	})
	var now v1alpha1.ForeignCluster
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(fc), &now); err != nil || len(now.Spec.Endpoints) != 1 || now.Spec.Endpoints[0] != "b:1" {
		t.Errorf("what was recorded is %v, %v", now.Spec.Endpoints, err)
	}
}

// indexed builds a client with the indexes of the agent's cache.
func indexed(b *fake.ClientBuilder) client.WithWatch {
	for _, i := range store.Indexes() {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	return b.Build()
}

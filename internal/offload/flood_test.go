package offload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/budget"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

// scale counts the bytes that are written of each peer's objects.
type scale struct {
	mu    sync.Mutex
	bytes map[string]int
}

func (s *scale) weigh(o client.Object) {
	b, err := json.Marshal(o)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes[o.GetLabels()[api.LabelPeer]] += len(b)
}

func (s *scale) of(peer peering.ClusterID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes[string(peer)]
}

func (s *scale) on(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			s.weigh(o)
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			s.weigh(o)
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			s.weigh(o)
			return c.Patch(ctx, o, patch, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			s.weigh(o)
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
}

// A consumer that rewrites large ConfigMaps without pause writes no more than its
// share, its last state is written in the end, and another's pods do not wait.
func TestRewritesAreBoundedAndDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	// What waits for the pace waits for hours.
	const burst, size = 24 << 20, 256 << 10
	limits := budget.Limits{Burst: burst, Rate: 1 << 10, UserBurst: burst / 5, UserRate: 1 << 10}
	c := newFake(t)
	weighed := &scale{bytes: map[string]int{}}
	c.agent = weighed.on(c.agent)
	var later atomic.Int64 // by which the budget's clock is ahead
	now := func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	c.prepare = func(p *Provider) {
		p.client = paced.New(paced.Config{Client: p.cfg.Client, Writes: limits, Unseen: unseen, Now: now})
		later.Store(int64(24 * time.Hour)) // the burst of an earlier agent is over
	}
	p, _ := c.start(t)

	attackers := []peering.ClusterID{peerB, peerB[1:] + "2", peerB[1:] + "3"}
	started := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	last := make([]peering.Object, len(attackers))
	var spaces []string
	for i, peer := range attackers {
		id, ns := c.fresh("cpu=1")
		k, _ := c.contract(id)
		k.Peer = peer
		c.set(id, &k)
		apply(t, p, id, namespaceObject(ns, "Suffixed"))
		spaces = append(spaces, ns+"-"+peer.Short())
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				last[i] = thing(peering.KindConfigMap, ns, "large", "u", fmt.Sprintf(`{"data":{"n":"%d","x":%q}}`, n, strings.Repeat("x", size)))
				err := p.Apply(ctx, id, last[i])
				var refusal *peering.Refusal
				if err != nil && ctx.Err() == nil && !errors.As(err, &refusal) {
					t.Errorf("rewrite: %v", err)
				}
			}
			// It stops, and its last state counts.
			if !waittest.Soon(func() bool { return p.Apply(t.Context(), id, last[i]) == nil }) {
				t.Errorf("the last state of %s was never written", peer)
			}
		})
	}
	eventually(t, "the attackers used up their share", func() bool {
		all := 0
		for _, peer := range attackers {
			all += weighed.of(peer)
		}
		return all > burst/2
	})

	const pods = 100 // some 30 KiB each
	id, ns := c.fresh("cpu=1000,pods=1000")
	apply(t, p, id, namespaceObject(ns, "Suffixed"))
	for n := range pods {
		apply(t, p, id, podObject(ns, fmt.Sprint("web-", n), "1m"))
	}
	eventually(t, "the pods are made", func() bool {
		return c.get(t, ns+"-"+peerA.Short(), fmt.Sprint("web-", pods-1), &corev1.Pod{})
	})
	all := 0
	for _, peer := range attackers {
		all += weighed.of(peer)
	}
	most := int(limits.Most(time.Since(started))) + len(attackers)*2*size
	if all > most {
		t.Errorf("three attackers wrote %d bytes; the budget was %d", all, most)
	}
	later.Store(int64(48 * time.Hour)) // all of it is free again
	stop()
	work.Wait()
	for i, space := range spaces {
		got := &corev1.ConfigMap{}
		if !c.get(t, space, "large", got) || got.Annotations[heldKey("c-"+fmt.Sprint(i+1))] != last[i].Hash().String() {
			t.Errorf("in %s is not as it was last applied", space)
		}
	}
}

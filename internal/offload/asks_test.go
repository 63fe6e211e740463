package offload

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/peering"
)

// gather is for how long changes of one thing are gathered before it is compared, see internal/turns.
const gather = 50 * time.Millisecond

// questions counts the requests to the API server.
type questions struct {
	mu    sync.Mutex
	asked int
	mine  int // those for a peer, whose pace they count against
	lists []client.ListOptions
	whole []string // lists with all that is in the objects
}

func (q *questions) on(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			q.note(ctx, nil)
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			q.note(ctx, nil)
			return c.Create(ctx, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			q.note(ctx, list, opts...)
			return c.List(ctx, list, opts...)
		},
	})
}

func (q *questions) note(ctx context.Context, list client.ObjectList, opts ...client.ListOption) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked++
	if _, ok := paced.PeerOf(ctx); ok {
		q.mine++
	}
	if list == nil {
		return
	}
	o := (&client.ListOptions{}).ApplyOptions(opts)
	q.lists = append(q.lists, *o)
	switch list.(type) {
	case *corev1.ConfigMapList, *corev1.SecretList, *corev1.ServiceList:
		q.whole = append(q.whole, fmt.Sprintf("%T", list))
	}
}

// during returns the requests while something is done for a peer, and for no other.
func (q *questions) during(f func()) questions {
	q.mu.Lock()
	q.asked, q.mine, q.lists, q.whole = 0, 0, nil, nil
	q.mu.Unlock()
	f()
	q.mu.Lock()
	defer q.mu.Unlock()
	return questions{asked: q.asked, mine: q.mine, lists: q.lists, whole: q.whole}
}

// A peer's calls need a bounded number of requests.
func TestRequestsOfAPeerCostFewCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newFake(t)
		q := &questions{}
		c.agent = q.on(c.agent)
		p, _ := c.start(t)
		id, name := c.fresh("cpu=1,pods=10")
		remote := name + "-" + peerA.Short()
		apply(t, p, id, namespaceObject(name, "Suffixed"),
			thing(peering.KindConfigMap, name, "cfg", "uc", `{"data":{"a":"1"}}`), thing(peering.KindSecret, name, "sec", "us", `{"data":{}}`),
			thing(peering.KindService, name, "web", "uw", `{"ports":[{"name":"http","protocol":"TCP","port":80}]}`), podObject(name, "web", "1m"))
		eventually(t, "the pod is made", func() bool { return c.get(t, remote, "web", &corev1.Pod{}) })
		// What the reconciler asks is its own.
		quiet := func() {
			eventually(t, "nothing is left to do", func() bool {
				got := q.during(func() { time.Sleep(4 * gather) })
				return got.asked == 0
			})
		}
		quiet()

		got := q.during(func() {
			for n := range 1000 {
				ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: name, Name: "web", UID: fmt.Sprint("unknown-", n)}
				if err := p.Delete(t.Context(), id, ref, nil); err != nil {
					t.Fatal(err)
				}
			}
		})
		if got.asked > 0 {
			t.Errorf("1000 deletes of what is not here asked the API server %d times", got.asked)
		}
		got = q.during(func() {
			held, err := p.Held(t.Context(), id)
			if err != nil || len(held) != 5 {
				t.Errorf("held %v, %v", held, err)
			}
		})
		if len(got.whole) > 0 {
			t.Errorf("to list what is held it read %v", got.whole)
		}
		for _, o := range got.lists {
			// Namespaces are few and small.
			if o.Limit == 0 && o.Namespace != "" {
				t.Errorf("a list has no end: %+v", o)
			}
		}

		// Each request counts, those for refused objects, too.
		for _, tc := range []struct {
			what string
			do   func() error
		}{
			{"an apply", func() error { return p.Apply(t.Context(), id, podObject(name, "more", "1m")) }},
			{"a refused apply", func() error { return p.Apply(t.Context(), id, podObject(name, "large", "7")) }},
			{"a delete", func() error { return p.Delete(t.Context(), id, podObject(name, "more", "1m").Ref, nil) }},
			{"a delete of a map", func() error {
				return p.Delete(t.Context(), id, thing(peering.KindConfigMap, name, "cfg", "uc", "").Ref, nil)
			}},
		} {
			quiet()
			var err error
			got := q.during(func() { err = tc.do() })
			if got.mine == 0 && got.asked > 0 {
				t.Errorf("%s asks %d times and counts none of them (%v)", tc.what, got.asked, err)
			}
		}
	})
}

// A list that has several pages is read to its end, by a server that makes pages.
func TestListsOfSeveralPagesOnARealAPIServer(t *testing.T) {
	c := newReal(t)
	var more atomic.Int32
	c.agent = interceptor.NewClient(c.agent, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if (&client.ListOptions{}).ApplyOptions(opts).Limit > 0 {
				opts = append(opts, client.Limit(1))
			}
			err := c.List(ctx, list, opts...)
			if list.GetContinue() != "" {
				more.Add(1)
			}
			return err
		},
	})
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1,pods=10")
	objects := []peering.Object{namespaceObject(name, "Suffixed")}
	for n := range 3 {
		objects = append(objects, podObject(name, fmt.Sprint("web-", n), "1m"),
			thing(peering.KindConfigMap, name, fmt.Sprint("cfg-", n), fmt.Sprint("uc", n), `{"data":{"a":"1"}}`),
			thing(peering.KindSecret, name, fmt.Sprint("sec-", n), fmt.Sprint("us", n), `{"data":{}}`))
	}
	apply(t, p, id, objects...)
	held, err := p.Held(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if !slices.Contains(held, peering.Held{Ref: o.Ref, Hash: o.Hash()}) {
			t.Errorf("%s is not held", o.Ref)
		}
	}
	if len(held) != len(objects) || more.Load() == 0 {
		t.Errorf("%d of %d are held, after %d pages that had another", len(held), len(objects), more.Load())
	}
}

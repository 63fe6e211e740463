package offload

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

// Watches of events are never all taken, however many peers want all that they can get.
func TestEventWatchesLeaveRoomForANewcomer(t *testing.T) {
	t.Parallel()
	watches := map[peering.ClusterID]int{}
	all := 0
	for n := range 12 {
		peer := peering.ClusterID(fmt.Sprint("peer-", n))
		for mayWatch(watches, peer, maxEventWatches, maxPeerEventWatches) {
			watches[peer]++
			all++
		}
		if watches[peer] == 0 || watches[peer] > maxPeerEventWatches {
			t.Errorf("peer %d has %d watches", n, watches[peer])
		}
	}
	if all > maxEventWatches {
		t.Errorf("%d watches of events", all)
	}
}

// Deleted objects make room, whichever client deleted them, and those that exist when the agent
// starts are counted.
func TestCountsFallWhenObjectsGo(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, stop := c.start(t)
	id, name := c.fresh("cpu=10,pods=100")
	remote := name + "-" + peerA.Short()
	ns := namespaceObject(name, "Suffixed")
	svc := thing(peering.KindService, name, "web", "us", `{"ports":[{"name":"http","protocol":"TCP","port":80}],"endpoints":[{"address":"10.1.0.1","ready":true,"ports":{"http":80}}]}`)
	cfg := thing(peering.KindConfigMap, name, "cfg", "uc", `{"data":{"a":"1"}}`)
	sec := thing(peering.KindSecret, name, "sec", "us2", `{"data":{}}`)
	pod := podObject(name, "web", "1")
	counts := func(p *Provider) stock.Tally {
		all := p.stock.Of(peerA)
		all.Bytes, all.PodBytes = 0, 0
		return all
	}
	full := stock.Tally{Namespaces: 1, Configs: 2, Services: 1, Ports: 1, Endpoints: 1, EndpointPorts: 1, Slices: 1, Pods: 1}
	defer func() {
		if t.Failed() {
			t.Logf("counted is %+v", counts(p))
		}
	}()
	apply(t, p, id, ns, cfg, sec, svc, pod)
	eventually(t, "all is counted", func() bool { return counts(p) == full })
	apply(t, p, id, ns, cfg, sec, svc, pod)
	if got := counts(p); got != full {
		t.Errorf("applied twice: %+v", got)
	}
	stop()
	p, _ = c.start(t)
	eventually(t, "all is counted after a restart", func() bool { return counts(p) == full })
	for n := range 3 {
		more := podObject(name, fmt.Sprint("more-", n), "1")
		apply(t, p, id, more)
		eventually(t, "the pod is made", func() bool { return c.get(t, remote, more.Ref.Name, &corev1.Pod{}) })
		if err := p.Delete(t.Context(), id, more.Ref, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a pod that went makes room", func() bool { return counts(p) == full })
	}
	for _, o := range []peering.Object{cfg, sec, svc} {
		if err := p.Delete(t.Context(), id, o.Ref, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "an object that the consumer deleted makes room", func() bool { return counts(p) == stock.Tally{Namespaces: 1, Pods: 1} })
	apply(t, p, id, cfg)
	if err := c.owner.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: remote}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a namespace that went makes room, with all in it but pods", func() bool {
		got := counts(p)
		return got.Namespaces == 0 && got.Configs == 0
	})
}

// The number of watches does not follow the number of namespaces.
func TestWatchesDoNotGrowWithNamespaces(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	var open, lists atomic.Int64
	c.agent = interceptor.NewClient(c.agent, interceptor.Funcs{
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			open.Add(1)
			context.AfterFunc(ctx, func() { open.Add(-1) })
			return c.Watch(ctx, list, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			switch list.(type) {
			case *corev1.ServiceList, *discoveryv1.EndpointSliceList, *corev1.PodList:
				lists.Add(1)
			}
			return c.List(ctx, list, opts...)
		},
	})
	p, _ := c.start(t)
	before := open.Load()
	const namespaces = 100
	for n := range namespaces {
		id, name := c.fresh("cpu=1000,pods=1000")
		apply(t, p, id, namespaceObject(name, "Suffixed"))
		svc := thing(peering.KindService, name, "web", fmt.Sprint("u", n), `{"ports":[{"name":"http","protocol":"TCP","port":80}],"endpoints":[{"address":"10.1.0.1","ready":true,"ports":{"http":80}}]}`)
		apply(t, p, id, svc, podObject(name, "web", "1m"))
	}
	eventually(t, "the namespaces are known", func() bool { return len(p.inv.namespaces()) == namespaces })
	if most, grown := int64(maxPeerEventWatches+2*maxPeerConfigWatches), open.Load()-before; grown > most {
		t.Errorf("%d watches more for %d namespaces; events, ConfigMaps and Secrets have %d at most", grown, namespaces, most)
	}
	// Comparing all Services sends no requests to the API server.
	eventually(t, "the endpoints are there", func() bool {
		p.inv.mu.Lock()
		defer p.inv.mu.Unlock()
		return len(p.inv.slices.List()) == namespaces
	})
	idle := func() bool { return p.services.Idle() }
	eventually(t, "the endpoints are compared", idle)
	asked := lists.Load()
	p.Refresh(peerA)
	eventually(t, "the endpoints are compared again", idle)
	if n := lists.Load() - asked; n > 0 {
		t.Errorf("%d lists to compare what is known", n)
	}
}

// Policies are translated by hundreds of addresses each, and pods change all the time.
func TestChangesOfPodsCompareNoPolicies(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, err := New(Config{Client: c.agent, Contracts: c.contract, Namespace: "entente-system", ServiceAccount: "entente-agent"})
	if err != nil {
		t.Fatal(err)
	}
	p.inv.sliceHandler().OnDelete(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
	if p.services.Idle() || !p.policies.Idle() {
		t.Errorf("an EndpointSlice changed: Services are compared: %v; policies: %v", !p.services.Idle(), !p.policies.Idle())
	}
	p.inv.seePolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "home-web"}})
	if p.policies.Idle() {
		t.Error("a policy changed, and is not compared")
	}
}

// With many Services, a change causes a comparison of only those that it affects.
func TestAChangeComparesTheServicesThatItConcerns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newFake(t)
		var mu sync.Mutex
		var compared []string
		c.prepare = func(p *Provider) {
			p.services = p.comparer("services", func(ctx context.Context, key types.NamespacedName) error {
				mu.Lock()
				compared = append(compared, key.Name)
				mu.Unlock()
				return p.reflectServices(ctx, key)
			})
		}
		p, _ := c.start(t)
		id, name := c.fresh("cpu=100,pods=100")
		remote := name + "-aaaaaaaa"
		apply(t, p, id, namespaceObject(name, "Suffixed"))
		const many = 10
		said := func(i int, port int32) peering.Object {
			e := end("10.241.3.9", port)
			e.PodUID = podObject(name, fmt.Sprint("pod-", i), "1m").Ref.UID
			b, err := json.Marshal(service(false, e))
			if err != nil {
				t.Fatal(err)
			}
			return thing(peering.KindService, name, fmt.Sprint("svc-", i), fmt.Sprint("u", i), string(b))
		}
		for i := range many {
			apply(t, p, id, podObject(name, fmt.Sprint("pod-", i), "1m"), said(i, 80))
			c.setPhase(t, remote, fmt.Sprint("pod-", i), corev1.PodRunning, fmt.Sprint("10.200.0.", i+1))
		}
		idle := func() bool { return p.services.Idle() && len(p.inv.slices.List()) == many }
		quiet := func(what string, want ...string) {
			t.Helper()
			eventually(t, what, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return idle() && (len(want) == 0 || len(compared) > 0)
			})
			time.Sleep(4 * gather) // the results of the writes
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(compared)
			if got := slices.Compact(compared); len(want) > 0 && !slices.Equal(got, want) {
				t.Errorf("%s: %q are compared, want %q", what, got, want)
			}
			compared = nil
		}
		quiet("all are compared")
		c.setPhase(t, remote, "pod-3", corev1.PodRunning, "10.200.0.77")
		quiet("a pod has another address", "svc-3")
		apply(t, p, id, said(5, 8080))
		quiet("a Service says something else", "svc-5")
		part := &discoveryv1.EndpointSlice{}
		for _, s := range indexed[*discoveryv1.EndpointSlice](p.inv.slices, byService, remote+"/svc-7") {
			part = s.DeepCopy()
		}
		if err := c.owner.Delete(t.Context(), part); err != nil {
			t.Fatal(err)
		}
		quiet("another writer deletes an EndpointSlice", "svc-7")
		eventually(t, "it is there again", func() bool {
			return len(indexed[*discoveryv1.EndpointSlice](p.inv.slices, byService, remote+"/svc-7")) == 1
		})
	})
}

// The count of live pods equals a full count.
func TestNamespacesWithLivePodsAreCounted(t *testing.T) {
	t.Parallel()
	v := &inventory{alive: map[string]int{}}
	r, have := rand.New(rand.NewPCG(3, 4)), map[string]*api.OffloadedPod{}
	for range 2000 {
		name := fmt.Sprint("pod-", r.IntN(8))
		before := have[name]
		var after *api.OffloadedPod
		if r.IntN(3) > 0 {
			after = &api.OffloadedPod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns-", name[4]%3), Name: name}}
			after.Status.Phase = []corev1.PodPhase{"", corev1.PodRunning, corev1.PodFailed}[r.IntN(3)]
		}
		v.count(before, after)
		if have[name] = after; after == nil {
			delete(have, name)
		}
		for _, ns := range []string{"ns-0", "ns-1", "ns-2"} {
			want := 0
			for _, o := range have {
				if o.Namespace == ns && live(o) {
					want++
				}
			}
			if v.alive[ns] != want || v.hasLive(ns) != (want > 0) {
				t.Fatalf("%s has %d live pods, %d are counted", ns, want, v.alive[ns])
			}
		}
	}
}

// The cache keeps the fields of a pod that count, and not its template.
func TestAnOffloadedPodIsKeptWithoutItsTemplate(t *testing.T) {
	t.Parallel()
	const template = `{"long":"template"}`
	o := &api.OffloadedPod{Spec: api.OffloadedPodSpec{Template: runtime.RawExtension{Raw: []byte(template)}}}
	for range 2 { // it is listed in pages, and then enters the cache
		if _, err := slim(o); err != nil || len(o.Spec.Template.Raw) > 0 || notedBytes(o.Annotations) != podBytes(len(template)) {
			t.Errorf("it is kept with %d bytes, and counts %d: %v", len(o.Spec.Template.Raw), notedBytes(o.Annotations), err)
		}
	}
	if unseen(o) != len(template) {
		t.Errorf("%d bytes are written that it does not show", unseen(o))
	}
}

// A record that was deleted, and created again under its name, between two events of the watch counts as
// deleted.
func TestAPodWhoseNameAnotherHasAtOnceIsToldGone(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	p, err := New(Config{Client: c.agent, Contracts: c.contract, Namespace: "entente-system", ServiceAccount: "entente-agent"})
	if err != nil {
		t.Fatal(err)
	}
	record := func(uid string) *api.OffloadedPod {
		return &api.OffloadedPod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop-p", Name: "db-0", UID: types.UID("record-" + uid)},
			Spec:       api.OffloadedPodSpec{Contract: "c-1", PeerID: string(peerA), OriginNamespace: "shop", OriginName: "db-0", OriginUID: uid},
		}
	}
	p.inv.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(p.inv.queue.ShutDown)
	heard, leave := p.hub.Subscribe("c-1", func(peering.PodEvent) {})
	defer leave()
	h := p.inv.offloadedHandler()
	h.OnAdd(record("old"), false)
	h.OnUpdate(record("old"), record("old"))
	if _, gone := heard.Take(); len(gone) != 0 {
		t.Errorf("%v went, though it is there", gone)
	}
	h.OnUpdate(record("old"), record("new"))
	if _, gone := heard.Take(); len(gone) != 1 || gone[0].Ref.UID != "old" {
		t.Errorf("%v went, want the old pod", gone)
	}
	if !p.graves.Has(peerA, graveOf("c-1", "old")) || p.graves.Has(peerA, graveOf("c-1", "new")) {
		t.Error("the deleted pod is not recorded as deleted")
	}
}

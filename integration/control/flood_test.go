package control

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/puppet"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

// What docs/limits.md says that a peer can do at most.
const (
	limitContractBytes = 64 << 20
	limitPorts         = 4000
	// What one consumer may have written.
	limitBurst = 80 << 20
	limitRate  = 512 << 10
	// Beyond the first statuses of a pod, those that change phase or readiness are written so many
	// at once and each so often; others are rarer.
	limitFirstStatuses, limitFirstEvents = 8, 10
	limitFlips, limitFlipPace            = 4, 5 * time.Second
	limitEvents, limitEventsBurst        = 5, 500
)

// writes counts the writes of objects of one kind, and how many there are.
type writes struct {
	mu       sync.Mutex
	all, now int
	most     int
	names    map[types.UID]bool
	// not is why an object was not as it should be.
	not []string
	err error
}

// countWrites watches objects until ctx ends. check returns what is wrong with one.
func countWrites(ctx context.Context, t *testing.T, c *cluster, list ctrlclient.ObjectList, check func(ctrlclient.Object) error, opts ...ctrlclient.ListOption) *writes {
	t.Helper()
	w, err := c.client.Watch(ctx, list, opts...)
	if err != nil {
		t.Fatal(err)
	}
	out := &writes{names: map[types.UID]bool{}}
	go func() {
		defer w.Stop()
		for e := range w.ResultChan() {
			out.see(e, check)
		}
		if ctx.Err() == nil {
			out.mu.Lock()
			out.err = fmt.Errorf("the watch of %T ended", list)
			out.mu.Unlock()
		}
	}()
	return out
}

func (w *writes) see(e watch.Event, check func(ctrlclient.Object) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o, ok := e.Object.(ctrlclient.Object)
	if !ok {
		w.err = fmt.Errorf("a watch says %T", e.Object)
		return
	}
	w.all++
	if e.Type == watch.Deleted {
		delete(w.names, o.GetUID())
	} else {
		w.names[o.GetUID()] = true
	}
	w.now = len(w.names)
	w.most = max(w.most, w.now)
	if check != nil {
		if err := check(o); err != nil {
			w.not = append(w.not, err.Error())
		}
	}
}

// look returns how many writes there were, and how many objects at most.
func (w *writes) look(t *testing.T) (all, most int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		t.Error(w.err)
	}
	return w.all, w.most
}

// metadataOf is a list of a kind without what is in its objects.
func metadataOf(group, version, kind string) *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind + "List"})
	return l
}

// playing is a puppet that joined a cluster, and lives until the test ends.
func playing(t *testing.T, c *cluster, number int, provider *puppet.Provider) *puppet.Peer {
	t.Helper()
	ctx := t.Context()
	p, err := puppet.New(ctx, number, provider)
	if err != nil {
		t.Fatal(err)
	}
	living, end := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(living) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	text, err := createToken(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jointoken.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	if _, err := p.Join(ctx, token); err != nil {
		t.Fatal(err)
	}
	return p
}

// mirrorFlood is the stream of a contract on which a consumer says whatever it likes.
type mirrorFlood struct {
	stream ententev1.OffloadService_SyncClient
	// sent, taken, refused and deleted count what was said and the answers.
	sent, taken, refused, deleted atomic.Int64
	sending, mu                   sync.Mutex
	whys                          map[string]int
}

func newMirrorFlood(ctx context.Context, t *testing.T, p *puppet.Peer, contract string) *mirrorFlood {
	t.Helper()
	f := &mirrorFlood{whys: map[string]int{}}
	var err error
	f.stream, err = ententev1.NewOffloadServiceClient(p.Conn()).Sync(ctx, grpc.MaxCallSendMsgSize(wire.MaxOffloadMessage))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.stream.Send(wire.OpenTo(contract)); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			m, err := f.stream.Recv()
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("the flooder's stream ended: %v", err)
				}
				return
			}
			ack, err := wire.AckFrom(m.GetAck())
			switch {
			case m.GetAck() == nil || err != nil:
			case ack.Refusal != nil:
				f.refused.Add(1)
				f.mu.Lock()
				f.whys[strings.Join(strings.Fields(ack.Refusal.Message)[:3], " ")]++
				f.mu.Unlock()
			case ack.Hash == peering.Hash{}:
				f.deleted.Add(1)
			default:
				f.taken.Add(1)
			}
		}
	}()
	return f
}

func (f *mirrorFlood) apply(kind peering.Kind, namespace, name string, o any) bool {
	return f.applyAs(refOf(kind, namespace, name), o)
}

func (f *mirrorFlood) applyAs(ref peering.ObjectRef, o any) bool {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // they are made here
	}
	return f.send(wire.ApplyTo(peering.Object{Ref: ref, JSON: b}))
}

func (f *mirrorFlood) delete(kind peering.Kind, namespace, name string) bool {
	return f.deleteAs(refOf(kind, namespace, name))
}

func (f *mirrorFlood) deleteAs(ref peering.ObjectRef) bool {
	return f.send(wire.DeleteTo(ref, new(int64(0))))
}

func (f *mirrorFlood) send(m *ententev1.SyncRequest) bool {
	f.sent.Add(1)
	f.sending.Lock() // a stream has one sender at a time
	defer f.sending.Unlock()
	return f.stream.Send(m) == nil
}

func refOf(kind peering.Kind, namespace, name string) peering.ObjectRef {
	return peering.ObjectRef{Kind: kind, Namespace: namespace, Name: name, UID: "uid-" + namespace + "-" + name}
}

func (f *mirrorFlood) why() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.whys)
}

// The namespaces, objects and sizes of the flood.
const (
	floodContractPods = 10
	floodConfigBytes  = 1000 << 10
	floodPorts        = 100
	// flooded is how long a machine may take to accept a whole flood.
	flooded = 6 * time.Minute
)

// space makes a namespace of the flooder's and waits until it can be used.
func (f *mirrorFlood) space(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	err := eventually.Is(ctx, soon, "the flooder's namespace", func(context.Context) error {
		taken := f.taken.Load()
		if !f.apply(peering.KindNamespace, "", name, peering.NamespaceObject{Mapping: "Suffixed"}) {
			return eventually.Permanent(fmt.Errorf("the stream ended"))
		}
		time.Sleep(300 * time.Millisecond)
		if f.taken.Load() == taken {
			return fmt.Errorf("it is refused: %v", f.why())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// configs applies more large ConfigMaps than there may be, changes them, and deletes
// some, without end.
func (f *mirrorFlood) configs(space string) {
	for n := 0; ; n++ {
		text := fmt.Sprintf("%08d", n) + strings.Repeat("x", floodConfigBytes)
		for i := range limitContractBytes/floodConfigBytes + 10 {
			if !f.apply(peering.KindConfigMap, space, fmt.Sprint("config-", i), corev1.ConfigMap{Data: map[string]string{"x": text}}) {
				return
			}
		}
		if !f.delete(peering.KindConfigMap, space, fmt.Sprint("config-", n%10)) {
			return
		}
	}
}

// small does the same with pods and Services, and deletes objects that do not exist.
func (f *mirrorFlood) small(space string) {
	ports := make([]peering.ServicePort, floodPorts)
	for i := range ports {
		ports[i] = peering.ServicePort{Name: fmt.Sprint("p", i), Protocol: "TCP", Port: int32(1000 + i)}
	}
	for n := 0; ; n++ {
		round := map[string]string{"round": fmt.Sprint(n)}
		ok := true
		for i := range 2 * floodContractPods {
			ok = ok && f.apply(peering.KindPod, space, fmt.Sprint("pod-", i), corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Labels: round},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "main", Image: "none.example/none:1", Resources: corev1.ResourceRequirements{Requests: amounts("cpu=1m", "memory=1Mi")},
				}}},
			})
		}
		for i := range limitPorts/floodPorts + 20 {
			ok = ok && f.apply(peering.KindService, space, fmt.Sprint("service-", i), peering.ServiceObject{Labels: round, Ports: ports})
		}
		ok = ok && f.delete(peering.KindPod, space, fmt.Sprint("pod-", n%10)) && f.delete(peering.KindService, space, fmt.Sprint("service-", n%10)) &&
			f.delete(peering.KindPod, space, fmt.Sprint("never-", n)) && f.delete(peering.KindSecret, "never", fmt.Sprint("never-", n))
		if !ok {
			return
		}
	}
}

// longStatus is a status that never stays the same and is as long as it may be, of a
// pod that runs.
func longStatus(ref peering.ObjectRef, n int) peering.PodStatus {
	text := fmt.Sprintf("%08d ", n) + strings.Repeat("long ", 1<<10)
	ready := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}[n%2]
	b, err := json.Marshal(corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.64.1.7", Message: text,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, Reason: "Flood", Message: text}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: "none.example/none:1", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "Flood", Message: text},
		}}},
	})
	if err != nil {
		panic(err) // it is made here
	}
	return peering.PodStatus{Ref: ref, RemoteName: "flood/" + ref.Name, RemoteUID: "r-" + ref.UID, Status: b}
}

// floodsHarmNobody has one peer flood abroad as a consumer, with applies, rewrites and
// deletes, and another flood home as a provider, with statuses and events of pods that
// cross to it, while home's pods run abroad.
func floodsHarmNobody(t *testing.T, home, abroad *cluster) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const pods, node = 10, "flood" + v1alpha1.VirtualNodeSuffix
	statuses := &puppet.Pods{Status: longStatus, Event: func(ref peering.ObjectRef, n int) peering.PodEvent {
		return peering.PodEvent{Ref: ref, Type: corev1.EventTypeWarning, Reason: fmt.Sprint("Flood", n%100), Message: fmt.Sprint("the event number ", n), Count: 1}
	}}
	resources, err := peering.ParseResources(map[string]string{"cpu": "100", "memory": "100Gi", "pods": "100"})
	if err != nil {
		t.Fatal(err)
	}
	provider := playing(t, home, 1, &puppet.Provider{Offer: peering.Offer{Available: true, Resources: resources, Duration: 24 * time.Hour}, Pods: statuses})
	consumer := playing(t, abroad, 2, nil)

	namespace, _ := offloaded(t, home, abroad)
	request := requestOf("flood", provider.Name, func(s *v1alpha1.PeeringRequest) {
		s.Spec.Network, s.Spec.Resources = v1alpha1.NetworkNone, amounts("cpu=1", "memory=1Gi", fmt.Sprint("pods=", pods))
	})
	if err := home.client.Create(ctx, request); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, home, request) })
	if err := eventually.Is(ctx, later, "the node of the provider that floods", func(ctx context.Context) error { return nodeReady(ctx, home, node) }); err != nil {
		t.Fatal(err)
	}

	// What is counted.
	of := func(p *puppet.Peer) ctrlclient.ListOption {
		return ctrlclient.MatchingLabels{v1alpha1.LabelPeer: string(p.Self())}
	}
	begin := time.Now()
	configs := countWrites(ctx, t, abroad, metadataOf("", "v1", "ConfigMap"), nil, of(consumer))
	services := countWrites(ctx, t, abroad, metadataOf("", "v1", "Service"), nil, of(consumer))
	offloadedPods := countWrites(ctx, t, abroad, metadataOf(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "OffloadedPod"), nil, of(consumer))
	written := countWrites(ctx, t, home, metadataOf("", "v1", "Pod"), nil, ctrlclient.MatchingFields{"spec.nodeName": node})
	events := countWrites(ctx, t, home, metadataOf("", "v1", "Event"), nil, inNamespace(namespace))
	honest := countWrites(ctx, t, home, &corev1.NodeList{}, func(o ctrlclient.Object) error {
		for _, c := range o.(*corev1.Node).Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return fmt.Errorf("the node was not ready: %s: %s", c.Reason, c.Message)
			}
		}
		return nil
	}, ctrlclient.MatchingFields{"metadata.name": nodeName})

	// The floods.
	var floods []*mirrorFlood
	for i, do := range []func(*mirrorFlood, string){(*mirrorFlood).configs, (*mirrorFlood).small} {
		f := grantTo(ctx, t, consumer, floodContractPods)
		space := fmt.Sprint("flood-", i)
		f.space(ctx, t, space)
		floods = append(floods, f)
		go do(f, space)
	}
	large, small := floods[0], floods[1]
	for i := range pods {
		p := remotePod(namespace, fmt.Sprint("flood-", i), func(p *corev1.Pod) { p.Spec.NodeName = node })
		if err := home.client.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	statuses.Flood.Store(true)
	// Tens of MiB are written before the first is refused, at the pace of this
	// machine's disk.
	err = eventually.Is(ctx, flooded, "the floods to rise", func(context.Context) error {
		if n, m, s := large.refused.Load(), small.refused.Load(), statuses.Said.Load(); n == 0 || m == 0 || s < 500 {
			return fmt.Errorf("%d of %d large objects and %d of %d small ones were refused, %d statuses said", n, large.sent.Load(), m, small.sent.Load(), s)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("the floods rose within %s, with %d statuses said", time.Since(begin).Round(time.Millisecond), statuses.Said.Load())

	// What the honest peer gets done, now and once the consumer has written all that
	// it may at once.
	run := func(when string, n int) {
		t.Helper()
		var slowest time.Duration
		for i := range n {
			p, begin := remotePod(namespace, fmt.Sprintf("honest-%s-%d", when, i), nil), time.Now()
			if err := home.client.Create(ctx, p); err != nil {
				t.Fatal(err)
			}
			if err := runs(ctx, home, p); err != nil {
				t.Fatal(err)
			}
			err := eventually.Is(ctx, soon, "pod "+p.Name+" to be ready", func(ctx context.Context) error {
				if err := home.get(ctx, p.Name, p); err != nil {
					return err
				}
				for _, c := range p.Status.Conditions {
					if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
						return nil
					}
				}
				return fmt.Errorf("it has %+v", p.Status.Conditions)
			})
			if err != nil {
				t.Fatal(err)
			}
			slowest = max(slowest, time.Since(begin))
			if err := home.client.Delete(ctx, p); err != nil {
				t.Fatal(err)
			}
			if err := gone(ctx, home, p, later); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s: %d pods, the slowest ready after %s", when, n, slowest.Round(time.Millisecond))
	}
	bound := func() (is, most int) {
		all, _ := configs.look(t)
		return all * floodConfigBytes, limitBurst + limitRate*int(time.Since(begin).Seconds()+1)
	}
	run("early", 8)
	err = eventually.Is(ctx, flooded, "the consumer that floods to be held back", func(context.Context) error {
		before, _ := configs.look(t)
		time.Sleep(3 * time.Second)
		after, _ := configs.look(t)
		if is, most := bound(); is > most {
			return eventually.Permanent(fmt.Errorf("it had %d MiB written, and the limit is %d", is>>20, most>>20))
		}
		// A peer alone is left as much as drains in all: 1 MiB a second.
		if after-before > 12 {
			return fmt.Errorf("in 3 s it had %d ConfigMaps of 1 MiB written", after-before)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	run("late", 8)

	took := time.Since(begin)
	if is, most := bound(); is > most {
		t.Errorf("a consumer had %d MiB written, and the limit is %d", is>>20, most>>20)
	} else {
		t.Logf("a consumer had %d MiB of ConfigMaps written in %s; the limit is %d", is>>20, took.Round(time.Second), most>>20)
	}
	atMost := func(what string, w *writes, most int) {
		t.Helper()
		if _, got := w.look(t); got > most {
			t.Errorf("a consumer had %d %s at once, and the limit is %d", got, what, most)
		} else {
			t.Logf("a consumer had %d %s at once; the limit is %d", got, what, most)
		}
	}
	// Beside the ConfigMaps there are the records of its two namespaces.
	atMost("ConfigMaps of 1 MiB", configs, limitContractBytes/floodConfigBytes+2)
	atMost(fmt.Sprintf("Services of %d ports", floodPorts), services, limitPorts/floodPorts)
	atMost("pods", offloadedPods, floodContractPods)
	writtenAtMost := func(what string, w *writes, most int) {
		t.Helper()
		if got, _ := w.look(t); got > most {
			t.Errorf("a provider had %d %s written, and the limit is %d", got, what, most)
		} else {
			t.Logf("a provider had %d %s written; the limit is %d", got, what, most)
		}
	}
	// A pod is also made, and taken, and marked as such.
	paced := limitFlips + int(took/limitFlipPace) + 2
	writtenAtMost(fmt.Sprintf("statuses of %d it said", statuses.Said.Load()), written, pods*(limitFirstStatuses+paced+4))
	// Of the pods that are home's there are some too.
	writtenAtMost("events", events, pods*limitFirstEvents+limitEventsBurst+limitEvents*int(took.Seconds()+1)+100)
	t.Logf("the flood of large objects: %d sent, %d taken, %d refused: %v", large.sent.Load(), large.taken.Load(), large.refused.Load(), large.why())
	t.Logf("the flood of small ones: %d sent, %d taken, %d deleted, %d refused: %v",
		small.sent.Load(), small.taken.Load(), small.deleted.Load(), small.refused.Load(), small.why())
	honest.look(t)
	for _, why := range honest.not {
		t.Error(why)
	}
	statuses.Flood.Store(false)
}

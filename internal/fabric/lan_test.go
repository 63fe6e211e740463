package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/mdns"
	"github.com/entente-dev/entente/internal/browse"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/sightings"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

// fakeLAN is a LAN as one responder receives it.
type fakeLAN struct {
	mu         sync.Mutex
	log        []string
	interfaces []string
	found      []discovery.Found
	conflicts  []mdns.Conflict
	changed    chan struct{}
	fails      error
}

func (h *fakeLAN) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *fakeLAN) sent() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := strings.Join(h.log, ", ")
	h.log = nil
	return out
}

func (h *fakeLAN) receives(list ...discovery.Found) {
	h.mu.Lock()
	h.found = list
	h.mu.Unlock()
	h.changed <- struct{}{}
}

func (h *fakeLAN) Run(ctx context.Context) error {
	h.note("run")
	h.mu.Lock()
	fails := h.fails
	h.mu.Unlock()
	if fails != nil {
		return fails
	}
	<-ctx.Done()
	h.note("goodbye")
	return nil
}

func (h *fakeLAN) Publish(list []discovery.Service) error {
	for _, s := range list {
		h.note("publish %s at %s:%d", s.Instance, s.Addresses, s.Port)
	}
	if len(list) == 0 {
		h.note("publish nothing")
	}
	return nil
}

func (h *fakeLAN) Found() []discovery.Found {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.found)
}

func (h *fakeLAN) Changed() <-chan struct{} { return h.changed }

func (h *fakeLAN) Stats() map[string]mdns.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]mdns.Stats{}
	for _, name := range h.interfaces {
		out[name] = mdns.Stats{}
	}
	return out
}

func (h *fakeLAN) Conflicts() []mdns.Conflict {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.conflicts)
}

// lanNode is a node in virtual time, and what it wrote.
type lanNode struct {
	t      *testing.T
	lan    *fakeLAN
	client client.WithWatch
	kick   chan struct{}
	stop   func()

	mu     sync.Mutex
	writes []time.Time
}

func newLANNode(t *testing.T) *lanNode {
	n := &lanNode{t: t, kick: make(chan struct{}, 1), lan: &fakeLAN{interfaces: []string{"eth0"}, changed: make(chan struct{}, 1)}}
	n.client = interceptor.NewClient(
		fake.NewClientBuilder().WithScheme(kube.Scheme()).WithStatusSubresource(&v1alpha1.NodeDiscovery{}, &v1alpha1.ForeignCluster{}).Build(),
		interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			n.mu.Lock()
			n.writes = append(n.writes, time.Now())
			n.mu.Unlock()
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		}},
	)
	under := &nodeLAN{node: "a", client: n.client, log: slog.New(slog.DiscardHandler), respond: func(interfaces []string) (responder, func(context.Context) error) {
		n.lan.note("on %q", interfaces)
		return n.lan, n.lan.Run
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		under.follow(ctx, n.kick)
	}()
	n.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(n.stop)
	return n
}

// wants makes or changes the node's NodeDiscovery.
func (n *lanNode) wants(spec v1alpha1.NodeDiscoverySpec) {
	n.t.Helper()
	nd := &v1alpha1.NodeDiscovery{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	err := n.client.Get(n.t.Context(), client.ObjectKeyFromObject(nd), nd)
	nd.Spec = spec
	if err != nil {
		err = n.client.Create(n.t.Context(), nd)
	} else {
		err = n.client.Update(n.t.Context(), nd)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.kick <- struct{}{}
}

func (n *lanNode) status() v1alpha1.NodeDiscoveryStatus {
	n.t.Helper()
	var nd v1alpha1.NodeDiscovery
	if err := n.client.Get(n.t.Context(), client.ObjectKey{Name: "a"}, &nd); err != nil {
		n.t.Fatal(err)
	}
	return nd.Status
}

// written returns how often was written since it was asked last.
func (n *lanNode) written() []time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.writes
	n.writes = nil
	return out
}

func spend(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func published(port int32, addresses ...string) *v1alpha1.PublishedCluster {
	return &v1alpha1.PublishedCluster{
		Instance: "office", Host: "entente-abc", Port: port, Addresses: addresses, ClusterID: string(testID('o')), Name: "office", API: "1",
	}
}

func testID(c byte) peering.ClusterID { return peering.ClusterID(strings.Repeat(string(c), 32)) }

func onLAN(c byte, where string, endpoints ...string) discovery.Found {
	return discovery.Found{Instance: string(c), Text: discovery.Text{ID: testID(c), Name: string(c)}, Where: where, Endpoints: endpoints}
}

// Without a NodeDiscovery there is no responder, so no socket and no packet.
func TestANodeListensOnlyWhileItIsWanted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newLANNode(t)
		spend(time.Hour)
		if sent := n.lan.sent(); sent != "" || len(n.written()) != 0 {
			t.Errorf("without a NodeDiscovery: %s", sent)
		}
		n.wants(v1alpha1.NodeDiscoverySpec{Publish: published(7443, "192.0.2.1")})
		spend(time.Second)
		if sent := n.lan.sent(); sent != `on [], publish office at [192.0.2.1]:7443, run` && sent != `on [], run, publish office at [192.0.2.1]:7443` {
			t.Errorf("with one: %s", sent)
		}
		n.wants(v1alpha1.NodeDiscoverySpec{Publish: published(30743, "192.0.2.1")})
		spend(time.Second)
		if sent := n.lan.sent(); sent != "publish office at [192.0.2.1]:30743" {
			t.Errorf("with another port: %s", sent)
		}
		n.wants(v1alpha1.NodeDiscoverySpec{NotPublishedMessage: "no other cluster can dial it"})
		spend(time.Second)
		if sent := n.lan.sent(); sent != "publish nothing" {
			t.Errorf("with nothing to publish: %s", sent)
		}
		n.wants(v1alpha1.NodeDiscoverySpec{Interfaces: []string{"eth*"}})
		spend(time.Second)
		if sent := n.lan.sent(); sent != `goodbye, on ["eth*"], run` {
			t.Errorf("on other interfaces: %s", sent)
		}
		if err := n.client.Delete(t.Context(), &v1alpha1.NodeDiscovery{ObjectMeta: metav1.ObjectMeta{Name: "a"}}); err != nil {
			t.Fatal(err)
		}
		n.kick <- struct{}{}
		spend(time.Second)
		if sent := n.lan.sent(); sent != "goodbye" {
			t.Errorf("when it is gone: %s", sent)
		}
		n.wants(v1alpha1.NodeDiscoverySpec{})
		spend(time.Second)
		n.lan.sent()
		n.stop()
		if sent := n.lan.sent(); sent != "goodbye" {
			t.Errorf("when the fabric ends: %s", sent)
		}
	})
}

// A fabric watches the NodeDiscovery of its own node, and no other; without one it makes
// no responder.
func TestANodeWatchesItsOwnNodeDiscoveryOnly(t *testing.T) {
	t.Parallel()
	nd := v1alpha1.NodeDiscovery{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeDiscovery"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"},
		// Not those of none: a responder that listened before would begin again.
		Spec: v1alpha1.NodeDiscoverySpec{Interfaces: []string{"eth0"}},
	}
	raw, err := json.Marshal(&nd)
	if err != nil {
		t.Fatal(err)
	}
	for _, there := range []bool{false, true} { // or it is made later
		list := &v1alpha1.NodeDiscoveryList{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeDiscoveryList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		}
		if there {
			list.Items = append(list.Items, nd)
		}
		made := make(chan metav1.WatchEvent, 1)
		server := &fewObjects{
			t: t, requests: map[string]int{}, lists: map[string]runtime.Object{"nodediscoveries": list},
			events: map[string]chan metav1.WatchEvent{"nodediscoveries": made},
		}
		var foreign atomic.Int32
		https := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, "/nodediscoveries") && req.URL.Query().Get("fieldSelector") != "metadata.name=a" {
				foreign.Add(1)
			}
			server.ServeHTTP(w, req)
		}))
		defer https.Close()
		mapper := meta.NewDefaultRESTMapper(nil)
		mapper.Add(v1alpha1.GroupVersion.WithKind("NodeDiscovery"), meta.RESTScopeRoot)
		lan := &fakeLAN{interfaces: []string{"eth0"}, changed: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		cfg := Config{Kubernetes: &rest.Config{Host: https.URL, QPS: -1}, Node: "a", Log: slog.New(slog.DiscardHandler)}
		go func() {
			done <- runLAN(ctx, cfg, mapper, func([]string) (responder, func(context.Context) error) {
				lan.note("listens")
				return lan, lan.Run
			})
		}()
		const report = "get /apis/entente.dev/v1alpha1/nodediscoveries/a/status"
		waittest.Eventually(t, "it watches", func() bool { return server.asked()["watch nodediscoveries"] > 0 })
		if !there {
			if sent := lan.sent(); sent != "" || server.asked()[report] > 0 {
				t.Errorf("without a NodeDiscovery the LAN received %q; it asked for %v", sent, server.asked())
			}
			made <- metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: raw}}
		}
		waittest.Eventually(t, "it reports", func() bool { return server.asked()[report] > 0 })
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if sent := lan.sent(); strings.Count(sent, "listens") != 1 || strings.Count(sent, "goodbye") != 1 {
			t.Errorf("there was a NodeDiscovery: %t; the LAN received %q", there, sent)
		}
		if foreign.Load() > 0 {
			t.Errorf("%d requests for all nodes' of %v", foreign.Load(), server.asked())
		}
	}
}

// What is found is reported at once, at most once a second, and each minute.
func TestANodeReportsWhatItFinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newLANNode(t)
		n.wants(v1alpha1.NodeDiscoverySpec{})
		spend(10 * time.Millisecond)
		if s := n.status(); !slices.Equal(s.Interfaces, []string{"eth0"}) || s.Since == nil || s.ObservedAt.IsZero() || len(s.Problems) != 0 || sightings.LANConverged(&s) {
			t.Errorf("at first it reports %+v", s)
		}
		spend(10 * time.Second)
		if s := n.status(); !sightings.LANConverged(&s) {
			t.Errorf("after a while it reports %+v", s)
		}
		n.written()
		spend(10 * time.Minute)
		if writes := n.written(); len(writes) != 10 {
			t.Errorf("while nothing changes it wrote %d times in 10 minutes", len(writes))
		}
		spend(time.Second)
		n.lan.receives(onLAN('x', "eth0", "192.0.2.7:7443"))
		spend(0)
		if s := n.status(); len(s.Clusters) != 1 || s.Clusters[0].ClusterID != string(testID('x')) {
			t.Errorf("right after something was found it reports %+v", s.Clusters)
		}
		spend(2 * time.Second)
		n.lan.receives()
		spend(0)
		if s := n.status(); len(s.Clusters) != 0 {
			t.Errorf("right after its goodbye it reports %+v", s.Clusters)
		}
		n.written()
		for i := range 200 {
			n.lan.receives(onLAN('x', "eth0", fmt.Sprintf("192.0.2.%d:7443", i+1)))
			spend(50 * time.Millisecond)
		}
		writes := n.written()
		for i := range writes[1:] {
			if gap := writes[i+1].Sub(writes[i]); gap < time.Second {
				t.Errorf("wrote twice within %s", gap)
			}
		}
		if len(writes) < 9 {
			t.Errorf("wrote %d times in 10 s", len(writes))
		}
		// For ever it is less often; after a rest it is at once again.
		for i := range 600 {
			n.lan.receives(onLAN('x', "eth0", fmt.Sprintf("192.0.2.%d:7443", i%200+1)))
			spend(time.Second)
		}
		if got, most := len(n.written()), lanStatusBurst+int(10*time.Minute/lanStatusPace)+1; got > most || got < most/2 {
			t.Errorf("wrote %d times in 10 min, want up to %d", got, most)
		}
		spend(5 * time.Minute)
		n.lan.receives()
		spend(0)
		if s := n.status(); len(s.Clusters) != 0 {
			t.Errorf("after a rest it reports %+v right after a goodbye", s.Clusters)
		}
	})
}

func TestANodeReportsWhyItFindsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newLANNode(t)
		n.lan.interfaces = nil
		n.wants(v1alpha1.NodeDiscoverySpec{})
		spend(lanStart + time.Second)
		if s := n.status(); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "no network interface") {
			t.Errorf("without interfaces it reports %+v", s)
		}
		n.lan.mu.Lock()
		n.lan.interfaces, n.lan.fails = []string{"eth0"}, errors.New("open UDP port 5353: address already in use")
		n.lan.mu.Unlock()
		n.wants(v1alpha1.NodeDiscoverySpec{Interfaces: []string{"eth0"}})
		spend(2 * time.Second)
		if s := n.status(); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "already in use") || s.Since != nil || len(s.Interfaces) != 0 {
			t.Errorf("without a port it reports %+v", s)
		}
		n.lan.mu.Lock()
		n.lan.fails = nil
		n.lan.mu.Unlock()
		spend(2 * lanRetry)
		if s := n.status(); len(s.Problems) != 0 || s.Since == nil || !slices.Equal(s.Interfaces, []string{"eth0"}) {
			t.Errorf("with the port free again it reports %+v", s)
		}
		n.wants(v1alpha1.NodeDiscoverySpec{Interfaces: []string{"eth0"}, Publish: published(7443, "office.example")})
		spend(2 * time.Second)
		if s := n.status(); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "cannot be published") {
			t.Errorf("with a name for an address it reports %+v", s)
		}
	})
}

// For any announcements on a LAN a report is small, has each cluster once for each interface, and
// known clusters are not driven out.
func TestFoundOnLANSharesTheRoom(t *testing.T) {
	t.Parallel()
	text := func(list []v1alpha1.DiscoveredCluster) string {
		var out []string
		for _, f := range list {
			out = append(out, fmt.Sprintf("%s/%c %s %v %t", f.Interface, f.ClusterID[0], f.Name, f.Endpoints, f.Automatic))
		}
		return strings.Join(out, "; ")
	}
	eth := []string{"eth0"}
	with := func(f discovery.Found, edit func(*discovery.Found)) discovery.Found {
		edit(&f)
		return f
	}
	for name, tt := range map[string]struct {
		list       []discovery.Found
		interfaces []string
		want       string
	}{
		"nothing":                  {interfaces: eth},
		"two, in order":            {list: []discovery.Found{onLAN('y', "eth0", "192.0.2.2:1"), onLAN('x', "eth0", "192.0.2.1:1")}, interfaces: eth, want: "eth0/x x [192.0.2.1:1] false; eth0/y y [192.0.2.2:1] false"},
		"an interface that was":    {list: []discovery.Found{onLAN('x', "eth1", "192.0.2.1:1")}, interfaces: eth},
		"no endpoint":              {list: []discovery.Found{onLAN('x', "eth0")}, interfaces: eth},
		"what must not be dialled": {list: []discovery.Found{onLAN('x', "eth0", "127.0.0.1:1", "[fe80::1%eth0]:1", "169.254.169.254:80", "office.example:1")}, interfaces: eth},
		"no ID":                    {list: []discovery.Found{with(onLAN('x', "eth0", "192.0.2.1:1"), func(f *discovery.Found) { f.ID = "x" })}, interfaces: eth},
		"a name that is a trick": {
			list:       []discovery.Found{with(onLAN('x', "eth0", "192.0.2.1:1"), func(f *discovery.Found) { f.Name = "a\x1b[2J" + strings.Repeat("b", 100) })},
			interfaces: eth, want: "eth0/x a [2J" + strings.Repeat("b", 59) + " [192.0.2.1:1] false",
		},
		"twice, in any order": {
			list:       []discovery.Found{with(onLAN('x', "eth0", "192.0.2.9:1"), func(f *discovery.Found) { f.Name, f.Automatic = "z", true }), onLAN('x', "eth0", "192.0.2.1:1")},
			interfaces: eth, want: "eth0/x x [192.0.2.1:1 192.0.2.9:1] true",
		},
		"once by a stranger without a name": {
			list:       []discovery.Found{onLAN('x', "eth0", "192.0.2.7:1"), with(onLAN('x', "eth0", "192.0.2.1:1", "192.0.2.2:1"), func(f *discovery.Found) { f.Name = "" })},
			interfaces: eth, want: "eth0/x x [192.0.2.7:1 192.0.2.1:1 192.0.2.2:1] false",
		},
		"on two interfaces": {
			list:       []discovery.Found{onLAN('x', "eth1", "192.0.2.1:1"), onLAN('x', "eth0", "192.0.2.1:1")},
			interfaces: []string{"eth0", "eth1"}, want: "eth0/x x [192.0.2.1:1] false; eth1/x x [192.0.2.1:1] false",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := text(foundOnLAN(tt.list, tt.interfaces, nil, nil)); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			slices.Reverse(tt.list)
			if got := text(foundOnLAN(tt.list, tt.interfaces, nil, nil)); got != tt.want {
				t.Errorf("the other way round: got  %s\nwant %s", got, tt.want)
			}
		})
	}

	many := func(where string, from, to int) []discovery.Found {
		var out []discovery.Found
		for i := from; i < to; i++ {
			id := strings.NewReplacer("0", "a", "1", "b", "8", "c", "9", "d").Replace(fmt.Sprintf("%032d", i))
			out = append(out, discovery.Found{Text: discovery.Text{ID: peering.ClusterID(id)}, Where: where, Endpoints: []string{
				"192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1", "192.0.2.4:1", "192.0.2.5:1", "192.0.2.6:1", "192.0.2.7:1", "192.0.2.8:1", "192.0.2.9:1",
			}})
		}
		return out
	}
	both := []string{"eth0", "eth1"}
	first := foundOnLAN(many("eth0", 500, 510), both, nil, nil)
	got := foundOnLAN(slices.Concat(many("eth0", 0, 1000), many("eth1", 0, 10)), both, first, nil)
	if len(got) != browse.MaxFound/2+10 || len(got[0].Endpoints) != peering.MaxEndpoints {
		t.Errorf("of many %d are reported, with %d endpoints", len(got), len(got[0].Endpoints))
	}
	for _, f := range first {
		if !slices.ContainsFunc(got, func(g v1alpha1.DiscoveredCluster) bool { return g.ClusterID == f.ClusterID }) {
			t.Errorf("%s was known and is driven out", f.ClusterID)
		}
	}
}

// A machine that announces the ID of a known cluster under many names drives out none of where it was
// known to be.
func TestKnownEndpointsAreNotEvicted(t *testing.T) {
	t.Parallel()
	honest := onLAN('x', "eth0", "192.0.2.200:1")
	honest.Name = "z"
	all := []discovery.Found{honest}
	found := foundOnLAN(all, []string{"eth0"}, nil, nil)
	for i := range 3 * peering.MaxEndpoints {
		stranger := onLAN('x', "eth0", fmt.Sprintf("192.0.2.%d:1", i+1), fmt.Sprintf("192.0.2.%d:1", i+100))
		stranger.Name = fmt.Sprintf("a%02d", 99-i)
		all = append(all, stranger)
		found = foundOnLAN(all, []string{"eth0"}, found, nil)
		if len(found) != 1 || len(found[0].Endpoints) > peering.MaxEndpoints || !slices.Contains(found[0].Endpoints, "192.0.2.200:1") {
			t.Fatalf("with %d strangers it is at %v", i+1, found)
		}
	}
}

// A machine that announces a cluster's ID from a few addresses, before that cluster does and under as
// many names as there are places, does not drive out the address that it announces itself.
func TestForgedInstancesDoNotReplaceTheOwnersEndpoints(t *testing.T) {
	t.Parallel()
	from := func(f discovery.Found, name string, list ...string) discovery.Found {
		f.Name, f.From = name, nil
		for _, text := range list {
			f.From = append(f.From, netip.MustParseAddr(text))
		}
		return f
	}
	const itself = "192.0.2.200:7443"
	for name, tt := range map[string]struct {
		sources, instances int
		// also are the senders that repeat the cluster's own announcements.
		also []string
	}{
		"eight from one address":       {sources: 1, instances: 8},
		"sixty from one address":       {sources: 1, instances: 60},
		"sixty from seven":             {sources: 7, instances: 60},
		"a sender that repeats itself": {sources: 7, instances: 60, also: []string{"192.0.2.1", "192.0.2.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []discovery.Found
			for i := range tt.instances {
				stranger := onLAN('x', "eth0", fmt.Sprintf("198.51.100.%d:1", i+1), fmt.Sprintf("198.51.100.%d:1", i+101))
				all = append(all, from(stranger, fmt.Sprintf("a%02d", i), fmt.Sprintf("192.0.2.%d", i%tt.sources+1)))
			}
			before := foundOnLAN(all, []string{"eth0"}, nil, nil)
			own := from(onLAN('x', "eth0", itself), "z", append(tt.also, "192.0.2.20")...)
			found := foundOnLAN(append(all, own), []string{"eth0"}, before, nil)
			if len(found) != 1 || len(found[0].Endpoints) > peering.MaxEndpoints || !slices.Contains(found[0].Endpoints, itself) {
				t.Errorf("it is at %v", found)
			}
		})
	}
	// In the name of the cluster's own address: what has that address comes first.
	all := []discovery.Found{from(onLAN('x', "eth0", "192.0.2.20:7443"), "z", "192.0.2.20")}
	for i := range 60 {
		all = append(all, from(onLAN('x', "eth0", fmt.Sprintf("198.51.100.%d:1", i+1)), fmt.Sprintf("a%02d", i), "192.0.2.20"))
	}
	if found := foundOnLAN(all, []string{"eth0"}, nil, nil); len(found) != 1 || !slices.Contains(found[0].Endpoints, "192.0.2.20:7443") {
		t.Errorf("it is at %v", found)
	}
}

// A machine that invents more clusters than are reported or kept keeps out none that a policy
// lists, from the report of the fabric to the ForeignCluster.
func TestInventedClustersDoNotEvictExpectedOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listed := testID('x')
		policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "home"}}
		policy.Spec.Automatic = &v1alpha1.AutomaticPeering{ClusterIDs: []string{string(listed)}}
		n := newLANNode(t)
		if err := n.client.Create(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		expected, err := browse.Expected(t.Context(), n.client)
		if err != nil || !slices.Equal(expected, []string{string(listed)}) {
			t.Fatalf("expected are %v, %v", expected, err)
		}
		n.wants(v1alpha1.NodeDiscoverySpec{PreferredClusterIDs: expected})
		l := &browse.LANs{Reader: n.client, Now: time.Now, Log: slog.New(slog.DiscardHandler), Dialable: func(e []string) []string { return e }}
		wake := make(chan struct{})
		s := &sightings.Sightings{
			Client: n.client, Self: testID('o'), Events: events.NewFakeRecorder(16), Log: slog.New(slog.DiscardHandler), Now: time.Now,
			Budget: &store.WriteBudget{Now: time.Now}, Snapshot: l.Snapshot, Wake: wake,
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Start(ctx) }()
		look := func(list []discovery.Found) (all int, there bool) {
			n.lan.receives(list...)
			for range 20 {
				spend(2 * time.Second)
				wake <- struct{}{}
			}
			spend(2 * time.Second)
			var fcs v1alpha1.ForeignClusterList
			if err := n.client.List(t.Context(), &fcs); err != nil {
				t.Fatal(err)
			}
			return len(fcs.Items), slices.ContainsFunc(fcs.Items, func(fc v1alpha1.ForeignCluster) bool { return fc.Spec.ClusterID == string(listed) })
		}
		var invented []discovery.Found
		for i := range 2 * browse.MaxFound {
			id := strings.NewReplacer("0", "a", "1", "b", "8", "c", "9", "d").Replace(fmt.Sprintf("%06d%026d", i, 0))
			invented = append(invented, discovery.Found{Text: discovery.Text{ID: peering.ClusterID(id)}, Where: "eth0", Endpoints: []string{fmt.Sprintf("192.0.2.%d:1", i%250+1)}})
		}
		if all, _ := look(invented); all != 128 {
			t.Errorf("of those that were invented %d are kept", all)
		}
		if all, there := look(append(invented, onLAN('x', "eth0", "192.0.2.1:7443"))); !there || all != 129 {
			t.Errorf("the one that is listed is there: %t, of %d", there, all)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A machine that announces this cluster's name or ID is reported once that lasts, in words, and on few lines.
func TestANodeReportsImpostors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newLANNode(t)
		conflict := mdns.Conflict{Where: "eth0", Name: "office", From: netip.MustParseAddr("192.0.2.66"), Since: time.Now(), Last: time.Now()}
		says := func(want string, list ...mdns.Conflict) {
			t.Helper()
			n.lan.mu.Lock()
			n.lan.conflicts = list
			n.lan.mu.Unlock()
			spend(2 * lanResync)
			if got := strings.Join(n.status().Problems, "\n"); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("it says %q, want %q", got, want)
			}
		}
		n.wants(v1alpha1.NodeDiscoverySpec{Publish: published(7443, "192.0.2.1")})
		says("", conflict) // as while a node hands over
		conflict.Last = conflict.Last.Add(conflictLasts)
		says(`another machine at 192.0.2.66 announces this cluster's name "office" on eth0: it is not published under it meanwhile`, conflict)
		spend(conflictEnds + conflictLasts)
		says("", conflict)
		conflict.Renamed = "office (2)"
		says(`announces this cluster's name "office" on eth0: it is published as "office (2)"`, conflict)
		says(`announces this cluster's ID under the name "other" on eth0`, mdns.Conflict{Where: "eth0", Name: "other", ID: true, From: conflict.From, Since: conflict.Since, Last: time.Now()})
		many := slices.Repeat([]mdns.Conflict{conflict}, 100)
		says("office (2)", many...)
		if got := len(n.status().Problems); got != maxLANConflicts {
			t.Errorf("it says %d problems", got)
		}
		says("")
	})
}

func TestThePublishedServiceHasDialableAddresses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		endpoints []string
		want      string
		why       string
	}{
		"an address":                    {endpoints: []string{"192.0.2.1:30743"}, want: "30743 [192.0.2.1]"},
		"both families":                 {endpoints: []string{"192.0.2.1:7443", "[2001:db8::1]:7443"}, want: "7443 [192.0.2.1 2001:db8::1]"},
		"of two ports the first":        {endpoints: []string{"192.0.2.1:443", "192.0.2.2:30743"}, want: "443 [192.0.2.1]"},
		"one that is not dialled":       {endpoints: []string{"127.0.0.1:1", "127.0.0.2:1", "192.0.2.1:7443"}, want: "7443 [192.0.2.1]"},
		"one twice, and in two forms":   {endpoints: []string{"192.0.2.1:7443", "192.0.2.1:7443", "192.0.2.2:443", "[::ffff:192.0.2.3]:7443"}, want: "7443 [192.0.2.1 192.0.2.3]"},
		"names are not published":       {endpoints: []string{"office.example:7443"}, why: "none of this cluster's endpoints (office.example:7443) is an address"},
		"it is not dialled":             {why: "this cluster cannot be dialled: set peer.endpoints"},
		"no more than a service has":    {endpoints: []string{"192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1", "192.0.2.4:1", "192.0.2.5:1", "192.0.2.6:1", "192.0.2.7:1", "192.0.2.8:1", "192.0.2.9:1"}, want: "1 [192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6 192.0.2.7 192.0.2.8]"},
		"what is too long to be a text": {endpoints: []string{strings.Repeat("o", 600) + ":7443"}, why: "none of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := discovery.NewService(testID('o'), "office", 3, tt.endpoints)
			s.Automatic, s.Text.Fingerprint = true, "0123456789abcdef"
			spec := Published(s, tt.endpoints)
			if tt.why != "" {
				if spec.Publish != nil || !strings.Contains(spec.NotPublishedMessage, tt.why) || len(spec.NotPublishedMessage) > browse.MaxText {
					t.Errorf("got %+v, want it not published: %s", spec, tt.why)
				}
				return
			}
			p := spec.Publish
			if p == nil || fmt.Sprint(p.Port, " ", p.Addresses) != tt.want {
				t.Fatalf("got %+v, want %s", p, tt.want)
			}
			if p.Instance != "office" || p.Name != "office" || p.Host != "entente-oooooooo" || p.API != "3" || !p.Automatic || p.Fingerprint != s.Text.Fingerprint {
				t.Errorf("published %+v", p)
			}
			services, err := servicesOf(p)
			if err != nil || len(services) != 1 || services[0].Text.ID != testID('o') || services[0].Text.Fingerprint != p.Fingerprint || !services[0].Automatic {
				t.Errorf("the fabric publishes %+v, %v", services, err)
			}
		})
	}
}

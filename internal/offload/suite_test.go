package offload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/podsecurity"
	"github.com/entente-dev/entente/internal/podwatch"
	"github.com/entente-dev/entente/internal/records"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	if err := api.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// cluster is the provider's cluster: as its owner sees it, and as the agent may.
type cluster struct {
	owner, agent client.WithWatch
	rest         *rest.Config
	real         bool

	mu        sync.Mutex
	contracts map[string]Contract
	n         int
	// alias replaces 10.1.0.0/16 of consumers in NetworkPolicies; the default is 10.241.0.0/16.
	alias netip.Prefix
	// unknown means that consumers have not announced yet by which addresses they know pods here.
	unknown atomic.Bool
	// late means that this cluster trusts peerB, too.
	late atomic.Bool
	// prepare, if set, gets a provider before it runs.
	prepare func(*Provider)
}

func (c *cluster) contract(id string) (Contract, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.contracts[id]
	return k, ok
}

func (c *cluster) set(id string, k *Contract) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k == nil {
		delete(c.contracts, id)
		return
	}
	c.contracts[id] = *k
}

// fresh makes up a contract and a name of a namespace that no other test has.
func (c *cluster) fresh(resources string) (id, ns string) {
	c.mu.Lock()
	c.n++
	id, ns = fmt.Sprint("c-", c.n), fmt.Sprint("shop", c.n)
	c.mu.Unlock()
	if !strings.Contains(resources, "pods=") {
		resources += ",pods=100" // every contract has a limit of them
	}
	c.set(id, &Contract{
		Peer: peerA, Resources: container(resources, "").Resources.Requests, PodSecurity: baseline, AcceptNew: true,
		NamespaceNames: []string{ns, ns + "-own", "kube-extra", "rome-" + ns + "*"},
	})
	return id, ns
}

func (c *cluster) start(t *testing.T) (p *Provider, stop func()) {
	t.Helper()
	return c.startFenced(t, nil)
}

// startFenced starts a provider that keeps to fences.
func (c *cluster) startFenced(t *testing.T, stops func(fencing.Fence) bool) (p *Provider, stop func()) {
	t.Helper()
	p, err := New(Config{
		Stops: stops,
		Trusted: func() []peering.ClusterID {
			if c.late.Load() {
				return []peering.ClusterID{peerA, peerB}
			}
			return []peering.ClusterID{peerA}
		},
		Client: c.agent, REST: c.rest, Contracts: c.contract, Namespace: "entente-system", ServiceAccount: "entente-agent",
		Translate: func(_ peering.ClusterID, a netip.Addr) (netip.Addr, bool) {
			// 10.1.x.y of the consumer is 10.241.x.y here.
			b := a.As4()
			if b[0] != 10 || b[1] != 1 {
				return netip.Addr{}, false
			}
			b[1] = 241
			return netip.AddrFrom4(b), true
		},
		Here: c.here,
		Zone: func(node string) string { return map[string]string{"n1": "a"}[node] },
		Self: string(self),
		// 198.18.x.y is a consumer's address for 10.200.x.y.
		Own: func(_ peering.ClusterID, a netip.Addr) (netip.Addr, bool) {
			b := a.As4()
			if b[0] != 198 {
				return netip.Addr{}, false
			}
			b[0], b[1] = 10, 200
			return netip.AddrFrom4(b), true
		},
		KnownAs: func(_ peering.ClusterID, a netip.Addr) (netip.Addr, bool) {
			b := a.As4()
			if c.unknown.Load() || b[0] != 10 || b[1] != 200 {
				return netip.Addr{}, false
			}
			b[0], b[1] = 198, 18
			return netip.AddrFrom4(b), true
		},
		Resolver: func() (netip.Addr, error) { return netip.MustParseAddr("10.96.0.77"), nil },
		Log:      slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.prepare != nil {
		c.prepare(p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-p.Synced():
	case <-time.After(time.Minute):
		t.Fatal("never synced")
	}
	return p, stop
}

// testLog keeps logs with their test, and quiet once that is over.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

func newFake(t *testing.T) *cluster {
	t.Helper()
	c := newJournaled(testScheme(t))
	return &cluster{owner: c, agent: withoutRights(c), contracts: map[string]Contract{}}
}

// withoutRights is the agent's client of a fake cluster: in a namespace without its RoleBinding it
// may only create that.
func withoutRights(owner client.WithWatch) client.WithWatch {
	check := func(ctx context.Context, verb, namespace string, o runtime.Object) error {
		if namespace == "" {
			return nil
		}
		gvk, err := apiutil.GVKForObject(o, owner.Scheme())
		if err != nil {
			return err
		}
		if gvk.Group == rbacv1.GroupName || gvk.Group == api.GroupVersion.Group {
			return nil
		}
		err = owner.Get(ctx, types.NamespacedName{Namespace: namespace, Name: bindingName}, &rbacv1.RoleBinding{})
		if apierrors.IsNotFound(err) {
			return apierrors.NewForbidden(schema.GroupResource{Group: gvk.Group, Resource: strings.ToLower(gvk.Kind)}, verb, errors.New("the agent is not bound in "+namespace))
		}
		return err
	}
	listed := func(opts []client.ListOption) string { return (&client.ListOptions{}).ApplyOptions(opts).Namespace }
	return interceptor.NewClient(owner, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := check(ctx, "get", key.Namespace, o); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := check(ctx, "list", listed(opts), list); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			if err := check(ctx, "watch", listed(opts), list); err != nil {
				return nil, err
			}
			return c.Watch(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := check(ctx, "create", o.GetNamespace(), o); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := check(ctx, "update", o.GetNamespace(), o); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := check(ctx, "delete", o.GetNamespace(), o); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
	})
}

// newReal starts an API server with the chart in it: the agent has the rights of an installation,
// and the policies apply.
func newReal(t *testing.T) *cluster {
	t.Helper()
	server := charttest.StartAPIServer(t)
	s := testScheme(t)
	owner, err := client.NewWithWatch(server.Owner, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	as := server.As("entente-agent")
	agent, err := client.NewWithWatch(as, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	cheap, err := records.New(agent, as)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{owner: owner, agent: cheap, rest: as, real: true, contracts: map[string]Contract{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.endNamespaces(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// endNamespaces does what the controller manager would: it empties namespaces that are being
// deleted, and removes their finalizer.
func (c *cluster) endNamespaces(ctx context.Context) {
	for ctx.Err() == nil {
		var list corev1.NamespaceList
		if c.owner.List(ctx, &list) == nil {
			for i := range list.Items {
				ns := &list.Items[i]
				if ns.DeletionTimestamp == nil {
					continue
				}
				for _, o := range []client.Object{&corev1.Pod{}, &corev1.ConfigMap{}, &corev1.Secret{}, &discoveryv1.EndpointSlice{}, &rbacv1.RoleBinding{}, &api.OffloadedPod{}} {
					_ = c.owner.DeleteAllOf(ctx, o, client.InNamespace(ns.Name), client.GracePeriodSeconds(0))
				}
				var services corev1.ServiceList
				_ = c.owner.List(ctx, &services, client.InNamespace(ns.Name))
				for j := range services.Items {
					_ = c.owner.Delete(ctx, &services.Items[j])
				}
				var pods api.OffloadedPodList
				if c.owner.List(ctx, &pods, client.InNamespace(ns.Name)) != nil || len(pods.Items) > 0 {
					continue
				}
				ns.Spec.Finalizers = nil
				_ = c.owner.SubResource("finalize").Update(ctx, ns)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

func (c *cluster) get(t *testing.T, ns, name string, o client.Object) bool {
	t.Helper()
	err := c.owner.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: name}, o)
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("get %s/%s: %v", ns, name, err)
	}
	return err == nil
}

// addressesIn returns the endpoints in a namespace, in order.
func (c *cluster) addressesIn(t *testing.T, ns string) (out []string) {
	t.Helper()
	var list discoveryv1.EndpointSliceList
	if err := c.owner.List(t.Context(), &list, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			out = append(out, e.Addresses...)
		}
	}
	slices.Sort(out)
	return out
}

func thing(k peering.Kind, ns, name, uid, json string) peering.Object {
	return peering.Object{Ref: peering.ObjectRef{Kind: k, Namespace: ns, Name: name, UID: uid}, JSON: []byte(json)}
}

func namespaceObject(name, mapping string) peering.Object {
	return thing(peering.KindNamespace, "", name, "uid-"+name, fmt.Sprintf(`{"mapping":%q}`, mapping))
}

func podObject(ns, name, cpu string) peering.Object {
	return thing(peering.KindPod, ns, name, "uid-"+ns+"-"+name, fmt.Sprintf(
		`{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":%q}}}]}}`, cpu))
}

func apply(t *testing.T, p *Provider, contract string, objects ...peering.Object) {
	t.Helper()
	for _, o := range objects {
		if err := p.Apply(t.Context(), contract, o); err != nil {
			t.Fatalf("apply %s: %v", o.Ref, err)
		}
	}
}

func refused(t *testing.T, err error, reason peering.RefusalReason, retryable bool, words string) {
	t.Helper()
	var r *peering.Refusal
	if !errors.As(err, &r) || r.Reason != reason || r.Retryable != retryable || !strings.Contains(r.Message, words) {
		t.Errorf("got %v, want %s (retryable %v) about %q", err, reason, retryable, words)
	}
}

// setPhase is the kubelet.
func (c *cluster) setPhase(t *testing.T, ns, name string, phase corev1.PodPhase, ip string) {
	t.Helper()
	eventually(t, "the pod takes a status", func() bool {
		pod := &corev1.Pod{}
		if !c.get(t, ns, name, pod) {
			return false
		}
		pod.Status.Phase, pod.Status.PodIP = phase, ip
		if ip != "" {
			pod.Status.PodIPs = []corev1.PodIP{{IP: ip}}
		}
		return c.owner.Status().Update(t.Context(), pod) == nil
	})
}

// place puts a pod on a node, as a scheduler does.
func (c *cluster) place(t *testing.T, ns, name, node string) {
	t.Helper()
	eventually(t, "the pod is placed", func() bool {
		pod := &corev1.Pod{}
		if !c.get(t, ns, name, pod) {
			return false
		}
		err := c.owner.SubResource("binding").Create(t.Context(), pod.DeepCopy(), &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}})
		if err != nil { // a fake API server has no bindings
			pod.Spec.NodeName = node
			err = c.owner.Update(t.Context(), pod)
		}
		return err == nil
	})
}

// heard collects the statuses and events of Watch.
type heard struct {
	mu     sync.Mutex
	last   map[string]peering.PodStatus
	gone   map[string]bool // UIDs
	events []peering.PodEvent
}

func listen(t *testing.T, p *Provider, contract string) *heard {
	t.Helper()
	h := &heard{last: map[string]peering.PodStatus{}, gone: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- p.Watch(ctx, contract, func(s peering.PodStatus) {
			h.mu.Lock()
			h.last[s.Ref.Name] = s
			h.gone[s.Ref.UID] = h.gone[s.Ref.UID] || s.Gone
			h.mu.Unlock()
		}, func(e peering.PodEvent) {
			h.mu.Lock()
			h.events = append(h.events, e)
			h.mu.Unlock()
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	// Statuses before it watches are not sent.
	eventually(t, "the watch listens", func() bool {
		listens := false
		p.hub.Each(contract, func(*podwatch.Watch) { listens = true })
		return listens
	})
	return h
}

func (h *heard) of(name string) (s peering.PodStatus, phase corev1.PodPhase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s = h.last[name]
	var st corev1.PodStatus
	_ = json.Unmarshal(s.Status, &st)
	return s, st.Phase
}

func TestProviderOnAFakeCluster(t *testing.T) { suite(t, newFake(t)) }

func TestProviderOnARealAPIServer(t *testing.T) { suite(t, newReal(t)) }

func suite(t *testing.T, c *cluster) {
	t.Run("a namespace is made once, marked, and only where there is none", func(t *testing.T) { testNamespaces(t, c) })
	t.Run("config follows its original and never overwrites another's", func(t *testing.T) { testConfig(t, c) })
	t.Run("a pod lives, ends, and is not run again", func(t *testing.T) { testPodLife(t, c) })
	t.Run("a pod that the provider deletes is lost and not run again", func(t *testing.T) { testPodLost(t, c) })
	t.Run("a delete needs the UID and ends the pod", func(t *testing.T) { testDelete(t, c) })
	t.Run("how a pod ended is reported though it is gone", func(t *testing.T) { testLastStatus(t, c) })
	t.Run("how a pod ended is kept while no agent watches", func(t *testing.T) { testEndsWithoutAgents(t, c) })
	t.Run("a deleted namespace waits until home knows how its pods ended", func(t *testing.T) { testEndsInADeletedNamespace(t, c) })
	t.Run("no finalizer of a pod outlives its record", func(t *testing.T) { testPodsWithoutRecords(t, c) })
	t.Run("an end that no consumer will receive keeps nothing", func(t *testing.T) { testUnheardEnds(t, c) })
	t.Run("a hundred applies at once stay within the quota, also after a restart", func(t *testing.T) { testQuota(t, c) })
	t.Run("a pod that is resized counts the larger until its kubelet acted", func(t *testing.T) { testResize(t, c) })
	t.Run("a pod without resources counts and has the contract's defaults", func(t *testing.T) { testLimitRange(t, c) })
	t.Run("classes are the provider's, by its policy of the time", func(t *testing.T) { testClasses(t, c) })
	t.Run("a priority that is not mapped is said once", func(t *testing.T) { testPriorityNotes(t, c) })
	t.Run("tolerations are the provider's, for taints of the contract's nodes", func(t *testing.T) { testTolerations(t, c) })
	t.Run("resizes at once stay within the quota", func(t *testing.T) { testResizesAtOnce(t, c) })
	t.Run("a crash between making and recording a pod does not run it twice", func(t *testing.T) { testCrash(t, c) })
	t.Run("a forbidden pod is refused with the reason", func(t *testing.T) { testRefusals(t, c) })
	t.Run("a namespace follows the Pod Security levels of its contracts", func(t *testing.T) { testLevels(t, c) })
	t.Run("services answer with endpoints in this cluster's terms", func(t *testing.T) { testServices(t, c) })
	t.Run("network policies hold for the consumer's pods alone, in this cluster's terms", func(t *testing.T) { testPolicies(t, c) })
	t.Run("services of a cluster set have this cluster's pods by their own addresses", func(t *testing.T) { testSetService(t, c) })
	t.Run("pods resolve names as at home, and their addresses are recorded", func(t *testing.T) { testNames(t, c) })
	t.Run("a pod that asks reads the addresses by which home knows it", func(t *testing.T) { testHomeIPs(t, c) })
	t.Run("events of pods come back", func(t *testing.T) { testEvents(t, c) })
	t.Run("closing a contract removes all its objects and none of others", func(t *testing.T) { testClose(t, c) })
	t.Run("pods under a fence are stopped when their consumer is silent, and no others", func(t *testing.T) { testFences(t, c) })
	t.Run("volumes are created, counted, and deleted only by a delete", func(t *testing.T) { testVolumes(t, c) })
	t.Run("a namespace of kept volumes goes with the last of them", func(t *testing.T) { testKeptNamespaceGoes(t, c) })
	t.Run("a namespace whose creator died before it had its rights there is removed", func(t *testing.T) { testVacateWithoutRights(t, c) })
}

func testNamespaces(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	o := namespaceObject(name, "Suffixed")
	apply(t, p, id, o, o)
	ns := &corev1.Namespace{}
	if !c.get(t, "", name+"-aaaaaaaa", ns) {
		t.Fatal("the namespace is not there")
	}
	for k, v := range map[string]string{
		api.LabelManaged: "entente", api.LabelPeer: string(peerA), api.LabelOriginNamespace: name, api.LabelOriginUID: o.Ref.UID,
		"pod-security.kubernetes.io/enforce": "baseline",
	} {
		if ns.Labels[k] != v {
			t.Errorf("label %s is %q, want %q", k, ns.Labels[k], v)
		}
	}
	binding := &rbacv1.RoleBinding{}
	if !c.get(t, ns.Name, bindingName, binding) || binding.RoleRef.Name != "entente-provider-namespace" || binding.Subjects[0].Name != "entente-agent" {
		t.Errorf("role binding %+v", binding)
	}
	held, err := p.Held(t.Context(), id)
	if err != nil || len(held) != 1 || held[0] != (peering.Held{Ref: o.Ref, Hash: o.Hash()}) {
		t.Errorf("held %v, %v", held, err)
	}
	refused(t, p.Apply(t.Context(), id, namespaceObject(name, "Same")), peering.RefusedNamespace, false, "never changes")
	refused(t, p.Apply(t.Context(), id, namespaceObject("com", "Same")), peering.RefusedNamespace, true, "may not be called com")
	younger := o
	younger.Ref.UID = "another"
	refused(t, p.Apply(t.Context(), id, younger), peering.RefusedNamespace, true, "older namespace")

	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name + "-own", Labels: map[string]string{"team": "a"}}}
	if err := c.owner.Create(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	refused(t, p.Apply(t.Context(), id, namespaceObject(name+"-own", "Same")), peering.RefusedNamespace, true, "not the consumer's")
	if c.get(t, "", own.Name, own); own.Labels[api.LabelManaged] != "" {
		t.Error("a namespace of the provider's was touched")
	}
	refused(t, p.Apply(t.Context(), id, namespaceObject("kube-extra", "Same")), peering.RefusedNamespace, false, "kube-")

	// Names that the consumer chose.
	chosen := func(origin, name string) peering.Object {
		return thing(peering.KindNamespace, "", origin, "uid-"+origin, fmt.Sprintf(`{"mapping":"Chosen","name":%q}`, name))
	}
	apply(t, p, id, chosen(name+"-x", "rome-"+name))
	if !c.get(t, "", "rome-"+name, ns) || ns.Labels[api.LabelOriginNamespace] != name+"-x" || ns.Labels[api.LabelPeer] != string(peerA) {
		t.Errorf("the namespace with the chosen name is %+v", ns.ObjectMeta)
	}
	refused(t, p.Apply(t.Context(), id, chosen(name+"-y", "rome-"+name)), peering.RefusedNamespace, true, "the consumer's namespace "+name+"-x is called")
	refused(t, p.Apply(t.Context(), id, chosen(name+"-x", "rome-"+name+"-2")), peering.RefusedNamespace, false, "never changes")
	refused(t, p.Apply(t.Context(), id, chosen(name+"-y", "paris")), peering.RefusedNamespace, true, "namespaceNames")
	refused(t, p.Apply(t.Context(), id, chosen(name+"-y", name+"-own")), peering.RefusedNamespace, true, "not the consumer's")
	refused(t, p.Apply(t.Context(), id, chosen(name+"-y", "kube-extra")), peering.RefusedNamespace, false, "kube-")
	refused(t, p.Apply(t.Context(), "c-none", namespaceObject("x", "Same")), peering.RefusedContract, false, "unknown")
	testNamesOfOthers(t, c, p, id, name, chosen)
}

// testNamesOfOthers chooses names that end as those of another cluster do, before and after it is trusted.
func testNamesOfOthers(t *testing.T, c *cluster, p *Provider, id, name string, chosen func(origin, name string) peering.Object) {
	early := chosen(name+"-early", "rome-"+name+"-early-"+peerB.Short())
	apply(t, p, id, early)
	c.late.Store(true)
	defer c.late.Store(false)
	apply(t, p, id, early) // an existing namespace stays
	const anothers = "belong to another cluster"
	refused(t, p.Apply(t.Context(), id, chosen(name+"-z", "rome-"+name+"-"+peerB.Short())), peering.RefusedNamespace, true, anothers)
	k, _ := c.contract(id)
	k.NamespaceNames = []string{name + "*"}
	c.set(id, &k)
	refused(t, p.Apply(t.Context(), id, namespaceObject(name+"-"+peerB.Short(), "Same")), peering.RefusedNamespace, true, anothers)
	apply(t, p, id, chosen(name+"-z", name+"-z-"+peerA.Short())) // its own
	// Its namespaces differ from others' by their suffix, whatever they begin with.
	apply(t, p, id, namespaceObject(name+"-zz-"+peerB.Short(), "Suffixed"))

	k.Peer = peerB
	other, _ := c.fresh("cpu=1")
	c.set(other, &k)
	apply(t, p, other, namespaceObject(name, "Suffixed"))
	if ns := (&corev1.Namespace{}); !c.get(t, "", name+"-"+peerB.Short(), ns) || ns.Labels[api.LabelPeer] != string(peerB) {
		t.Errorf("the namespace of the other cluster is %+v", ns.ObjectMeta)
	}
}

func testConfig(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	other, _ := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	cm := thing(peering.KindConfigMap, name, "cfg", "u1", `{"data":{"a":"1"},"immutable":true}`)
	refused(t, p.Apply(t.Context(), id, cm), peering.RefusedNamespace, true, "not here yet")
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	refused(t, p.Apply(t.Context(), other, cm), peering.RefusedNamespace, true, "not here yet")
	apply(t, p, id, cm, thing(peering.KindSecret, name, "sec", "u2", `{"data":{"k":"dg=="},"type":"Opaque"}`))
	var got corev1.ConfigMap
	if !c.get(t, remote, "cfg", &got) || got.Data["a"] != "1" || got.Immutable != nil {
		t.Errorf("config map %+v", got)
	}
	cm.JSON = []byte(`{"data":{"b":"2"}}`)
	apply(t, p, id, cm)
	got = corev1.ConfigMap{}
	if !c.get(t, remote, "cfg", &got) || len(got.Data) != 1 || got.Data["b"] != "2" {
		t.Errorf("config map %+v", got)
	}
	// Another type is another Secret to Kubernetes; it follows nevertheless.
	apply(t, p, id, thing(peering.KindSecret, name, "sec", "u2", `{"data":{"k":"dg=="},"type":"example.org/x"}`))
	var sec corev1.Secret
	if !c.get(t, remote, "sec", &sec) || sec.Type != "example.org/x" || string(sec.Data["k"]) != "v" {
		t.Errorf("secret of type %s", sec.Type)
	}
	if err := c.owner.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: remote, Name: "theirs"}, Data: map[string]string{"keep": "1"}}); err != nil {
		t.Fatal(err)
	}
	refused(t, p.Apply(t.Context(), id, thing(peering.KindConfigMap, name, "theirs", "u3", `{}`)), peering.RefusedInvalid, true, "not overwritten")
	refused(t, p.Apply(t.Context(), id, thing(peering.KindConfigMap, name, recordName, "u4", `{}`)), peering.RefusedInvalid, false, "another")

	apply(t, p, other, namespaceObject(name, "Suffixed"), cm)
	wrong := cm.Ref
	wrong.UID = "u9"
	if err := p.Delete(t.Context(), id, wrong, nil); err != nil || !c.get(t, remote, "cfg", &got) {
		t.Errorf("a delete with another UID: %v", err)
	}
	if err := p.Delete(t.Context(), id, cm.Ref, nil); err != nil || !c.get(t, remote, "cfg", &got) {
		t.Errorf("an object of another contract is gone: %v", err)
	}
	if err := p.Delete(t.Context(), other, cm.Ref, nil); err != nil || c.get(t, remote, "cfg", &got) {
		t.Errorf("an object that no contract holds stays: %v", err)
	}
}

func testPodLife(t *testing.T, c *cluster) {
	p, stop := c.start(t)
	id, name := c.fresh("cpu=1,pods=10")
	remote := name + "-aaaaaaaa"
	h := listen(t, p, id)
	o := podObject(name, "web", "600m")
	apply(t, p, id, namespaceObject(name, "Suffixed"), o, o)
	pod := &corev1.Pod{}
	eventually(t, "the pod is made", func() bool { return c.get(t, remote, "web", pod) })
	if pod.Labels["app"] != "web" || pod.Labels[api.LabelContract] != id || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("pod %+v", pod.ObjectMeta)
	}
	refused(t, p.Apply(t.Context(), id, podObject(name, "more", "600m")), peering.RefusedQuota, true, "cpu")
	c.setPhase(t, remote, "web", corev1.PodRunning, "10.200.0.7")
	eventually(t, "the status comes back", func() bool { _, ph := h.of("web"); return ph == corev1.PodRunning })
	if s, _ := h.of("web"); s.RemoteName != remote+"/web" || s.RemoteUID != string(pod.UID) || s.Gone {
		t.Errorf("status %+v", s)
	}
	eventually(t, "the pod is exposed", func() bool {
		ips, known := p.Exposed(id)
		return known && slices.Equal(ips, []netip.Addr{netip.MustParseAddr("10.200.0.7")})
	})
	used, n, err := p.Usage(t.Context(), id)
	if q := used[corev1.ResourceCPU]; err != nil || n != 1 || q.Cmp(resource.MustParse("600m")) != 0 {
		t.Errorf("usage %v %d %v", used, n, err)
	}
	changed := o
	changed.JSON = []byte(strings.Replace(strings.Replace(string(o.JSON), `"image":"i"`, `"image":"i2"`, 1), `"containers":`, `"activeDeadlineSeconds":600,"containers":`, 1))
	apply(t, p, id, changed)
	eventually(t, "the image and the deadline follow", func() bool {
		return c.get(t, remote, "web", pod) && pod.Spec.Containers[0].Image == "i2" && pod.Spec.ActiveDeadlineSeconds != nil && pod.Annotations[api.AnnotationHash] == changed.Hash().String()
	})
	if c.real { // a fake client has no such subresource
		debugged := changed
		debugged.JSON = []byte(strings.Replace(string(changed.JSON), `"containers":`, `"ephemeralContainers":[{"name":"debug","image":"d","targetContainerName":"c"}],"containers":`, 1))
		apply(t, p, id, debugged)
		eventually(t, "an ephemeral container follows", func() bool {
			return c.get(t, remote, "web", pod) && len(pod.Spec.EphemeralContainers) == 1 && pod.Spec.EphemeralContainers[0].TargetContainerName == "c" &&
				pod.Annotations[api.AnnotationHash] == debugged.Hash().String()
		})
		spy := changed
		spy.JSON = []byte(strings.Replace(string(changed.JSON), `"containers":`, `"ephemeralContainers":[{"name":"spy","image":"d","securityContext":{"privileged":true}}],"containers":`, 1))
		refused(t, p.Apply(t.Context(), id, spy), peering.RefusedPodSecurity, false, "privileged")
		// A pod that waits at home may get one before it crosses.
		early := podObject(name, "early", "1m")
		early.JSON = []byte(strings.Replace(string(early.JSON), `"containers":`, `"ephemeralContainers":[{"name":"debug","image":"d"}],"containers":`, 1))
		apply(t, p, id, early)
		eventually(t, "a new pod gets its ephemeral container", func() bool {
			return c.get(t, remote, "early", pod) && len(pod.Spec.EphemeralContainers) == 1 && pod.Annotations[api.AnnotationHash] == early.Hash().String()
		})
		if err := p.Delete(t.Context(), id, early.Ref, new(int64)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func() bool { _, n, err := p.Usage(t.Context(), id); return err == nil && n == 1 })
		if !c.get(t, remote, "web", pod) {
			t.Fatal("the first pod went, too")
		}
	}
	bigger := o
	bigger.JSON = []byte(strings.Replace(string(o.JSON), `"cpu":"600m"`, `"cpu":"600m","ephemeral-storage":"1Gi"`, 1))
	refused(t, p.Apply(t.Context(), id, bigger), peering.RefusedInvalid, false, "neither cpu nor memory")

	c.setPhase(t, remote, "web", corev1.PodSucceeded, "")
	eventually(t, "a pod that ended is free at once", func() bool { _, n, err := p.Usage(t.Context(), id); return err == nil && n == 0 })
	apply(t, p, id, podObject(name, "more", "600m"))
	stop()
	// The ended pod is deleted unnoticed.
	if err := c.owner.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	p, _ = c.start(t)
	h = listen(t, p, id)
	apply(t, p, id, changed)
	eventually(t, "its last word is known", func() bool { s, ph := h.of("web"); return ph == corev1.PodSucceeded && s.Gone })
	c.makesAnother(t, p, id, name)
	if c.get(t, remote, "web", &corev1.Pod{}) {
		t.Error("a pod that ended was run again")
	}
}

// makesAnother applies one more pod and waits until it is created: all earlier ones are then
// handled, too, since pods of one peer are in order.
func (c *cluster) makesAnother(t *testing.T, p *Provider, contract, namespace string) {
	t.Helper()
	apply(t, p, contract, podObject(namespace, "another", "1m"))
	eventually(t, "another pod is made", func() bool { return c.get(t, namespace+"-aaaaaaaa", "another", &corev1.Pod{}) })
}

func testPodLost(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	h := listen(t, p, id)
	o := podObject(name, "web", "1")
	apply(t, p, id, namespaceObject(name, "Suffixed"), o)
	c.setPhase(t, remote, "web", corev1.PodRunning, "10.200.0.8")
	eventually(t, "it runs", func() bool { _, ph := h.of("web"); return ph == corev1.PodRunning })
	if err := c.owner.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: remote, Name: "web"}}, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the loss is reported", func() bool { s, ph := h.of("web"); return ph == corev1.PodFailed && s.Gone })
	apply(t, p, id, o)
	c.makesAnother(t, p, id, name)
	if c.get(t, remote, "web", &corev1.Pod{}) {
		t.Error("a pod that was lost was run again")
	}
	held, err := p.Held(t.Context(), id)
	if err != nil || !slices.Contains(held, peering.Held{Ref: o.Ref, Hash: o.Hash()}) {
		t.Errorf("held %v, %v", held, err)
	}
	// The owner of the provider takes even the memory of it away.
	eventually(t, "the record goes", func() bool {
		op := &api.OffloadedPod{}
		if !c.get(t, remote, "web", op) {
			return true
		}
		_ = c.owner.Delete(t.Context(), op)
		return false
	})
	// An apply that was on its way does not run it again, not even now.
	if err := p.Apply(t.Context(), id, o); err != nil {
		t.Fatal(err)
	}
	if c.get(t, remote, "web", &api.OffloadedPod{}) {
		t.Error("a pod without a record was run again")
	}
}

// The watch reports the delete of a record some time later. An apply in between finds nothing, but
// has to be recognised.
func TestADeletedPodIsNotRunAgainBeforeTheWatchEvent(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	id, name := c.fresh("cpu=2")
	// It does not run, so it receives nothing.
	p, err := New(Config{Client: c.owner, Contracts: c.contract, Namespace: "entente-system", ServiceAccount: "entente-agent"})
	if err != nil {
		t.Fatal(err)
	}
	k, _ := c.contract(id)
	ns, o, record := &corev1.Namespace{}, podObject(name, "web", "1"), &api.OffloadedPod{}
	ns.Name = name
	if err := p.newPod(t.Context(), id, k, ns, o); err != nil || !c.get(t, name, "web", record) {
		t.Fatalf("the first apply: %v", err)
	}
	if err := c.owner.Delete(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	close(p.inv.synced) // until then it removes none
	if !c.get(t, name, "web", record) {
		t.Fatal("the record has no finalizer")
	}
	if err := p.removeFinalizer(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	if c.get(t, name, "web", record) {
		t.Fatal("the record's finalizer was not removed")
	}
	if err := p.newPod(t.Context(), id, k, ns, o); err != nil || c.get(t, name, "web", record) {
		t.Errorf("an apply that was on its way ran it again, or failed: %v", err)
	}
}

func testDelete(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	h := listen(t, p, id)
	o := podObject(name, "web", "1")
	ns := namespaceObject(name, "Suffixed")
	apply(t, p, id, ns, o)
	eventually(t, "the pod is made", func() bool { return c.get(t, remote, "web", &corev1.Pod{}) })
	wrong := o.Ref
	wrong.UID = "another"
	if err := p.Delete(t.Context(), id, wrong, nil); err != nil {
		t.Fatal(err)
	}
	// The pod of that name may be spoken of again after that.
	eventually(t, "a missing pod is reported as gone", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.gone["another"]
	})
	if op := (&api.OffloadedPod{}); !c.get(t, remote, "web", op) || op.DeletionTimestamp != nil {
		t.Fatal("a delete with another UID did something")
	}
	refused(t, p.Delete(t.Context(), id, ns.Ref, nil), peering.RefusedNamespace, true, "go first")
	if err := p.Delete(t.Context(), id, o.Ref, new(int64(1))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod is gone and reported as gone", func() bool {
		s, _ := h.of("web")
		return s.Gone && s.Ref == o.Ref && !c.get(t, remote, "web", &corev1.Pod{}) && !c.get(t, remote, "web", &api.OffloadedPod{})
	})
	if err := p.Delete(t.Context(), id, o.Ref, nil); err != nil {
		t.Errorf("a second delete: %v", err)
	}
	if err := p.Delete(t.Context(), id, ns.Ref, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is gone", func() bool { return !c.get(t, "", remote, &corev1.Namespace{}) })
	if err := p.Delete(t.Context(), id, ns.Ref, nil); err != nil {
		t.Errorf("a second delete of the namespace: %v", err)
	}
}

func testQuota(t *testing.T, c *cluster) {
	p, stop := c.start(t)
	id, name := c.fresh("cpu=1,pods=50")
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	var ok, no int
	var mu sync.Mutex
	try := func(p *Provider, from int) {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				err := p.Apply(t.Context(), id, podObject(name, fmt.Sprint("web-", from+i), "100m"))
				var r *peering.Refusal
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					ok++
				case errors.As(err, &r) && r.Reason == peering.RefusedQuota:
					no++
				default:
					t.Errorf("apply: %v", err)
				}
			})
		}
		wg.Wait()
	}
	try(p, 0)
	if ok != 10 || no != 90 {
		t.Fatalf("%d taken and %d refused, want 10 and 90", ok, no)
	}
	stop()
	p, _ = c.start(t)
	ok, no = 0, 0
	try(p, 1000)
	if ok != 0 || no != 100 {
		t.Fatalf("after a restart %d taken and %d refused, want 0 and 100", ok, no)
	}
}

func testCrash(t *testing.T, c *cluster) {
	p, stop := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	o := podObject(name, "web", "1")
	apply(t, p, id, namespaceObject(name, "Suffixed"), o)
	op := &api.OffloadedPod{}
	eventually(t, "the pod is recorded", func() bool { return c.get(t, remote, "web", op) && op.Status.PodUID != "" })
	stop()
	uid := op.Status.PodUID
	// As if the process had died between making and recording.
	op.Status = api.OffloadedPodStatus{}
	if err := c.owner.Status().Update(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	c.start(t)
	eventually(t, "the pod is found again", func() bool { return c.get(t, remote, "web", op) && op.Status.PodUID == uid })
	pod := &corev1.Pod{}
	if !c.get(t, remote, "web", pod) || string(pod.UID) != uid {
		t.Errorf("pod %s, want %s", pod.UID, uid)
	}
}

func testRefusals(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	pod := func(spec string) peering.Object {
		return thing(peering.KindPod, name, "web", "u1", `{"spec":`+spec+`}`)
	}
	try := func(o peering.Object) error { return p.Apply(t.Context(), id, o) }
	refused(t, try(pod(`{"hostNetwork":true,"containers":[{"name":"c","image":"i"}]}`)), peering.RefusedPodSecurity, false, "host namespaces")
	refused(t, try(pod(`{"containers":[{"name":"c","image":"i","resources":{"requests":{"nvidia.com/gpu":"1"}}}]}`)), peering.RefusedQuota, false, "nvidia.com/gpu")
	refused(t, try(pod(`{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"2"}}}]}`)), peering.RefusedQuota, true, "cpu")
	refused(t, try(pod(`{"containers":[]}`)), peering.RefusedInvalid, false, "containers")
	refused(t, try(pod(`[]`)), peering.RefusedInvalid, false, "read pod")
	refused(t, try(pod(`{"containers":[{"name":"c","image":"i","args":["`+strings.Repeat("x", maxPodBytes)+`"]}]}`)), peering.RefusedInvalid, false, "a pod at most")
	refused(t, try(thing(peering.KindService, name, "s", "u2", `nonsense`)), peering.RefusedInvalid, false, "read")
	k, _ := c.contract(id)
	k.AcceptNew = false
	c.set(id, &k)
	refused(t, try(podObject(name, "web", "1m")), peering.RefusedContract, false, "ending")
}

// A namespace outlives contracts, and enforces the level of those that use it.
func testLevels(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	strict, name := c.fresh("cpu=1,pods=10")
	loose, _ := c.fresh("cpu=1,pods=10")
	k, _ := c.contract(strict)
	k.PodSecurity = podsecurity.Restricted
	c.set(strict, &k)
	remote := name + "-aaaaaaaa"
	level := func() string {
		ns := &corev1.Namespace{}
		if !c.get(t, "", remote, ns) {
			t.Fatal("the namespace is not there")
		}
		return ns.Labels[labelEnforce]
	}
	ns := namespaceObject(name, "Suffixed")
	apply(t, p, strict, ns)
	if got := level(); got != "restricted" {
		t.Fatalf("the level is %s", got)
	}
	apply(t, p, loose, ns)
	if got := level(); got != "baseline" {
		t.Errorf("with a contract of baseline the level is %s", got)
	}
	eventually(t, "the pod of the new contract is made", func() bool {
		_ = p.Apply(t.Context(), loose, podObject(name, "web", "1"))
		return c.get(t, remote, "web", &corev1.Pod{})
	})
	refused(t, p.Apply(t.Context(), strict, podObject(name, "more", "1")), peering.RefusedPodSecurity, false, "restricted")
	// A contract that is changed needs no new namespace.
	c.set(loose, nil)
	eventually(t, "the other contract is over", func() bool {
		left, err := p.CloseContract(t.Context(), peerA, loose)
		return err == nil && left.None()
	})
	if got := level(); got != "restricted" {
		t.Errorf("after the contract of baseline the level is %s", got)
	}
	k.PodSecurity = baseline
	c.set(strict, &k)
	eventually(t, "a pod of the changed contract is made", func() bool {
		_ = p.Apply(t.Context(), strict, podObject(name, "later", "1"))
		return c.get(t, remote, "later", &corev1.Pod{})
	})
}

// What the API server does not take is refused, and not a pod that waits for ever.
func TestRefusalsOnARealAPIServer(t *testing.T) {
	c := newReal(t)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1,pods=10")
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	pod := func(spec string) peering.Object {
		return thing(peering.KindPod, name, "web", "u1", `{"spec":`+spec+`}`)
	}
	refused(t, p.Apply(t.Context(), id, pod(`{"containers":[{"name":"C_","image":"i"}]}`)), peering.RefusedInvalid, false, "spec.containers[0].name")
	if c.get(t, name+"-aaaaaaaa", "web", &api.OffloadedPod{}) {
		t.Error("the refused pod is recorded")
	}
	// The provider's own admission refuses in the same way, and may accept later.
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: name + "-aaaaaaaa", Name: "none"}}
	quota.Spec.Hard = corev1.ResourceList{"pods": resource.MustParse("0")}
	if err := c.owner.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, quota.Spec.Hard
	if err := c.owner.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	refused(t, p.Apply(t.Context(), id, podObject(name, "web", "1m")), peering.RefusedInvalid, true, "exceeded quota")
	if err := c.owner.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	merged := pod(`{"containers":[{"name":"c","image":"i"}],"topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"ScheduleAnyway",
	 "matchLabelKeys":["pod-template-hash"],"labelSelector":{"matchExpressions":[{"key":"pod-template-hash","operator":"In","values":["1"]}]}}]}`)
	eventually(t, "a pod whose match label keys were merged at home is made", func() bool {
		_ = p.Apply(t.Context(), id, merged)
		return c.get(t, name+"-aaaaaaaa", "web", &corev1.Pod{})
	})
}

func testServices(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	o := podObject(name, "web", "100m")
	apply(t, p, id, namespaceObject(name, "Suffixed"), o)
	c.setPhase(t, remote, "web", corev1.PodRunning, "10.200.0.9")
	atHome, abroad, away := end("10.1.0.5", 8080), end("10.241.3.9", 8080), end("192.168.0.1", 8080)
	abroad.PodUID = o.Ref.UID
	b, err := json.Marshal(service(false, atHome, abroad, away))
	if err != nil {
		t.Fatal(err)
	}
	svc := thing(peering.KindService, name, "web", "us", string(b))
	apply(t, p, id, svc)
	addresses := func() []string { return c.addressesIn(t, remote) }
	eventually(t, "the endpoints are there", func() bool { return slices.Equal(addresses(), []string{"10.200.0.9", "10.241.0.5"}) })
	got := &corev1.Service{}
	eventually(t, "the omitted endpoints are noted", func() bool {
		return c.get(t, remote, "web", got) && strings.Contains(got.Annotations[noteDropped], "192.168.0.1")
	})
	if len(got.Spec.Selector) > 0 || len(got.Spec.Ports) != 2 {
		t.Errorf("service %+v", got.Spec)
	}
	c.setPhase(t, remote, "web", corev1.PodRunning, "10.200.0.77")
	eventually(t, "a pod's new address follows", func() bool { return slices.Equal(addresses(), []string{"10.200.0.77", "10.241.0.5"}) })
	if served, known := p.Served(id, []string{name}); !known || len(served) != 1 || !slices.Equal(served[name], []endpoints.Served{{Addr: netip.MustParseAddr("10.200.0.77"), Protocol: corev1.ProtocolTCP, Port: 8080}}) {
		t.Errorf("served are %v, known %v: want the pod here alone, on the port of its Service", served, known)
	}
	if served, known := p.Served(id, []string{"another"}); !known || len(served) > 0 {
		t.Errorf("of a namespace that is not named %v is served", served)
	}
	if served, known := p.Served("another", []string{name}); !known || len(served) > 0 {
		t.Errorf("another contract serves %v", served)
	}
	if running, err := p.Addresses(t.Context(), id); err != nil || len(running) != 1 || !slices.Equal(running[name], []netip.Addr{netip.MustParseAddr("10.200.0.77")}) {
		t.Errorf("running are %v, %v: want the pod here alone", running, err)
	}
	// Its own pods first, as long as one is ready.
	say := func(in peering.ServiceObject) {
		if b, err = json.Marshal(in); err != nil {
			t.Fatal(err)
		}
		svc.JSON = b
		apply(t, p, id, svc)
	}
	own := service(false, atHome, abroad)
	own.OwnFirst = true
	say(own)
	eventually(t, "its own pods come first", func() bool { return slices.Equal(addresses(), []string{"10.200.0.77"}) })
	// Those here are preferred among each other as the consumer's Service says.
	c.place(t, remote, "web", "n1")
	own.TrafficDistribution = corev1.ServiceTrafficDistributionPreferSameNode
	say(own)
	eventually(t, "its own pods are preferred on their node and in their zone", func() bool {
		var list discoveryv1.EndpointSliceList
		if err := c.owner.List(t.Context(), &list, client.InNamespace(remote)); err != nil || len(list.Items) != 1 || len(list.Items[0].Endpoints) != 1 {
			return false
		}
		e := list.Items[0].Endpoints[0]
		return e.NodeName != nil && *e.NodeName == "n1" && e.Zone != nil && *e.Zone == "a" && e.Hints != nil &&
			len(e.Hints.ForZones) == 1 && e.Hints.ForZones[0].Name == "a" && len(e.Hints.ForNodes) == 1 && e.Hints.ForNodes[0].Name == "n1"
	})
	own.Endpoints[1].Ready = false
	say(own)
	eventually(t, "and the others when none is ready", func() bool { return slices.Equal(addresses(), []string{"10.200.0.77", "10.241.0.5"}) })
	b, err = json.Marshal(service(true, atHome))
	if err != nil {
		t.Fatal(err)
	}
	svc.JSON = b
	apply(t, p, id, svc)
	eventually(t, "a service that became headless is one", func() bool {
		return c.get(t, remote, "web", got) && got.Spec.ClusterIP == "None" && slices.Equal(addresses(), []string{"10.241.0.5"})
	})
	svc.JSON = []byte(`{"headless":true,"ports":[],"externalName":"db.example.org"}`)
	apply(t, p, id, svc)
	eventually(t, "an alias of another name has nothing else", func() bool {
		return c.get(t, remote, "web", got) && got.Annotations[api.AnnotationExternalName] == "db.example.org" &&
			got.Spec.ClusterIP == "None" && got.Spec.ExternalName == "" && len(got.Spec.Ports)+len(addresses()) == 0
	})
	svc.JSON = []byte(`{"headless":true,"ports":[],"externalName":"10.96.0.1"}`)
	refused(t, p.Apply(t.Context(), id, svc), peering.RefusedInvalid, false, "reads as an address")
	svc.JSON = b
	apply(t, p, id, svc)
	eventually(t, "a service that is no longer an alias has endpoints", func() bool {
		return c.get(t, remote, "web", got) && got.Annotations[api.AnnotationExternalName] == "" && len(got.Spec.Ports) == 2 && slices.Equal(addresses(), []string{"10.241.0.5"})
	})
	if err := p.Delete(t.Context(), id, svc.Ref, nil); err != nil || c.get(t, remote, "web", got) || len(addresses()) > 0 {
		t.Errorf("after the delete: %v, %v", err, addresses())
	}
}

func testEvents(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	h := listen(t, p, id)
	apply(t, p, id, namespaceObject(name, "Suffixed"), podObject(name, "web", "1"))
	pod := &corev1.Pod{}
	eventually(t, "the pod is made", func() bool { return c.get(t, remote, "web", pod) })
	n := 0
	eventually(t, "the event comes back", func() bool {
		n++
		e := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: remote, Name: fmt.Sprint("e", n)},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: remote, Name: "web", UID: pod.UID},
			Type:           "Warning", Reason: "BackOff", Message: "pulling", Count: 3,
		}
		if err := c.owner.Create(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.events) > 0 && h.events[0].Reason == "BackOff" && h.events[0].Count == 3 && h.events[0].Ref.Name == "web"
	})
}

func testClose(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	other, own := c.fresh("cpu=1")
	web, side := podObject(name, "web", "100m"), podObject(name, "side", "100m")
	cfg := thing(peering.KindConfigMap, name, "cfg", "u1", `{}`)
	apply(t, p, id, namespaceObject(name, "Suffixed"), namespaceObject(own, "Suffixed"), web, cfg,
		thing(peering.KindSecret, own, "sec", "u2", `{}`), podObject(own, "alone", "100m"))
	apply(t, p, other, namespaceObject(name, "Suffixed"), side)
	eventually(t, "the pods are made", func() bool {
		return c.get(t, name+"-aaaaaaaa", "web", &corev1.Pod{}) && c.get(t, name+"-aaaaaaaa", "side", &corev1.Pod{}) && c.get(t, own+"-aaaaaaaa", "alone", &corev1.Pod{})
	})
	c.set(id, nil)
	var last string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the last remainder: ", last)
		}
	})
	closed := func(id string) func() bool {
		return func() bool {
			left, err := p.CloseContract(t.Context(), peerA, id)
			if err != nil || !left.None() {
				last = fmt.Sprintf("%+v, %v", left, err)
			}
			return err == nil && left.None()
		}
	}
	eventually(t, "nothing is left", closed(id))
	if c.get(t, "", own+"-aaaaaaaa", &corev1.Namespace{}) || c.get(t, name+"-aaaaaaaa", "web", &api.OffloadedPod{}) || c.get(t, name+"-aaaaaaaa", "cfg", &corev1.ConfigMap{}) {
		t.Error("something of the contract is left")
	}
	if !c.get(t, name+"-aaaaaaaa", "side", &corev1.Pod{}) {
		t.Error("another contract's pod went")
	}
	refused(t, p.Apply(t.Context(), id, web), peering.RefusedContract, false, "closed")
	c.set(other, nil)
	eventually(t, "nothing is left of the other either", closed(other))
	if c.get(t, "", name+"-aaaaaaaa", &corev1.Namespace{}) {
		t.Error("an unused namespace is left")
	}
	if left, err := p.CloseContract(t.Context(), peerA, "c-never"); err != nil || !left.None() {
		t.Errorf("closing an unknown contract: %v %v", left, err)
	}
}

// The agent creates a namespace first and its RoleBinding there afterwards. If it dies in between,
// it has no rights in the namespace.
func testVacateWithoutRights(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	k, _ := c.contract(id)
	orphan := func(t *testing.T, name string) *corev1.Namespace {
		t.Helper()
		ref := namespaceObject(name, "Suffixed").Ref
		ns, err := p.makeNamespace(t.Context(), k, ref, peering.NamespaceObject{Mapping: string(api.MappingSuffixed)}, name+"-aaaaaaaa")
		if err != nil {
			t.Fatal(err)
		}
		if c.get(t, ns.Name, bindingName, &rbacv1.RoleBinding{}) {
			t.Fatal("the namespace was born with rights in it, so this tests nothing")
		}
		if err := p.client.Get(t.Context(), types.NamespacedName{Namespace: ns.Name, Name: recordName}, &corev1.ConfigMap{}); !apierrors.IsForbidden(err) {
			t.Fatalf("the agent may look into the namespace: %v", err)
		}
		return ns
	}
	t.Run("an offload that is repeated takes the rights", func(t *testing.T) {
		ns := orphan(t, name)
		apply(t, p, id, namespaceObject(name, "Suffixed"))
		if !c.get(t, ns.Name, bindingName, &rbacv1.RoleBinding{}) || !c.get(t, ns.Name, recordName, &corev1.ConfigMap{}) {
			t.Error("the namespace has no role binding, or no record")
		}
		if err := p.vacate(t.Context(), id, ns); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the namespace is gone", func() bool { return !c.get(t, "", ns.Name, &corev1.Namespace{}) })
	})
	t.Run("vacating takes the rights and then the namespace", func(t *testing.T) {
		ns := orphan(t, name+"-b")
		if err := p.vacate(t.Context(), id, ns); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the namespace is gone", func() bool { return !c.get(t, "", ns.Name, &corev1.Namespace{}) })
	})
	t.Run("closing the contract does too", func(t *testing.T) {
		ns := orphan(t, name+"-c")
		c.set(id, nil)
		eventually(t, "nothing is left", func() bool {
			left, err := p.CloseContract(t.Context(), peerA, id)
			if err != nil {
				t.Fatalf("close: %v", err)
			}
			return left.None()
		})
		if c.get(t, "", ns.Name, &corev1.Namespace{}) {
			t.Error("the namespace is left")
		}
	})
	t.Run("nothing is taken where the namespace is another's by now", func(t *testing.T) {
		ns := orphan(t, name+"-d")
		old := ns.DeepCopy()
		old.UID = "an older one"
		if err := p.vacate(t.Context(), id, old); err != nil {
			t.Fatal(err)
		}
		if c.get(t, ns.Name, bindingName, &rbacv1.RoleBinding{}) || !c.get(t, "", ns.Name, &corev1.Namespace{}) {
			t.Error("a younger namespace of the same name was touched")
		}
	})
}

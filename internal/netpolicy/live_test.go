package netpolicy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

// mirror is what a provider was asked for.
type mirror struct {
	mu    sync.Mutex
	has   map[peering.ObjectRef]Policy
	order []string
}

func (m *mirror) want(o peering.Object) {
	p, err := Read(o.JSON)
	if err != nil {
		panic(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.has[o.Ref] = *p
	m.order = append(m.order, o.Ref.Name)
}

func (m *mirror) unwant(ref peering.ObjectRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.has, ref)
}

func (m *mirror) of(name string) (peering.ObjectRef, Policy, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ref, p := range m.has {
		if ref.Name == name {
			return ref, p, true
		}
	}
	return peering.ObjectRef{}, Policy{}, false
}

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

// liveHome is a home on an API server, with the rights of the agent.
type liveHome struct {
	t        *testing.T
	owner    kubernetes.Interface
	agent    kubernetes.Interface
	home     *Home
	recorder *events.FakeRecorder
}

func newLiveHome(t *testing.T) *liveHome {
	t.Helper()
	server := charttest.StartAPIServer(t)
	owner, err := kubernetes.NewForConfig(server.Owner)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := kubernetes.NewForConfig(server.As("entente-agent"))
	if err != nil {
		t.Fatal(err)
	}
	l := &liveHome{t: t, owner: owner, agent: agent, recorder: events.NewFakeRecorder(100)}
	l.home = l.another()
	return l
}

// another is the home of another process.
func (l *liveHome) another() *Home {
	return NewHome(Config{
		Client: l.agent, Own: func() ([]netip.Prefix, error) { return []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, nil },
		Abroad: func(peering.ClusterID) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("198.18.3.0/24")} },
		Events: l.recorder, Log: slog.New(slog.NewTextHandler(l.t.Output(), nil)),
	})
}

func (l *liveHome) run() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.home.Run(l.t.Context()); err != nil {
			l.t.Error(err)
		}
	}()
	l.t.Cleanup(func() { <-done })
}

func (l *liveHome) namespace(name string, labels map[string]string) {
	l.t.Helper()
	if _, err := l.owner.CoreV1().Namespaces().Create(l.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// pod makes a pod on a node, and returns it as it is sent.
func (l *liveHome) pod(ns, name, app, node, ip string) peering.Object {
	l.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		}}},
	}
	p, err := l.owner.CoreV1().Pods(ns).Create(l.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	if p, err = l.owner.CoreV1().Pods(ns).UpdateStatus(l.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	data, err := json.Marshal(p)
	if err != nil {
		l.t.Fatal(err)
	}
	return peering.Object{Ref: peering.ObjectRef{Kind: peering.KindPod, Namespace: ns, Name: name, UID: string(p.UID)}, JSON: data}
}

func (l *liveHome) policy(ns, name string, spec networkingv1.NetworkPolicySpec) peering.ObjectRef {
	l.t.Helper()
	np, err := l.owner.NetworkingV1().NetworkPolicies(ns).Create(l.t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	return refOf(np)
}

func (l *liveHome) event(words string) {
	l.t.Helper()
	end := time.After(20 * time.Second)
	for {
		select {
		case text := <-l.recorder.Events:
			if strings.Contains(text, words) {
				return
			}
			l.t.Logf("another event: %s", text)
		case <-end:
			l.t.Fatalf("no event has %q", words)
		}
	}
}

// TestPoliciesFollowPodsOnARealAPIServer sends pods, and checks which policies are sent before them, with only the rights
// that the chart grants the agent.
func TestPoliciesFollowPodsOnARealAPIServer(t *testing.T) {
	l := newLiveHome(t)
	l.namespace("shop", map[string]string{"entente.dev/offloading": "enabled"})
	l.namespace("data", map[string]string{"team": "b"})
	dns, err := l.owner.CoreV1().Services("kube-system").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "dns"}, Ports: []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(1053)},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.home.cfg.Resolvers = []netip.Addr{netip.MustParseAddr(dns.Spec.ClusterIP)}
	l.pod("kube-system", "dns", "dns", "n1", "10.1.0.9")
	l.pod("shop", "client", "client", "n1", "10.1.0.5")
	l.pod("data", "db", "db", "n1", "10.1.0.6")
	web := networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}},
			{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}},
		}}},
		Egress: []networkingv1.NetworkPolicyEgressRule{{
			To:    []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "kube-system"}}}},
			Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolUDP), Port: new(intstr.FromInt32(1053))}},
		}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	}
	first := l.policy("shop", "web", web)
	l.policy("shop", "other", networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}})
	m := &mirror{has: map[peering.ObjectRef]Policy{}}
	c := l.home.Open(ContractConfig{ID: "c1", Peer: "office", Node: "office.entente.dev", Want: m.want, Unwant: m.unwant})
	l.run()
	eventually(t, "all is known", l.home.known)

	// The policy is wanted before Pod returns, and so before the pod.
	pod := l.pod("shop", "web", "web", "office.entente.dev", "198.18.3.1")
	c.Pod(pod)
	ref, p, ok := m.of("web")
	if !ok || ref != first || len(m.has) != 1 {
		t.Fatalf("wanted before the pod: %v", m.order)
	}
	if p.Ingress == nil || len(*p.Ingress) != 1 || !slices.Equal((*p.Ingress)[0].Addresses, []string{"10.1.0.5", "10.1.0.6"}) || fmt.Sprint((*p.Ingress)[0].Pods) == "[]" {
		t.Errorf("ingress is %+v", p.Ingress)
	}
	if !slices.Equal(p.Names, []corev1.Protocol{"UDP"}) {
		t.Errorf("names are asked for by %v", p.Names)
	}
	addresses := func() []string {
		_, p, _ := m.of("web")
		if p.Ingress == nil || len(*p.Ingress) == 0 {
			return nil
		}
		return (*p.Ingress)[0].Addresses
	}
	l.pod("shop", "client-2", "client", "n1", "10.1.0.7")
	eventually(t, "a new pod is among those that are allowed", func() bool { return slices.Equal(addresses(), []string{"10.1.0.5", "10.1.0.6", "10.1.0.7"}) })
	l.pod("shop", "client-3", "client", "office.entente.dev", "198.18.3.7")
	if err := l.owner.CoreV1().Pods("shop").Delete(t.Context(), "client", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one that went is not, nor by its address one that is at the provider", func() bool { return slices.Equal(addresses(), []string{"10.1.0.6", "10.1.0.7"}) })
	if _, err := l.owner.CoreV1().Namespaces().Patch(t.Context(), "data", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"c"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a namespace that is not selected any more is closed", func() bool { return slices.Equal(addresses(), []string{"10.1.0.7"}) })

	// The provider's response, and what does not cross, are events of the policy.
	_, p, _ = m.of("web")
	o, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	no := &peering.Refusal{Reason: peering.RefusedInvalid, Retryable: true, Message: "the provider takes no NetworkPolicies"}
	hash := peering.Object{Ref: first, JSON: o}.Hash()
	c.Ack(peering.Ack{Ref: first, Hash: hash, Refusal: no})
	l.event("Warning NetworkPolicyNotApplied the provider of office.entente.dev does not accept it")
	if got := c.Problem("shop"); !strings.HasPrefix(got, "NetworkPolicy web: the provider of office.entente.dev does not accept it") {
		t.Errorf("the namespace's problem is %q", got)
	}
	c.Ack(peering.Ack{Ref: first, Hash: hash})
	l.event("Normal NetworkPolicyApplied")
	if got := c.Problem("shop") + c.Problem("data"); got != "" {
		t.Errorf("the problem is %q", got)
	}
	web.Ingress[0].From = append(web.Ingress[0].From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "192.168.0.0/24"}})
	np, err := l.owner.NetworkingV1().NetworkPolicies("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	np.Spec = web
	if _, err := l.owner.NetworkingV1().NetworkPolicies("shop").Update(t.Context(), np, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.event("Warning NetworkPolicyNarrowed at the provider of office.entente.dev less is open than here: ingress rule 1: 192.168.0.0/24 is a private range")

	// Nothing that is wanted is an orphan; what a provider has beside it is.
	if c.Orphan(first) || !c.Orphan(peering.ObjectRef{Kind: peering.KindNetworkPolicy, Namespace: "shop", Name: "other", UID: "u"}) {
		t.Error("it is wrong what is an orphan")
	}
	// A pod that ends keeps its policies until it is gone.
	c.Ending(pod.Ref)
	if _, _, ok := m.of("web"); !ok {
		t.Error("a policy went before its pod")
	}
	c.Gone(pod.Ref)
	eventually(t, "no policy is wanted", func() bool { _, _, ok := m.of("web"); return !ok })
	if _, err := l.agent.NetworkingV1().NetworkPolicies("shop").Create(t.Context(), np, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the agent makes policies at home: %v", err)
	}
	endsLater(t, l)
}

// endsLater begins with a pod that this process never sent.
func endsLater(t *testing.T, l *liveHome) {
	t.Helper()
	l.namespace("late", map[string]string{"entente.dev/offloading": "enabled"})
	l.policy("late", "late", networkingv1.NetworkPolicySpec{})
	pod := l.pod("late", "web", "web", "office.entente.dev", "198.18.3.1")
	m := &mirror{has: map[peering.ObjectRef]Policy{}}
	l.home = l.another()
	c := l.home.Open(ContractConfig{ID: "c1", Peer: "office", Node: "office.entente.dev", Want: m.want, Unwant: m.unwant})
	if c.Orphan(peering.ObjectRef{Kind: peering.KindNetworkPolicy, Namespace: "late", Name: "late", UID: "u"}) {
		t.Error("a policy is an orphan before anything is known")
	}
	c.Ending(pod.Ref)
	c.Ending(peering.ObjectRef{Kind: peering.KindPod, Namespace: "late", Name: "never", UID: "n"})
	l.run()
	eventually(t, "its policy is wanted", func() bool { _, _, ok := m.of("late"); return ok })
	c.Gone(pod.Ref)
	eventually(t, "its policy goes", func() bool { _, _, ok := m.of("late"); return !ok })
	c.Close()
	l.home.Readdressed()
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/integration/puppet"
	"github.com/entente-dev/entente/peering"
)

// The limits of docs/limits.md, all of which the peer reaches at once. Of what is limited by namespace, too, it has 1 % less:
// the rest is for namespaces that have less than is free.
// Services are fewer, so that each has four ports.
const (
	limitContracts  = 64
	limitNamespaces = 256
	limitConfigs    = 4_950
	limitServices   = 990
	limitPorts      = 3_960
	limitEndpoints  = 19_800
	// Ports of endpoints, and EndpointSlices.
	limitEndpointPorts = 59_400
	limitSlices        = 4_950
	limitPods          = 9_900
	limitBytes         = 128 << 20
	limitOffers        = 32
	limitGateways      = 64
	limitNodes         = 64
	limitSaid          = 256
)

const (
	// creates is how many pods the honest peer has made for each measure.
	creates = 200
	// homePods is how many pods of the cluster's own run at the peer.
	homePods = 500
	// patience is how long a step may take.
	patience = 2 * time.Hour
	// wider is how many times as wide the budget of writes is while the peer gets there.
	wider = 32
	// count is the pause between two counts of all that is there, which are work for the
	// API server, and mostMissed how many of them in a row may fail.
	count      = time.Minute
	mostMissed = 10
	// look is the pause between two polls.
	look = 200 * time.Millisecond
)

// limitsResult is an agent with a peer at all of its limits.
type limitsResult struct {
	// Percent is how much of the limits was used, and Limit the agent's memory limit.
	Percent int     `json:"percent"`
	Limit   float64 `json:"limit"`
	// Took is how long it took the peer to get there, in seconds, and Has what was
	// there then.
	Took  float64        `json:"took"`
	Has   map[string]int `json:"has"`
	Steps []limitsStep   `json:"steps"`
}

// limitsStep is the agent at one point: its size, the most memory that it had
// resident up to then since the step before, and how long a pod of an honest peer
// took from its word to the peer's word that it runs.
type limitsStep struct {
	What string  `json:"what"`
	Size size    `json:"size"`
	Peak float64 `json:"peak"`
	Pods *spread `json:"pods,omitempty"`
	P95  float64 `json:"p95,omitempty"`
}

// hoard has what one mirror of a peer declares and receives.
type hoard struct {
	mirror *client.Mirror

	mu      sync.Mutex
	refused map[string]int
	running map[peering.ObjectRef]chan struct{}
	gone    map[peering.ObjectRef]chan struct{}
}

// hoarding runs a mirror until ctx ends.
func hoarding(ctx context.Context, g *errgroup.Group, p *puppet.Peer, contract string) (*hoard, error) {
	h := &hoard{
		refused: map[string]int{},
		running: map[peering.ObjectRef]chan struct{}{}, gone: map[peering.ObjectRef]chan struct{}{},
	}
	var err error
	if h.mirror, err = client.NewMirror(client.MirrorConfig{Contract: contract, Conn: p.Conn(), Handler: h, MaxBackoff: time.Second}); err != nil {
		return nil, err
	}
	h.mirror.Ready()
	g.Go(func() error { return h.mirror.Run(ctx) })
	return h, nil
}

// Connected implements client.MirrorHandler.
func (*hoard) Connected(bool) {}

// PodEvent implements client.MirrorHandler.
func (*hoard) PodEvent(peering.PodEvent) {}

// Orphan implements client.MirrorHandler.
func (*hoard) Orphan(context.Context, peering.Held) bool { return false }

// Ack implements client.MirrorHandler.
func (h *hoard) Ack(a peering.Ack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.Refusal != nil {
		h.refused[a.Refusal.Message]++
	}
}

// PodStatus implements client.MirrorHandler.
func (h *hoard) PodStatus(s peering.PodStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	once := func(of map[peering.ObjectRef]chan struct{}) {
		if done := of[s.Ref]; done != nil {
			delete(of, s.Ref)
			close(done)
		}
	}
	if s.Gone {
		once(h.gone)
		return
	}
	var status corev1.PodStatus
	if json.Unmarshal(s.Status, &status) == nil && status.Phase == corev1.PodRunning {
		once(h.running)
	}
}

// want wants an object; o is what crosses of it.
func (h *hoard) want(kind peering.Kind, namespace, name string, o any) {
	h.mirror.Want(peering.Object{Ref: refOf(kind, namespace, name), JSON: mustJSON(o)})
}

func refOf(kind peering.Kind, namespace, name string) peering.ObjectRef {
	return peering.ObjectRef{Kind: kind, Namespace: namespace, Name: name, UID: "u-" + namespace + "-" + name}
}

// plainPod is a pod that asks for next to nothing, with so many volumes: the smallest
// text that takes much memory to hold.
func plainPod(round, volumes int) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"round": strconv.Itoa(round)}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "none.example/none:1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}},
		}}},
	}
	for i := range volumes {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
			Name: fmt.Sprint("v", i), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		})
	}
	return p
}

// hostile is the peer that reaches its limits.
type hostile struct {
	*puppet.Peer
	statuses *puppet.Pods
	hoards   []*hoard
	percent  int
	of       func(limit int) int
}

// serviceOf is a Service that makes as many EndpointSlices as it may, because of the
// ports of its endpoints.
func (h *hostile) serviceOf(round int, prefix netip.Prefix) peering.ServiceObject {
	out := peering.ServiceObject{Labels: map[string]string{"round": strconv.Itoa(round)}}
	const ports, endpoints = limitPorts / limitServices, limitEndpoints / limitServices
	for i := range ports {
		out.Ports = append(out.Ports, peering.ServicePort{Name: fmt.Sprint("p", i), Protocol: "TCP", Port: int32(1000 + i)})
	}
	addr := prefix.Addr()
	for i := range endpoints {
		addr = addr.Next()
		numbers := map[string]int32{}
		for n := range limitEndpointPorts / limitEndpoints {
			numbers[fmt.Sprint("p", n)] = int32(1 + i/(limitEndpoints/limitSlices)*100 + n)
		}
		out.Endpoints = append(out.Endpoints, peering.ServiceEndpoint{Address: addr.String(), Ready: true, Serving: true, Ports: numbers})
	}
	return out
}

// fill wants as much as there may be, in its round's form.
func (h *hostile) fill(round, volumes int) {
	namespaces := max(h.of(limitNamespaces), len(h.hoards))
	space := func(i int) (*hoard, string) {
		i %= namespaces
		return h.hoards[i%len(h.hoards)], fmt.Sprint("space-", i)
	}
	if round == 0 {
		for i := range namespaces {
			own, name := space(i)
			own.want(peering.KindNamespace, "", name, peering.NamespaceObject{Mapping: "Suffixed"})
		}
	}
	for i := range h.of(limitConfigs) {
		own, in := space(i)
		own.want(peering.KindConfigMap, in, fmt.Sprint("config-", i), corev1.ConfigMap{Data: map[string]string{"x": fmt.Sprintf("%01000d", round)}})
	}
	for i := range h.of(limitServices) {
		own, in := space(i)
		own.want(peering.KindService, in, fmt.Sprint("service-", i), h.serviceOf(round, h.Prefix()))
	}
	for i := range h.of(limitPods) {
		own, in := space(i)
		own.want(peering.KindPod, in, fmt.Sprint("pod-", i), plainPod(round, volumes))
	}
}

// longest is a status as long as one may be, that never stays the same.
func longest(ref peering.ObjectRef, n int) peering.PodStatus {
	text := fmt.Sprintf("%08d ", n) + strings.Repeat("x", 1015)
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.64.2.7", Message: text, Reason: text[:100]}
	status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for i := range 12 {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: corev1.PodConditionType(fmt.Sprint("example.org/c", i)), Status: corev1.ConditionTrue, Reason: "Long", Message: text,
		})
	}
	status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Image: text[:500], ImageID: text[:500], ContainerID: text[:500],
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: strings.Repeat(text, 4)}},
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "Long", Message: text}},
	}}
	b, err := json.Marshal(status)
	if err != nil {
		panic(err) // it is made here
	}
	return peering.PodStatus{Ref: ref, RemoteName: "far/" + ref.Name, RemoteUID: "r-" + ref.UID, Status: b}
}

// largestOffer is an offer as large as one may be.
func largestOffer() (peering.Offer, error) {
	resources, err := peering.ParseResources(map[string]string{"cpu": "1000", "memory": "1000Gi", "pods": "10000"})
	o := peering.Offer{Available: true, Resources: resources, Message: strings.Repeat("x", peering.MaxMessageLen), Duration: 24 * time.Hour, NodeLabels: map[string]string{}}
	for i := range peering.MaxNodeLabels {
		o.NodeLabels[fmt.Sprintf("example.org/label-%d", i)] = strings.Repeat("x", peering.MaxLabelValueLen)
	}
	for i := range peering.MaxPools {
		p := peering.OfferedPool{Name: fmt.Sprintf("pool-%02d", i), Resources: resources, NodeLabels: map[string]string{}}
		for key, value := range o.NodeLabels {
			if p.Size() > peering.MaxPoolsSize/peering.MaxPools-200 {
				break
			}
			p.NodeLabels[key] = value
		}
		o.Pools = append(o.Pools, p)
	}
	size := 0
	for i := range peering.MaxServices {
		s := peering.OfferedService{Namespace: "offered", Name: fmt.Sprintf("service-%04d", i), Type: peering.ServiceClusterSetIP}
		s.Ports = []peering.ServicePort{{Name: "p", Protocol: "TCP", Port: 1}}
		for size += s.Size(); size <= peering.MaxServicesSize*(i+1)/peering.MaxServices-200 && len(s.Ports) < peering.MaxServicePorts; size += 70 {
			s.Ports = append(s.Ports, peering.ServicePort{Name: fmt.Sprint("p", len(s.Ports)), Protocol: "TCP", Port: int32(len(s.Ports) + 1)})
		}
		o.Services = append(o.Services, s)
	}
	return o, err
}

// wide builds the agent with a budget of writes so many times as wide. By what the chart's
// agent lets a peer have written, it takes hours to reach all limits, and what it holds
// then is the same.
func (b *bench) wide(ctx context.Context) error {
	name := filepath.Join(b.root, "internal", "offload", "limits.go")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	const rate = "budgetRate      = 512 << 10"
	if strings.Count(string(text), rate) != 1 {
		return fmt.Errorf("%s does not say %s", name, rate)
	}
	other := filepath.Join(b.dir, "limits.go")
	if err := os.WriteFile(other, []byte(strings.Replace(string(text), rate, fmt.Sprintf("%s * %d", rate, wider), 1)), 0o600); err != nil {
		return err
	}
	return build(ctx, b.root, b.binary, map[string]string{name: other})
}

// limits measures an agent, within the memory that the chart gives it, with one peer
// at all of its limits, and what that costs another.
func (b *bench) limits(ctx context.Context, percent int) (r limitsResult, err error) {
	dir := filepath.Join(b.dir, "limits")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, err
	}
	if err := b.wide(ctx); err != nil {
		return r, err
	}
	a, err := startAgent(ctx, provider, dir, b.root, b.binary, puppet.PodCIDR.String())
	if err != nil {
		return r, err
	}
	defer a.stop()
	defer func() {
		if err != nil {
			err = errors.Join(err, b.keepLog(a, 1))
		}
	}()
	r.Percent, r.Limit = percent, float64(a.memory)
	if err := a.grow(ctx); err != nil {
		return r, err
	}
	offer, err := largestOffer()
	if err != nil {
		return r, err
	}
	living, end := context.WithCancel(ctx)
	var lives errgroup.Group
	defer func() {
		end()
		err = errors.Join(err, lives.Wait())
	}()
	tokens, err := a.tokens(ctx, 2)
	if err != nil {
		return r, err
	}
	bad := &hostile{statuses: &puppet.Pods{Status: longest}, percent: percent, of: func(limit int) int { return limit * percent / 100 }}
	honest, err := puppet.New(ctx, 1, nil)
	if err != nil {
		return r, err
	}
	if bad.Peer, err = puppet.New(ctx, 2, &puppet.Provider{Offer: offer, Pods: bad.statuses}); err != nil {
		return r, err
	}
	for i, p := range []*puppet.Peer{honest, bad.Peer} {
		lives.Go(func() error { return p.Run(living) })
		if _, err := p.Join(ctx, tokens[i]); err != nil {
			return r, err
		}
	}
	terms, err := honest.Contract(ctx, peering.Ask{Network: true}, "cpu=4", "memory=4Gi", fmt.Sprint("pods=", 2*creates))
	if err != nil {
		return r, err
	}
	own, err := hoarding(living, &lives, honest, terms.ContractID)
	if err != nil {
		return r, err
	}
	own.want(peering.KindNamespace, "", "honest", peering.NamespaceObject{Mapping: "Suffixed"})
	step := func(what string, measure bool) error {
		s := limitsStep{What: what}
		if measure {
			b.say("%s: an honest peer has %d pods made, one after the other", what, creates)
			took, err := own.podByPod(ctx, len(r.Steps))
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			s.Pods = &spread{P50: percentile(took, 50), P99: percentile(took, 99), Max: took[len(took)-1]}
			s.P95 = percentile(took, 95)
		}
		if s.Peak, err = a.peak(); err != nil {
			return err
		}
		if s.Size, err = a.size(ctx); err != nil {
			return err
		}
		r.Steps = append(r.Steps, s)
		b.say("%s: RSS %.0f MiB, peak %.0f MiB, heap %.0f MiB", what, s.Size.RSS/mib, s.Peak/mib, s.Size.Heap/mib)
		if measure {
			b.say("%s: a pod of the honest peer takes %.0f ms (p50), %.0f ms (p95)", what, s.Pods.P50, s.P95)
		}
		if b.keep != "" {
			name := strings.ReplaceAll(what, " ", "-")
			if err := a.profile(ctx, "/debug/pprof/heap", filepath.Join(b.keep, "limits-"+name+".pprof")); err != nil {
				return err
			}
		}
		return nil
	}
	alive := func(ctx context.Context) context.Context { return a.lives(ctx) }
	if err := step("without it", true); err != nil {
		return r, err
	}

	b.say("the peer goes to %d %% of its limits", percent)
	begin := time.Now()
	if err := bad.reach(alive(ctx), living, &lives, a); err != nil {
		return r, err
	}
	if r.Has, err = a.follows(alive(ctx), bad, b.say); err != nil {
		return r, err
	}
	r.Took = time.Since(begin).Seconds()
	b.say("it is there after %.0fs: %v", r.Took, r.Has)
	if err := step("while it got there", false); err != nil {
		return r, err
	}
	b.say("the unchanged agent, with its own budget of writes, continues")
	if err := build(ctx, b.root, b.binary, nil); err != nil {
		return r, err
	}
	if err := a.restart(ctx); err != nil {
		return r, err
	}
	if err := sleep(ctx, b.rest); err != nil {
		return r, err
	}
	if err := step("with it", true); err != nil {
		return r, err
	}
	flooding, calm := context.WithCancel(ctx)
	var flood errgroup.Group
	flood.Go(func() error { return bad.flood(flooding) })
	bad.statuses.Flood.Store(true)
	err = step("while it rewrites all", true)
	bad.statuses.Flood.Store(false)
	calm()
	if err := errors.Join(err, flood.Wait()); err != nil {
		return r, err
	}
	b.say("the agent is killed, and starts with it")
	if err := a.restart(ctx); err != nil {
		return r, err
	}
	if err := sleep(ctx, b.rest); err != nil {
		return r, err
	}
	if err := step("after a restart", false); err != nil {
		return r, err
	}
	b.say("it is forgotten")
	if err := a.forget(alive(ctx), bad.Self()); err != nil {
		return r, err
	}
	if err := sleep(ctx, b.rest); err != nil {
		return r, err
	}
	return r, step("after it went", false)
}

// reach has the peer reach its limits, as a consumer and as a provider.
func (h *hostile) reach(ctx, living context.Context, lives *errgroup.Group, a *agent) error {
	pods := (h.of(limitPods)+limitContracts-1)/limitContracts + limitNamespaces
	for range limitContracts {
		terms, err := h.Contract(ctx, peering.Ask{Network: true}, "cpu=10", "memory=1Gi", fmt.Sprint("pods=", pods))
		if err != nil {
			return fmt.Errorf("contract %d: %w", len(h.hoards), err)
		}
		one, err := hoarding(living, lives, h.Peer, terms.ContractID)
		if err != nil {
			return err
		}
		h.hoards = append(h.hoards, one)
	}
	if err := a.useAsProvider(ctx, h.Name, h.of(homePods)); err != nil {
		return err
	}
	// What a pod may have so that all of them stay below the limit of the bytes of pods,
	// which is half of all.
	volumes := 0
	for len(mustJSON(plainPod(0, volumes+1)))*2*limitPods < limitBytes*45/100 {
		volumes++
	}
	h.fill(0, volumes)
	// The longest state, and as many offers as may stand, again and again.
	h.Say(func(s *peering.PeerState) {
		for i := len(s.Contracts); i < limitSaid; i++ {
			s.Contracts = append(s.Contracts, peering.ContractState{
				ID: fmt.Sprint("c-none-", i), Revision: 1, Phase: peering.PhaseActive, Message: strings.Repeat("x", peering.MaxMessageLen),
			})
		}
		for i := len(s.Network.Gateways); i < limitGateways; i++ {
			g := s.Network.Gateways[0]
			g.Name, g.PublicKey[0], g.PublicKey[1] = fmt.Sprint("gateway-", i), byte(i), 77
			g.Overlay = g.Overlay.Next()
			s.Network.Gateways = append(s.Network.Gateways, g)
		}
		pod, overlay := s.Network.Prefixes[0].Addr(), s.Network.Gateways[len(s.Network.Gateways)-1].Overlay
		for i := len(s.Network.Nodes); i < limitNodes; i++ {
			g := s.Network.Gateways[0]
			g.Name, g.PublicKey[0], g.PublicKey[1] = fmt.Sprint("node-", i), byte(i), 78
			overlay = overlay.Next()
			g.Overlay, g.Pods = overlay, nil
			for range peering.MaxNodePods {
				g.Pods, pod = append(g.Pods, netip.PrefixFrom(pod, pod.BitLen())), pod.Next()
			}
			s.Network.Nodes = append(s.Network.Nodes, g)
		}
	})
	lives.Go(func() error {
		for n := 0; living.Err() == nil; n++ {
			_, _ = client.Peering{Conn: h.Conn()}.Request(living, peering.Ask{ // one too many is refused
				RequestID: fmt.Sprint("offer-", n), Resources: peering.Resources{"cpu": peering.Whole(1)},
			})
			_ = sleep(living, time.Minute/limitOffers/2)
		}
		return nil
	})
	return nil
}

func mustJSON(o any) []byte {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // they are made here
	}
	return b
}

// flood rewrites all that is there, in another form each time, until ctx ends.
func (h *hostile) flood(ctx context.Context) error {
	for round := 1; ctx.Err() == nil; round++ {
		h.fill(round, 1)
		_ = sleep(ctx, 5*time.Second)
	}
	return nil
}

// podByPod has pods made and waits for each until it runs, then has them deleted. It
// returns how long each took, sorted, in milliseconds.
func (h *hoard) podByPod(ctx context.Context, round int) ([]float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it takes longer than %s", patience))
	defer cancel()
	await := func(done chan struct{}, what string) error {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		}
	}
	var took []float64
	var ends []chan struct{}
	for i := range creates {
		name := fmt.Sprintf("pod-%d-%d", round, i)
		ref, runs, ends1 := refOf(peering.KindPod, "honest", name), make(chan struct{}), make(chan struct{})
		h.mu.Lock()
		h.running[ref], h.gone[ref] = runs, ends1
		h.mu.Unlock()
		ends = append(ends, ends1)
		begin := time.Now()
		h.want(peering.KindPod, "honest", name, plainPod(0, 0))
		if err := await(runs, name+" to run"); err != nil {
			return nil, err
		}
		took = append(took, float64(time.Since(begin).Microseconds())/1000)
	}
	for i := range creates {
		h.mirror.Unwant(refOf(peering.KindPod, "honest", fmt.Sprintf("pod-%d-%d", round, i)), new(int64(0)))
	}
	for _, done := range ends {
		if err := await(done, "a pod to go"); err != nil {
			return nil, err
		}
	}
	slices.Sort(took)
	return took, nil
}

func percentile(sorted []float64, percent int) float64 {
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

// grow gives the nodes room for as many pods as a peer may have.
func (a *agent) grow(ctx context.Context) error {
	var list corev1.NodeList
	if err := a.client.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		n := &list.Items[i]
		before := n.DeepCopy()
		for name, amount := range map[corev1.ResourceName]string{corev1.ResourcePods: "60k", corev1.ResourceCPU: "10k", corev1.ResourceMemory: "10Ti"} {
			n.Status.Capacity[name], n.Status.Allocatable[name] = resource.MustParse(amount), resource.MustParse(amount)
		}
		if err := a.client.Status().Patch(ctx, n, ctrlclient.MergeFrom(before)); err != nil {
			return fmt.Errorf("change node %s: %w", n.Name, err)
		}
	}
	return nil
}

// useAsProvider has pods of the cluster's own run at a peer.
func (a *agent) useAsProvider(ctx context.Context, peer string, pods int) error {
	const name = "granted"
	node := name + v1alpha1.VirtualNodeSuffix
	amount := func(s string) resource.Quantity { return resource.MustParse(s) }
	for _, o := range []ctrlclient.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: v1alpha1.NamespaceOffloadingName}},
		&v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PeeringRequestSpec{
			ForeignCluster: peer, Network: v1alpha1.NetworkNone,
			Resources: corev1.ResourceList{"cpu": amount("100"), "memory": amount("100Gi"), "pods": amount("1k")},
		}},
	} {
		if err := a.client.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T: %w", o, err)
		}
	}
	for {
		var n corev1.Node
		if err := a.client.Get(ctx, ctrlclient.ObjectKey{Name: node}, &n); err == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			break
		}
		if err := sleep(ctx, look); err != nil {
			return fmt.Errorf("wait for node %s: %w", node, err)
		}
	}
	for i := range pods {
		p := plainPod(0, 0)
		p.Namespace, p.Name = name, fmt.Sprint("pod-", i)
		p.Spec.NodeName = node
		p.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.TaintVirtualNode, Operator: corev1.TolerationOpExists}}
		for {
			err := a.client.Create(ctx, &p)
			if err == nil {
				break
			}
			// The namespace's ServiceAccount takes a moment.
			if s := sleep(ctx, look); s != nil {
				return errors.Join(err, s)
			}
		}
	}
	return nil
}

// has counts the objects of a peer.
func (a *agent) has(ctx context.Context, peer peering.ClusterID) (map[string]int, error) {
	out := map[string]int{}
	of := ctrlclient.MatchingLabels{v1alpha1.LabelPeer: string(peer)}
	for what, kind := range map[string]ctrlclient.ObjectList{
		"namespaces": &corev1.NamespaceList{}, "configs": &corev1.ConfigMapList{}, "services": &corev1.ServiceList{},
		"slices": &discoveryv1.EndpointSliceList{}, "pods": &corev1.PodList{}, "offloadedpods": &v1alpha1.OffloadedPodList{},
	} {
		l := &metav1.PartialObjectMetadataList{}
		gvk, err := a.client.GroupVersionKindFor(kind)
		if err != nil {
			return nil, err
		}
		l.SetGroupVersionKind(gvk)
		if err := a.client.List(ctx, l, of); err != nil {
			return nil, err
		}
		out[what] = len(l.Items)
	}
	var contracts v1alpha1.ContractList
	if err := a.client.List(ctx, &contracts); err != nil {
		return nil, err
	}
	for i := range contracts.Items {
		if contracts.Items[i].Spec.PeerID == string(peer) {
			out["contracts"]++
		}
	}
	return out, nil
}

// follows waits until all is there that a peer wants, and what is made of it.
func (a *agent) follows(ctx context.Context, h *hostile, say func(format string, args ...any)) (map[string]int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it takes longer than %s", patience))
	defer cancel()
	begin, missed := time.Now(), 0
	for {
		has, err := a.has(ctx, h.Self())
		switch {
		case err == nil:
			missed = 0
			say("   after %s: %v", time.Since(begin).Round(time.Second), has)
		case ctx.Err() == nil && missed < mostMissed:
			missed++ // the API server is busy
			say("   after %s: not counted: %v", time.Since(begin).Round(time.Second), err)
			err = nil
		}
		// Each namespace has a record, too.
		if err != nil || has["services"] == h.of(limitServices) && has["slices"] == h.of(limitSlices) && has["configs"] == h.of(limitConfigs)+has["namespaces"] &&
			has["offloadedpods"] == h.of(limitPods) && has["pods"] == has["offloadedpods"] {
			return has, err
		}
		if err := sleep(ctx, count); err != nil {
			refused := map[string]int{}
			for _, one := range h.hoards {
				one.mu.Lock()
				maps.Copy(refused, one.refused)
				one.mu.Unlock()
			}
			return has, fmt.Errorf("there are %v; refused: %v: %w", has, refused, err)
		}
	}
}

// forget forgets a peer and waits until all of its objects are gone.
func (a *agent) forget(ctx context.Context, peer peering.ClusterID) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it takes longer than %s", patience))
	defer cancel()
	kube, err := kubernetes.NewForConfig(a.lab.Clusters[0].RESTConfig())
	if err != nil {
		return err
	}
	no := int64(0)
	err = kube.CoreV1().Pods("granted").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &no}, metav1.ListOptions{})
	if err := errors.Join(err, a.client.DeleteAllOf(ctx, &v1alpha1.PeeringRequest{})); err != nil {
		return err
	}
	var list v1alpha1.ForeignClusterList
	if err := a.client.List(ctx, &list); err != nil {
		return err
	}
	for i := range list.Items {
		if list.Items[i].Spec.ClusterID == string(peer) {
			if err := a.client.Delete(ctx, &list.Items[i]); err != nil {
				return err
			}
		}
	}
	for {
		left, err := a.has(ctx, peer)
		if err != nil {
			return err
		}
		// Namespaces go after that, in the cluster's own time.
		if left["offloadedpods"]+left["pods"]+left["services"]+left["contracts"] == 0 {
			return nil
		}
		if err := sleep(ctx, count); err != nil {
			return fmt.Errorf("there are still %v: %w", left, err)
		}
	}
}

// peak is the most memory that the agent had resident since it was asked last.
func (a *agent) peak() (float64, error) {
	proc := filepath.Join("/proc", strconv.Itoa(a.cmd.Process.Pid))
	text, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			most, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return most * kib, errors.Join(err, os.WriteFile(filepath.Join(proc, "clear_refs"), []byte("5"), 0o200))
		}
	}
	return 0, fmt.Errorf("%s/status has no VmHWM", proc)
}

// reportLimits writes the numbers, and the aims.
func (b *bench) reportLimits(r limitsResult) {
	b.say("")
	b.say("one peer at %d %% of all of its limits, which it reached after %.0fs: %v", r.Percent, r.Took, r.Has)
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "the agent\tRSS MiB\tpeak MiB\theap MiB\tgoroutines\thonest pod p50 ms\tp95\tmax\tratio of p50\tof p95\t")
	first, peak := r.Steps[0], 0.0
	worst := 0.0
	for _, s := range r.Steps {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t", s.What, s.Size.RSS/mib, s.Peak/mib, s.Size.Heap/mib, s.Size.Goroutines)
		if s.Pods != nil {
			fmt.Fprintf(w, "%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t", s.Pods.P50, s.P95, s.Pods.Max, s.Pods.P50/first.Pods.P50, s.P95/first.P95)
			worst = max(worst, s.Pods.P50/first.Pods.P50)
		} else {
			fmt.Fprint(w, "\t\t\t\t\t")
		}
		fmt.Fprintln(w)
		peak = max(peak, s.Peak)
	}
	_ = w.Flush()
	b.say("")
	b.aim(peak < r.Limit, "the agent stays within its %.0f MiB: %.0f MiB at most", r.Limit/mib, peak/mib)
	b.aim(worst < 2, "an honest peer's pods take less than twice the time: %.2f times, at the median", worst)
}

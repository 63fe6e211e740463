package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

// The kinds of faults in chaos.
const (
	agentDies       = "an agent dies"
	agentStops      = "an agent's pod is deleted"
	agentHangs      = "an agent hangs"
	agentIsSlow     = "an agent is slow"
	fabricDies      = "a fabric dies"
	tunnelDies      = "a tunnel's process dies"
	apiServerDies   = "an API server dies"
	apiServerHangs  = "an API server hangs"
	apiServerIsSlow = "an API server is slow"
	apiServerAway   = "an API server does not answer"
	kubeletDies     = "a kubelet dies"
	kubeletHangs    = "a kubelet hangs"
	nodeOff         = "a node is switched off, and on again"
	agentsAreDeaf   = "the agents are cut off from each other"
	lineIsCut       = "the line is cut"
	lineIsBad       = "the line is slow, and loses packets"
)

// What goes wrong at one time goes wrong with different ones of these.
const (
	ofAgents, ofTunnels, ofAPIServers, ofKubelets = "agents", "tunnels", "API servers", "kubelets"
	// ofNodes are the faults of one side, and ofLine those that both sides share.
	ofNodes, ofLine = "nodes", "line"
)

type kindOfFault struct{ name, of string }

func kindsOfFaults() []kindOfFault {
	return []kindOfFault{
		{agentDies, ofAgents},
		{agentStops, ofAgents},
		{agentHangs, ofAgents},
		{agentIsSlow, ofAgents},
		{fabricDies, ofTunnels},
		{tunnelDies, ofTunnels},
		{apiServerDies, ofAPIServers},
		{apiServerHangs, ofAPIServers},
		{apiServerIsSlow, ofAPIServers},
		{apiServerAway, ofAPIServers},
		{kubeletDies, ofKubelets},
		{kubeletHangs, ofKubelets},
		{nodeOff, ofNodes},
		{agentsAreDeaf, ofLine},
		{lineIsCut, ofLine},
		{lineIsBad, ofLine},
	}
}

const (
	chaosPods   = 200
	chaosFaults = 60
	// matrixPods and matrixFaults are those of `make matrix`.
	matrixPods, matrixFaults = 20, 8
	longestFault             = 15 * time.Second
	// chaosDisk is a storage class abroad.
	chaosDisk      = "disk"
	longestBetween = 8 * time.Second
	// chaosMended is within what all is well: a container that died often is started again after five minutes.
	chaosMended = 7 * time.Minute
)

// mishap is one thing that goes wrong.
type mishap struct {
	kindOfFault
	// home says on which side.
	home bool
	// lasts is for how long, where it lasts.
	lasts time.Duration
}

func (m mishap) String() string {
	where := " abroad"
	if m.home {
		where = " at home"
	}
	if m.of == ofLine {
		where = ""
	}
	return fmt.Sprintf("%s%s (%s)", m.name, where, m.lasts.Round(100*time.Millisecond))
}

// excludes reports whether two cannot happen at once.
func (m mishap) excludes(o mishap) bool {
	if m.of == ofLine || o.of == ofLine {
		return m.of == o.of
	}
	return m.home == o.home && (m.of == o.of || m.of == ofNodes || o.of == ofNodes)
}

// moment is what goes wrong at once, and the wait afterwards.
type moment struct {
	mishaps []mishap
	then    time.Duration
}

func (m moment) String() string {
	var all []string
	for _, one := range m.mishaps {
		all = append(all, one.String())
	}
	return fmt.Sprintf("%s; then %s", strings.Join(all, ", and "), m.then.Round(100*time.Millisecond))
}

// moments are the faults of a seed, in this order: n mishaps, half of them alone.
func moments(seed uint64, n int) []moment {
	r := rand.New(rand.NewPCG(seed, 0))
	var kinds []kindOfFault
	var out []moment
	for n > 0 {
		m := moment{then: time.Duration(r.Int64N(int64(longestBetween)))}
		atOnce := min([]int{1, 1, 1, 2, 2, 3}[r.IntN(6)], n)
		for len(m.mishaps) < atOnce {
			if len(kinds) == 0 { // each comes before one comes again
				kinds = kindsOfFaults()
				r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			}
			next := mishap{kinds[0], r.IntN(2) == 0, time.Second + time.Duration(r.Int64N(int64(longestFault-time.Second)))}
			if slices.ContainsFunc(m.mishaps, next.excludes) {
				break
			}
			m.mishaps, kinds = append(m.mishaps, next), kinds[1:]
		}
		n -= len(m.mishaps)
		out = append(out, m)
	}
	return out
}

func TestASeedDeterminesTheFaults(t *testing.T) {
	t.Parallel()
	first, again, other := moments(7, chaosFaults), moments(7, chaosFaults), moments(8, chaosFaults)
	if fmt.Sprint(first) != fmt.Sprint(again) || fmt.Sprint(first) == fmt.Sprint(other) {
		t.Errorf("seed 7 has %v, then %v, and seed 8 has %v", first, again, other)
	}
	seen, n, together := map[string]bool{}, 0, 0
	for _, m := range first {
		n += len(m.mishaps)
		together += len(m.mishaps) - 1
		for i, one := range m.mishaps {
			seen[one.name] = true
			if slices.ContainsFunc(m.mishaps[i+1:], one.excludes) {
				t.Errorf("%s cannot happen", m)
			}
		}
	}
	if n != chaosFaults || together == 0 || together > chaosFaults/2 || len(seen) != len(kindsOfFaults()) {
		t.Errorf("%d mishaps of %d kinds, %d with others: want %d of %d, some with others", n, len(seen), together, chaosFaults, len(kindsOfFaults()))
	}
}

// TestChaosReachesNoPod has pods run abroad, some of which have ended, while agents, API servers, kubelets, nodes,
// tunnels and lines fail on both sides, alone and together, as ENTENTE_SEED says. Whatever happens each pod abroad is the one
// that it was, what ended is not run again, no container begins again but with its node, and in the end nothing is there
// that should not be.
func TestChaosReachesNoPod(t *testing.T) {
	pods, faults := chaosPods, chaosFaults
	switch {
	case os.Getenv("ENTENTE_SOAK") != "":
	case only.InMatrix():
		pods, faults = matrixPods, matrixFaults
	default:
		t.Skip("minutes: make matrix and make soak run it")
	}
	seed := only.Number(t, "ENTENTE_SEED", int(time.Now().UnixNano()&0x7fffffff))
	plan := moments(uint64(seed), only.Number(t, "ENTENTE_FAULTS", faults))
	pods = only.Number(t, "ENTENTE_PODS", pods)
	t.Logf("ENTENTE_SEED=%d ENTENTE_FAULTS=%d ENTENTE_PODS=%d", seed, only.Number(t, "ENTENTE_FAULTS", faults), pods)
	theStage.Patience = time.Hour
	ctx, w := theStage.On(t)
	e2e.OK(t, w.Unpeer(ctx)) // a contract has as many pods as were free when it was signed
	standBy(ctx, t, w, "policy.percentOfFree=100")
	t.Cleanup(func() {
		if err := w.Unpeer(context.WithoutCancel(ctx)); err != nil {
			t.Errorf("end the peering: %v", err)
		}
	})
	e2e.Provisions(ctx, t, w.Abroad, chaosDisk, corev1.PersistentVolumeReclaimDelete)
	e2e.OfferStorage(ctx, t, w.Abroad, chaosDisk, "1Gi")
	peered(ctx, t, w)
	e2e.AskForStorage(ctx, t, w, chaosDisk, "1Gi")
	e2e.Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	began := time.Now()
	before := crowd(ctx, t, w, pods)
	t.Logf("%d pods ran abroad after %s", pods, time.Since(began).Round(100*time.Millisecond))

	for i, m := range plan {
		t.Logf("%s number %d of %d: %s", time.Now().Format(time.TimeOnly), i+1, len(plan), m)
		if err := m.happen(ctx, w); err != nil {
			t.Errorf("number %d: %v", i+1, err)
		}
		for _, one := range m.mishaps {
			before.mayRestart(one)
		}
		time.Sleep(m.then)
		if now, err := before.read(ctx, w); err == nil { // an API server may be away
			if err := before.same(now); err != nil {
				t.Fatalf("after number %d, %s: %v", i+1, m, err)
			}
		}
	}
	began = time.Now()
	allWell(ctx, t, w, before)
	t.Logf("all is well %s after the last one", time.Since(began).Round(100*time.Millisecond))
	nothingOrphaned(ctx, t, w, before)
}

// allWell wants the peering to work, the agents to lead and to stand by, and all pods to be as they were.
func allWell(ctx context.Context, t *testing.T, w *e2e.World, before *company) {
	t.Helper()
	_, err := w.Peered(ctx, chaosMended)
	e2e.OK(t, err)
	for _, s := range w.Sides() {
		e2e.OK(t, w.Until(ctx, chaosMended, "one agent to lead and one to stand by", twoReady(s)))
	}
	e2e.OK(t, w.Until(ctx, chaosMended, "all pods to be as they were", func(ctx context.Context) (string, error) {
		now, err := before.read(ctx, w)
		if err == nil {
			err = before.same(now)
		}
		if err == nil {
			err = before.ready(ctx, w)
		}
		return "", err
	}))
}

// nothingOrphaned deletes all that home has in the namespace, then the namespace, and wants nothing to be left abroad after
// each: a namespace that goes takes with it what is orphaned there.
func nothingOrphaned(ctx context.Context, t *testing.T, w *e2e.World, before *company) {
	t.Helper()
	// By default a volume stays at the provider when its claim goes.
	var volumes corev1.PersistentVolumeList
	e2e.OK(t, w.Home.Client.List(ctx, &volumes))
	if len(volumes.Items) != 1 {
		t.Errorf("home has %d volumes, want that of the claim", len(volumes.Items))
	}
	for i := range volumes.Items {
		volumes.Items[i].Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		e2e.OK(t, w.Home.Client.Update(ctx, &volumes.Items[i]))
	}
	_, err := w.Home.Kubectl(ctx, "-n", shop, "delete", "deployment,pod,service,configmap,secret,pvc", "--all", "--timeout=5m")
	e2e.OK(t, err)
	e2e.OK(t, w.Until(ctx, 2*e2e.Scheduled, "nothing to be left in namespace "+before.remote+" abroad", func(ctx context.Context) (string, error) {
		return leftAbroad(ctx, w, ctrlclient.InNamespace(before.remote))
	}))
	e2e.OK(t, w.DeleteNamespace(ctx, shop))
	e2e.OK(t, w.Until(ctx, e2e.Scheduled, "nothing to be left abroad in any namespace", func(ctx context.Context) (string, error) {
		return leftAbroad(ctx, w, ctrlclient.HasLabels{v1alpha1.LabelPeer})
	}))
}

// mirroredKinds are the kinds of what a provider has of a consumer's namespace.
func mirroredKinds() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Service"),
		discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		corev1.SchemeGroupVersion.WithKind("Secret"), corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
		v1alpha1.GroupVersion.WithKind("OffloadedPod"),
	}
}

// clusterCA is a ConfigMap that Kubernetes puts into each namespace, and notes one that the provider's agent puts into those of
// consumers.
const clusterCA, notes = "kube-root-ca.crt", "entente-namespace"

// leftAbroad lists what abroad has of those kinds, but for what each namespace has and what is the agent's own.
func leftAbroad(ctx context.Context, w *e2e.World, which ctrlclient.ListOption) (left string, err error) {
	var all []string
	for _, kind := range mirroredKinds() {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := w.Abroad.Client.List(ctx, &list, which); err != nil {
			return "", fmt.Errorf("list each %s: %w", kind.Kind, err)
		}
		for _, o := range list.Items {
			if o.Namespace != e2e.SystemNamespace && o.Name != clusterCA && o.Name != notes {
				all = append(all, kind.Kind+" "+o.Namespace+"/"+o.Name)
			}
		}
	}
	if len(all) > 0 {
		return fmt.Sprintf("%d are: %s", len(all), strings.Join(all[:min(len(all), 10)], ", ")), nil
	}
	return "", nil
}

// life identifies a pod, and says what it did.
type life struct {
	uid             types.UID
	restarts        int
	ended, deleting bool
}

// company is the pods at home and abroad as they were.
type company struct {
	remote       string
	home, abroad map[string]life
	labels       map[string]string
	count        int
	// restarts is how often containers may have restarted: with the node abroad, and by a kubelet that died
	// while it started again what ran on that.
	restarts int
}

// mayRestart counts a mishap that ends containers abroad.
func (c *company) mayRestart(m mishap) {
	if !m.home && (m.name == nodeOff || m.name == kubeletDies && c.restarts > 0) {
		c.restarts++
	}
}

// crowd runs pods abroad, some of which end.
func crowd(ctx context.Context, t *testing.T, w *e2e.World, count int) *company {
	t.Helper()
	const ended = 5
	out, service := e2e.Web(shop, "out", int32(count-ended), e2e.Anywhere)
	// Each second, as many probes would take all that a small machine has.
	out.Spec.Template.Spec.Containers[0].ReadinessProbe.PeriodSeconds = int32(1 + count/20)
	config, secret, claim := carried(&out.Spec.Template.Spec.Containers[0])
	e2e.OK(t, w.Home.Create(ctx, config, secret, claim, out, service))
	for i := range ended {
		p := e2e.WebPod(shop, fmt.Sprintf("ends-%d", i), map[string]string{"app": "ends"})
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Command, p.Spec.Containers[0].Args, p.Spec.Containers[0].ReadinessProbe = []string{"/tool", "sleep", "1"}, nil, nil
		if i == 0 {
			p.Spec.Volumes = []corev1.Volume{{Name: "kept", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}}}
		}
		e2e.OK(t, w.Home.Create(ctx, p))
	}
	_, err := w.Home.PodsReady(ctx, 4*e2e.Scheduled, shop, out.Labels, count-ended)
	e2e.OK(t, err)
	c := &company{labels: out.Labels, count: count - ended}
	e2e.OK(t, w.Until(ctx, e2e.Scheduled, "some pods to have ended", func(ctx context.Context) (string, error) {
		pods, err := w.Home.Pods(ctx, shop, map[string]string{"app": "ends"})
		for i := range pods {
			if pods[i].Status.Phase != corev1.PodSucceeded {
				return e2e.PodText(&pods[i]), nil
			}
		}
		return "", err
	}))
	c.remote, err = w.RemoteNamespace(ctx, shop)
	e2e.OK(t, err)
	now, err := c.read(ctx, w)
	e2e.OK(t, err)
	c.home, c.abroad = now.home, now.abroad
	if len(c.home) != count || len(c.abroad) != count {
		t.Fatalf("%d pods at home and %d abroad, want %d", len(c.home), len(c.abroad), count)
	}
	return c
}

// carried are what crosses with pods: a ConfigMap and a Secret, which a container has in its environment, and a claim.
func carried(c *corev1.Container) (*corev1.ConfigMap, *corev1.Secret, *corev1.PersistentVolumeClaim) {
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "greetings"}, Data: map[string]string{"greeting": "ciao"}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "words"}, Data: map[string][]byte{"word": []byte("segreto")}}
	c.EnvFrom = []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: config.Name}}},
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: secret.Name}}},
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "kept"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: new("entente"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	return config, secret, claim
}

func (c *company) read(ctx context.Context, w *e2e.World) (now company, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	home, err := w.Home.Pods(ctx, shop, nil)
	if err != nil {
		return now, err
	}
	abroad, err := w.Abroad.Pods(ctx, c.remote, nil)
	return company{home: lives(home), abroad: lives(abroad)}, err
}

func lives(pods []corev1.Pod) map[string]life {
	out := map[string]life{}
	for i := range pods {
		p := &pods[i]
		restarts := e2e.Restarts(p)
		for _, c := range p.Status.ContainerStatuses {
			// What a busy runtime could not start in time did not run.
			if t := c.LastTerminationState.Terminated; t != nil && t.Reason == "StartError" {
				restarts--
			}
		}
		out[p.Name] = life{p.UID, restarts, p.Status.Phase == corev1.PodSucceeded, p.DeletionTimestamp != nil}
	}
	return out
}

func (c *company) same(now company) error {
	return errors.Join(c.differ("at home", c.home, now.home), c.differ("abroad", c.abroad, now.abroad))
}

func (c *company) differ(where string, was, is map[string]life) error {
	var errs []error
	for name, w := range was {
		now, there := is[name]
		restarts := now.restarts
		if now.restarts > w.restarts && now.restarts <= w.restarts+c.restarts && !w.ended {
			now.restarts = w.restarts
		}
		if !there || now != w {
			now.restarts = restarts
			errs = append(errs, fmt.Errorf("%s pod %s was %+v and is %+v, there: %v; containers may have restarted %d times", where, name, w, now, there, c.restarts))
		}
	}
	for name := range is {
		if _, there := was[name]; !there {
			errs = append(errs, fmt.Errorf("%s pod %s is new", where, name))
		}
	}
	return errors.Join(errs...)
}

func (c *company) ready(ctx context.Context, w *e2e.World) error {
	pods, err := w.Home.Pods(ctx, shop, c.labels)
	ready := 0
	for i := range pods {
		if e2e.PodReady(&pods[i]) {
			ready++
		}
	}
	if err == nil && ready != c.count {
		err = fmt.Errorf("%d of %d are ready", ready, c.count)
	}
	return err
}

// happen makes all of it go wrong at once, and mends what lasts.
func (m moment) happen(ctx context.Context, w *e2e.World) error {
	errs := make([]error, len(m.mishaps))
	var all sync.WaitGroup
	for i, one := range m.mishaps {
		all.Go(func() {
			if err := one.happen(ctx, w); err != nil {
				errs[i] = fmt.Errorf("%s: %w", one, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (m mishap) happen(ctx context.Context, w *e2e.World) error {
	side := w.Abroad
	if m.home {
		side = w.Home
	}
	switch m.of {
	case ofNodes:
		return errors.Join(w.Lab.StopNode(ctx, side.Node()), m.lasting(func() error { return w.Lab.StartNode(ctx, side.Node()) }))
	case ofLine:
		return m.ofTheLine(ctx, w)
	case ofAPIServers, ofKubelets:
		return m.ofKubernetes(ctx, side)
	}
	return m.ofEntente(ctx, side)
}

func (m mishap) ofTheLine(ctx context.Context, w *e2e.World) error {
	var err error
	switch m.name {
	case agentsAreDeaf:
		return m.rules(ctx, w.OnInternet, fmt.Sprintf("chain forward { type filter hook forward priority 0; tcp dport %[1]d drop; tcp sport %[1]d drop; }", e2e.PeerNodePort))
	case lineIsCut:
		err = w.Cut(ctx)
	case lineIsBad:
		for _, r := range []lab.FaultRequest{{Kind: "delay", Delay: 300 * time.Millisecond}, {Kind: "loss", LossPercent: 20}} {
			r.A, r.B = w.Home.Plan.Name, w.Abroad.Plan.Name
			_, one := w.Lab.Fault(ctx, r)
			err = errors.Join(err, one)
		}
	}
	return errors.Join(err, m.lasting(func() error { return w.Heal(ctx) }))
}

func (m mishap) ofKubernetes(ctx context.Context, side *e2e.Side) error {
	if m.name == apiServerAway {
		return m.rules(ctx, side.OnNode, "chain in { type filter hook input priority -300; tcp dport 6443 reject with tcp reset; }")
	}
	component := "kubelet"
	if m.of == ofAPIServers {
		component = "kube-apiserver"
	}
	pid, err := side.Component(ctx, component)
	if err != nil {
		return nil //nolint:nilerr // it is starting again
	}
	switch m.name {
	case apiServerDies, kubeletDies:
		return e2e.KillProcess(pid)
	case apiServerIsSlow:
		return m.slow(pid)
	}
	return m.hang(pid)
}

func (m mishap) ofEntente(ctx context.Context, side *e2e.Side) error {
	part := map[string]string{fabricDies: e2e.PartNode, tunnelDies: e2e.PartWireGuard}[m.name]
	if part == "" {
		part = e2e.PartAgent
	}
	running, err := side.Running(part)
	if err != nil || len(running) == 0 {
		return err // what is dead can do nothing more
	}
	pid := running[0]
	if part == e2e.PartAgent {
		// The leader has more to lose.
		asked, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if pod, err := side.AgentPod(asked); err == nil {
			if m.name == agentStops {
				return side.Client.Delete(asked, pod)
			}
			if leader, err := e2e.ProcessOf(pod, part); err == nil {
				pid = leader
			}
		}
	}
	switch m.name {
	case agentHangs:
		return m.hang(pid)
	case agentIsSlow:
		return m.slow(pid)
	}
	return e2e.KillProcess(pid)
}

// lasting waits for as long as it lasts, and mends it.
func (m mishap) lasting(mend func() error) error {
	time.Sleep(m.lasts)
	return mend()
}

// hang has a process do nothing while it lasts.
func (m mishap) hang(pid int) error {
	thaw, err := e2e.FreezeProcess(pid)
	if err != nil {
		return nil //nolint:nilerr // it died meanwhile
	}
	return m.lasting(thaw)
}

// slow has a process do something a quarter of the time while it lasts.
func (m mishap) slow(pid int) error {
	for end := time.Now().Add(m.lasts); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		thaw, err := e2e.FreezeProcess(pid)
		if err != nil {
			return nil //nolint:nilerr // it died meanwhile
		}
		time.Sleep(300 * time.Millisecond)
		if err := thaw(); err != nil {
			return err
		}
	}
	return nil
}

// rules are those of a firewall while it lasts.
func (m mishap) rules(ctx context.Context, on func(context.Context, ...string) (string, error), chain string) error {
	if _, err := on(ctx, "nft", fmt.Sprintf("table inet chaos { %s; }", chain)); err != nil {
		return err
	}
	return m.lasting(func() error {
		_, err := on(context.WithoutCancel(ctx), "nft", "delete table inet chaos")
		return err
	})
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// perCourse is how long some pods may take to run, and to go.
	perCourse = 30 * time.Minute
	// perBatch is how long those of a batch that come and go one after the other may take.
	perBatch = 5 * time.Minute
	// writers is how many requests this program has under way where it makes pods itself.
	writers = 16
	// late is how long what follows from the last pod may take until costs are counted.
	late = 5 * time.Second
	// Changes of status, at how many pods, how many a second, and for how long.
	statusPods    = 1000
	statusRate    = 50
	statusFor     = 20 * time.Second
	restPeers     = 9
	restFor       = time.Minute
	cycleBatch    = 250
	podRequests   = "rest_client_requests_total"
	maxHomeAsks   = 6
	maxRemoteAsks = 4
	maxPodMemory  = 30 * kib
	maxPodCPU     = 4 // ms
	// allParts are the parts of a run with -pods: pods that come and go, changes of statuses, rest, and Services.
	allParts = "courses,changes,rest,services"
	// barePart is of the courses the offloaded one of bare pods.
	barePart = "bare"
	// profileFor is how long a profile of a step is, in seconds.
	profileFor = 5
)

// cost is what a step cost an agent and its API server for each pod.
type cost struct {
	// Requests is how many the agent made, Writes how many of them change something, CPU its
	// processor time in ms, and Server that of the API server in ms, for all of its clients.
	Requests float64 `json:"requests"`
	Writes   float64 `json:"writes"`
	CPU      float64 `json:"cpu"`
	Server   float64 `json:"server"`
}

// course is n pods that are made and deleted.
type course struct {
	Pods int  `json:"pods"`
	Bare bool `json:"bare"`
	// Network: the contract has a network, TunnelWrites is how often a cluster wrote its Tunnel a second at most while
	// the pods came or went, and Conflicts how many writes of any object conflicted.
	Network      bool    `json:"network,omitempty"`
	TunnelWrites float64 `json:"tunnelWrites,omitempty"`
	Conflicts    float64 `json:"conflicts,omitempty"`
	// Native and Offloaded is how long it took until all ran, NativeGone and Gone until none
	// was left at home, in seconds.
	Native     float64 `json:"native"`
	Offloaded  float64 `json:"offloaded"`
	NativeGone float64 `json:"nativeGone"`
	Gone       float64 `json:"gone"`
	// NativeServer is the processor time of the API server for each native pod until it ran, in ms, and
	// NativeGoneServer until it was gone.
	NativeServer     float64 `json:"nativeServer"`
	NativeGoneServer float64 `json:"nativeGoneServer"`
	// What it cost, and what it cost to delete them.
	Home         cost `json:"home"`
	Provider     cost `json:"provider"`
	HomeGone     cost `json:"homeGone"`
	ProviderGone cost `json:"providerGone"`
	// Memory is by how many bytes the agents' live heaps and resident memories grew for each pod.
	HomeMemory     size `json:"homeMemory"`
	ProviderMemory size `json:"providerMemory"`
}

// podsResult is the cost of offloading.
type podsResult struct {
	Courses []course `json:"courses"`
	// Status is how long a change of a pod's status took from the provider's API server to
	// home's, and StatusHeard of how many it was seen.
	Status      *spread `json:"status,omitempty"`
	StatusHeard int     `json:"statusHeard,omitempty"`
	StatusSent  int     `json:"statusSent,omitempty"`
	// Endpoints is how long after home's own EndpointSlice of a Service the provider had one.
	Endpoints *spread `json:"endpoints,omitempty"`
	Rest      *atRest `json:"rest,omitempty"`
	Cycles    []cycle `json:"cycles,omitempty"`
}

// atRest is both agents while nothing happens: percent of a processor, and writes a second.
type atRest struct {
	HomeCPU        float64 `json:"homeCpu"`
	ProviderCPU    float64 `json:"providerCpu"`
	HomeWrites     float64 `json:"homeWrites"`
	ProviderWrites float64 `json:"providerWrites"`
}

// cycle is both agents after so many pods came and went.
type cycle struct {
	Pods     int  `json:"pods"`
	Home     size `json:"home"`
	Provider size `json:"provider"`
}

func (c cycle) String() string {
	return fmt.Sprintf("after %d pods: home %.1f MiB of heap and %.0f goroutines, the provider %.1f MiB and %.0f",
		c.Pods, c.Home.Heap/mib, c.Home.Goroutines, c.Provider.Heap/mib, c.Provider.Goroutines)
}

// asked is an agent's requests to its API server so far, and their cost.
type asked struct {
	requests, writes, cpu float64
	server                apiUse
}

// asked reads what the agent asked so far.
func (a *agent) asked(ctx context.Context) (out asked, err error) {
	b, err := a.get(ctx, a.profiles, "/metrics")
	if err != nil {
		return out, err
	}
	eachSample(b, func(metric, labels string, v float64) {
		switch metric {
		case metricCPU:
			out.cpu = v
		case podRequests:
			out.requests += v
			if !strings.Contains(labels, `method="`+http.MethodGet+`"`) {
				out.writes += v
			}
		}
	})
	if out.requests == 0 {
		return out, fmt.Errorf("the agent of %s has no metric %s", a.name, podRequests)
	}
	out.server, err = a.apiUse(ctx)
	return out, err
}

func costOf(before, after asked, n int) cost {
	each := func(a, b float64) float64 { return (b - a) / float64(n) }
	return cost{
		Requests: each(before.requests, after.requests), Writes: each(before.writes, after.writes),
		CPU: 1000 * each(before.cpu, after.cpu), Server: 1000 * each(before.server.cpu, after.server.cpu),
	}
}

// both does something with both agents at once.
func (w *two) both(do func(*agent) error) error {
	var g errgroup.Group
	for _, a := range []*agent{w.home, w.provider} {
		g.Go(func() error { return do(a) })
	}
	return g.Wait()
}

// asked reads what both agents asked so far.
func (w *two) asked(ctx context.Context) (home, provider asked, err error) {
	if home, err = w.home.asked(ctx); err != nil {
		return home, provider, err
	}
	provider, err = w.provider.asked(ctx)
	return home, provider, err
}

// podBench is a run of offloaded pods.
type podBench struct {
	*bench
	*two
	kube, kubeAbroad *kubernetes.Clientset
	offloaded        *podWatch
	native           *podWatch
}

// offloading measures what offloading n pods costs, for each of the numbers, and with the last the rest.
func (b *bench) offloading(ctx context.Context, counts []int, parts []string, cycles int, network bool) (r podsResult, err error) {
	b.say("two clusters start and peer, with a network: %v", network)
	w, err := b.startTwo(ctx, network)
	if err != nil {
		return r, err
	}
	defer w.stop()
	p := &podBench{bench: b, two: w}
	if p.kube, err = w.home.kube(); err != nil {
		return r, err
	}
	if p.kubeAbroad, err = w.provider.kube(); err != nil {
		return r, err
	}
	if p.offloaded, err = watchPods(ctx, p.kube, offloadedTo); err != nil {
		return r, err
	}
	defer p.offloaded.stop()
	if p.native, err = watchPods(ctx, p.kube, nativeSpace); err != nil {
		return r, err
	}
	defer p.native.stop()
	ctx = w.provider.lives(w.home.lives(ctx))
	defer func() {
		if err != nil && b.keep != "" {
			err = errors.Join(err, b.keepLogs(w))
		}
	}()
	for _, n := range counts {
		for _, bare := range []bool{false, true} {
			all := slices.Contains(parts, "courses")
			if !all && (!bare || !slices.Contains(parts, barePart)) {
				continue
			}
			c, err := p.course(ctx, n, bare, all)
			if err != nil {
				return r, err
			}
			r.Courses = append(r.Courses, c)
		}
	}
	if err := p.status(ctx, parts, &r); err != nil {
		return r, err
	}
	if r.Cycles, err = p.cycles(ctx, cycles); err != nil {
		return r, err
	}
	return r, nil
}

func (b *bench) keepLogs(w *two) error {
	return w.both(func(a *agent) error {
		log, err := os.ReadFile(a.log)
		return errors.Join(err, os.WriteFile(filepath.Join(b.keep, a.name+".log"), log, 0o644))
	})
}

// course makes and deletes n pods, first of home's if that is to be compared, and then offloaded.
func (p *podBench) course(ctx context.Context, n int, bare, compared bool) (c course, err error) {
	c.Pods, c.Bare, c.Network = n, bare, p.network
	kind := map[bool]string{false: "in a Deployment", true: "one by one"}[bare]
	if compared {
		if err := p.natively(ctx, &c, kind); err != nil {
			return c, err
		}
	}
	sizes := map[string]size{}
	if err := p.sizes(ctx, sizes); err != nil {
		return c, err
	}
	step := func(do func(context.Context) error, want int, home, abroad *cost, what string) (took float64, err error) {
		h, a, err := p.asked(ctx)
		if err != nil {
			return 0, err
		}
		profiled := p.profiled(ctx, fmt.Sprintf("%05d-%v-%s", n, bare, what))
		if took, err = p.timed(ctx, do, p.offloaded, want); err != nil {
			return 0, fmt.Errorf("%d offloaded pods %s, which %s: %w", n, kind, what, err)
		}
		if err := errors.Join(p.goneAbroad(ctx, want), profiled(), sleep(ctx, late)); err != nil {
			return 0, err
		}
		h2, a2, err := p.asked(ctx)
		*home, *abroad = costOf(h, h2, n), costOf(a, a2, n)
		c.tunnelUse(took, h.server, h2.server)
		c.tunnelUse(took, a.server, a2.server)
		lists := map[string]string{consumer: listOf(h.server, h2.server, n), provider: listOf(a.server, a2.server, n)}
		return took, errors.Join(err, p.keepLists(n, bare, what, lists))
	}
	if c.Offloaded, err = step(func(ctx context.Context) error { return p.create(ctx, offloadedTo, n, bare) }, n, &c.Home, &c.Provider, "come"); err != nil {
		return c, err
	}
	if err := p.seesExposed(ctx, n); err != nil {
		return c, err
	}
	grown := map[string]size{}
	if err := p.sizes(ctx, grown); err != nil {
		return c, err
	}
	c.HomeMemory = perPeer(sizes[consumer], grown[consumer], n)
	c.ProviderMemory = perPeer(sizes[provider], grown[provider], n)
	if c.Gone, err = step(func(ctx context.Context) error { return p.remove(ctx, offloadedTo, bare) }, 0, &c.HomeGone, &c.ProviderGone, "go"); err != nil {
		return c, err
	}
	if c.Network {
		p.say("%d pods %s: the Tunnels were written %.1f times a second at most, and %.0f writes conflicted", n, kind, c.TunnelWrites, c.Conflicts)
	}
	p.say("%d pods %s: %.2f s over %s s native; %.1f and %.1f requests a pod; %.2f s over %s s to delete",
		n, kind+c.suffix(), c.Offloaded, measured(c.Native), c.Home.Requests, c.Provider.Requests, c.Gone, measured(c.NativeGone))
	return c, nil
}

// natively has the pods of a course made and deleted on a node of home's.
func (p *podBench) natively(ctx context.Context, c *course, kind string) (err error) {
	step := func(do func(context.Context) error, want int, server *float64, what string) (took float64, err error) {
		before, err := p.home.apiUse(ctx)
		if err != nil {
			return 0, err
		}
		profiled := p.profiled(ctx, fmt.Sprintf("%05d-%v-native-%s", c.Pods, c.Bare, what))
		if took, err = p.timed(ctx, do, p.native, want); err != nil {
			return 0, fmt.Errorf("%d native pods %s, which %s: %w", c.Pods, kind, what, err)
		}
		if err := errors.Join(profiled(), sleep(ctx, late)); err != nil {
			return 0, err
		}
		after, err := p.home.apiUse(ctx)
		*server = 1000 * (after.cpu - before.cpu) / float64(c.Pods)
		return took, err
	}
	if c.Native, err = step(func(ctx context.Context) error { return p.create(ctx, nativeSpace, c.Pods, c.Bare) }, c.Pods, &c.NativeServer, "come"); err != nil {
		return err
	}
	c.NativeGone, err = step(func(ctx context.Context) error { return p.remove(ctx, nativeSpace, c.Bare) }, 0, &c.NativeGoneServer, "go")
	return err
}

// profiled keeps profiles of both agents and API servers over the seconds that follow, if any are kept.
func (p *podBench) profiled(ctx context.Context, step string) (end func() error) {
	if p.keep == "" {
		return func() error { return nil }
	}
	var g errgroup.Group
	g.Go(func() error {
		return p.both(func(a *agent) error {
			return a.profile(ctx, fmt.Sprint("/debug/pprof/profile?seconds=", profileFor), filepath.Join(p.keep, step+"-"+a.name+".pprof"))
		})
	})
	g.Go(func() error {
		return p.both(func(a *agent) error {
			return a.serverProfile(ctx, profileFor, filepath.Join(p.keep, step+"-"+a.name+"-api.pprof"))
		})
	})
	return g.Wait
}

// sizes measures both agents.
func (p *podBench) sizes(ctx context.Context, to map[string]size) error {
	var mu sync.Mutex
	return p.both(func(a *agent) error {
		s, err := a.size(ctx)
		mu.Lock()
		defer mu.Unlock()
		to[a.name] = s
		return err
	})
}

// timed does something and waits until n pods run; it returns how long that took in seconds.
func (p *podBench) timed(ctx context.Context, do func(context.Context) error, w *podWatch, n int) (float64, error) {
	most := perCourse
	if n <= cycleBatch {
		most = perBatch
	}
	timed, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("it takes longer than %s", most))
	defer cancel()
	begin := time.Now()
	if err := do(timed); err != nil {
		return 0, err
	}
	err := w.are(timed, n)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w%s", err, p.stuck(ctx, w))
	}
	return time.Since(begin).Seconds(), err
}

// stuck says of some pods that do not run, or do not go, what both clusters say of them.
func (p *podBench) stuck(ctx context.Context, w *podWatch) string {
	var b strings.Builder
	waiting := w.waiting()
	for _, name := range waiting[:min(len(waiting), 5)] {
		for _, at := range []struct {
			kube            *kubernetes.Clientset
			side, namespace string
		}{{p.kube, consumer, w.namespace}, {p.kubeAbroad, provider, p.remote}} {
			pod, err := at.kube.CoreV1().Pods(at.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				fmt.Fprintf(&b, "\n%s: %v", at.side, err)
				continue
			}
			pod.ManagedFields, pod.Spec.Containers, pod.Spec.Volumes = nil, nil, nil
			text, err := json.Marshal(pod)
			fmt.Fprintf(&b, "\n%s: %s %v", at.side, text, err)
		}
	}
	return b.String()
}

// create makes n pods.
func (p *podBench) create(ctx context.Context, namespace string, n int, bare bool) error {
	d := podsOf(namespace, n)
	if !bare {
		_, err := p.kube.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{})
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range n {
		g.Go(func() error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("bare-", i), Labels: d.Spec.Template.Labels}, Spec: *d.Spec.Template.Spec.DeepCopy()}
			_, err := p.kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	return g.Wait()
}

// remove deletes what create made.
func (p *podBench) remove(ctx context.Context, namespace string, bare bool) error {
	if !bare {
		return p.kube.AppsV1().Deployments(namespace).Delete(ctx, "bench", metav1.DeleteOptions{})
	}
	all, err := names(ctx, p.kube, namespace)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, name := range all {
		g.Go(func() error { return p.kube.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}) })
	}
	return g.Wait()
}

// goneAbroad waits until the provider has no pod, if none is wanted.
func (p *podBench) goneAbroad(ctx context.Context, want int) error {
	if want > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, perCourse, errors.New("pods are left at the provider"))
	defer cancel()
	for {
		all, err := names(ctx, p.kubeAbroad, p.remote)
		if err != nil || len(all) == 0 {
			return err
		}
		if err := sleep(ctx, look); err != nil {
			return err
		}
	}
}

// listOf lists the requests to an API server between two counts, by all clients, per pod.
func listOf(before, after apiUse, n int) string {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(after.requests)) {
		if count := after.requests[what] - before.requests[what]; count >= float64(n)/20 {
			fmt.Fprintf(&b, "%8.2f  %s\n", count/float64(n), what)
		}
	}
	return b.String()
}

// status measures how long changes of pods' statuses take, and what both agents do at rest.
func (p *podBench) status(ctx context.Context, parts []string, r *podsResult) error {
	var measures []func(context.Context, *podsResult) error
	for _, m := range []struct {
		part string
		do   func(context.Context, *podsResult) error
	}{{"changes", p.changes}, {"rest", p.rest}, {"services", p.services}} {
		if slices.Contains(parts, m.part) {
			measures = append(measures, m.do)
		}
	}
	if len(measures) == 0 {
		return nil
	}
	p.say("%d pods run, and %d of their statuses a second change", statusPods, statusRate)
	if _, err := p.timed(ctx, func(ctx context.Context) error { return p.create(ctx, offloadedTo, statusPods, true) }, p.offloaded, statusPods); err != nil {
		return err
	}
	if err := sleep(ctx, late); err != nil {
		return err
	}
	for _, measure := range measures {
		if err := measure(ctx, r); err != nil {
			return err
		}
	}
	_, err := p.timed(ctx, func(ctx context.Context) error { return p.remove(ctx, offloadedTo, true) }, p.offloaded, 0)
	return errors.Join(err, p.goneAbroad(ctx, 0))
}

// changes counts up restarts of pods at the provider, and sees when home says so.
func (p *podBench) changes(ctx context.Context, r *podsResult) error {
	all, err := names(ctx, p.kubeAbroad, p.remote)
	if err != nil {
		return err
	}
	slices.Sort(all)
	// Each change has its own number, and a later one of a pod includes those before.
	var mu sync.Mutex
	sent, seen := map[int32]time.Time{}, map[int32]time.Duration{}
	pending := map[string][]int32{}
	p.offloaded.hear(func(pod *corev1.Pod, at time.Time) {
		if len(pod.Status.ContainerStatuses) == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		now := pod.Status.ContainerStatuses[0].RestartCount
		pending[pod.Name] = slices.DeleteFunc(pending[pod.Name], func(n int32) bool {
			if n > now {
				return false
			}
			seen[n] = at.Sub(sent[n])
			return true
		})
	})
	defer p.offloaded.hear(nil)
	every := time.NewTicker(time.Second / statusRate)
	defer every.Stop()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range int32(statusRate * statusFor / time.Second) {
		select {
		case <-gctx.Done():
			return g.Wait()
		case <-every.C:
		}
		name, n := all[int(i)%len(all)], i+1
		g.Go(func() error {
			mu.Lock()
			sent[n] = time.Now()
			pending[name] = append(pending[name], n)
			mu.Unlock()
			patch := fmt.Sprintf(`{"status":{"containerStatuses":[{"name":"main","restartCount":%d}]}}`, n)
			_, err := p.kubeAbroad.CoreV1().Pods(p.remote).Patch(gctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
			return err
		})
	}
	if err := errors.Join(g.Wait(), sleep(ctx, late)); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	took := make([]float64, 0, len(seen))
	for _, d := range seen {
		took = append(took, float64(d.Microseconds())/1000)
	}
	if len(took) == 0 {
		return errors.New("no change of a status came home")
	}
	slices.Sort(took)
	r.Status = &spread{P50: percentile(took, 50), P99: percentile(took, 99), Max: took[len(took)-1]}
	r.StatusHeard, r.StatusSent = len(seen), len(sent)
	return nil
}

// rest has other clusters peer with both, and measures both agents while nothing happens.
func (p *podBench) rest(ctx context.Context, r *podsResult) (err error) {
	p.say("%d other clusters peer with home, and all rest", restPeers)
	peers, stop, err := gather(ctx, restPeers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	tokens, err := p.home.tokens(ctx, restPeers)
	if err != nil {
		return err
	}
	var joined result
	if err := joined.join(ctx, peers, tokens); err != nil {
		return err
	}
	if err := sleep(ctx, restFor/2); err != nil {
		return err
	}
	h, a, err := p.asked(ctx)
	if err != nil {
		return err
	}
	if err := sleep(ctx, restFor); err != nil {
		return err
	}
	h2, a2, err := p.asked(ctx)
	seconds := restFor.Seconds()
	r.Rest = &atRest{
		HomeCPU: 100 * (h2.cpu - h.cpu) / seconds, ProviderCPU: 100 * (a2.cpu - a.cpu) / seconds,
		HomeWrites: (h2.writes - h.writes) / seconds, ProviderWrites: (a2.writes - a.writes) / seconds,
	}
	return err
}

// cycles has so many pods come and go, some at a time, and measures both agents each tenth of them.
func (p *podBench) cycles(ctx context.Context, total int) (out []cycle, err error) {
	if total == 0 {
		return nil, nil
	}
	p.say("%d pods come and go, %d at a time", total, cycleBatch)
	next := total / 10
	for done := 0; done < total; {
		n := min(cycleBatch, total-done)
		if _, err := p.timed(ctx, func(ctx context.Context) error { return p.create(ctx, offloadedTo, n, true) }, p.offloaded, n); err != nil {
			return out, err
		}
		if _, err := p.timed(ctx, func(ctx context.Context) error { return p.remove(ctx, offloadedTo, true) }, p.offloaded, 0); err != nil {
			return out, err
		}
		if done += n; done < next && done < total {
			continue
		}
		next += total / 10
		if err := errors.Join(p.goneAbroad(ctx, 0), sleep(ctx, late)); err != nil {
			return out, err
		}
		sizes := map[string]size{}
		if err := p.sizes(ctx, sizes); err != nil {
			return out, err
		}
		c := cycle{Pods: done, Home: sizes[consumer], Provider: sizes[provider]}
		p.say("%s", c)
		out = append(out, c)
		if p.keep == "" {
			continue
		}
		err := p.both(func(a *agent) error {
			return a.profile(ctx, "/debug/pprof/heap?gc=1", filepath.Join(p.keep, fmt.Sprintf("%05d-cycles-%s-heap.pprof", done, a.name)))
		})
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// measured prints a value for native pods, or a dash without one.
func measured(v float64) string {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// reportPods writes the numbers, and the aims.
func (b *bench) reportPods(r podsResult) {
	b.say("")
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "pods\tnative s\toffloaded s\tratio\tnative gone s\tgone s\tratio\thome requests\tprovider requests\tto delete\tprovider\thome CPU ms\tprovider CPU ms\tAPI servers CPU ms\tnative\theap KiB home\tprovider\t")
	for _, c := range r.Courses {
		kind := c.suffix()
		if c.Bare {
			kind = " bare" + kind
		}
		fmt.Fprintf(w, "%d%s\t%s\t%.2f\t%s\t%s\t%.2f\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", c.Pods, kind,
			measured(c.Native), c.Offloaded, measured(c.Offloaded/c.Native), measured(c.NativeGone), c.Gone, measured(c.Gone/c.NativeGone),
			c.Home.Requests, c.Provider.Requests, c.HomeGone.Requests, c.ProviderGone.Requests,
			c.Home.CPU, c.Provider.CPU, c.Home.Server+c.Provider.Server, c.NativeServer, c.HomeMemory.Heap/kib, c.ProviderMemory.Heap/kib)
	}
	_ = w.Flush()
	b.say("")
	for _, c := range r.Courses {
		most := map[int]float64{1: 1.1, 100: 1.2}[c.Pods]
		switch {
		case c.Bare:
			most = 2
		case most == 0:
			most = 1.3
		}
		if c.Native == 0 {
			continue
		}
		ratio := c.Offloaded / c.Native
		b.aim(ratio <= most, "%d pods (bare: %v)%s run within %.1f times of native: %.2f", c.Pods, c.Bare, c.suffix(), most, ratio)
	}
	if len(r.Courses) > 0 {
		b.aimPods(r.Courses[len(r.Courses)-1])
	}
	if s := r.Status; s != nil {
		b.say("a change of a status comes home after %.0f ms (p50), %.0f ms (p99), %.0f ms at most: %d of %d did", s.P50, s.P99, s.Max, r.StatusHeard, r.StatusSent)
	}
	if s := r.Endpoints; s != nil {
		b.aim(s.P99 <= maxEndpointP99, "an endpoint of one of %d Services is known abroad within %d ms (p99): %.0f (p50), %.0f (p99), %.0f ms at most", serviceCount, maxEndpointP99, s.P50, s.P99, s.Max)
	}
	if s := r.Rest; s != nil {
		b.aim(max(s.HomeCPU, s.ProviderCPU) < 5, "less than 5 %% of a processor at rest with %d pods and %d peers: %.2f %% and %.2f %%", statusPods, restPeers+1, s.HomeCPU, s.ProviderCPU)
		b.aim(max(s.HomeWrites, s.ProviderWrites) < 5, "fewer than 5 writes a second at rest: %.2f and %.2f", s.HomeWrites, s.ProviderWrites)
	}
}

// aimPods prints the aims for each of many pods.
func (b *bench) aimPods(last course) {
	b.aim(last.Home.Requests <= maxHomeAsks, "at most %d requests a pod at home: %.2f", maxHomeAsks, last.Home.Requests)
	b.aim(last.Provider.Requests <= maxRemoteAsks, "at most %d requests a pod at the provider: %.2f", maxRemoteAsks, last.Provider.Requests)
	b.aim(max(last.Home.CPU, last.Provider.CPU) <= maxPodCPU, "at most %d ms of the agents' processor time a pod: %.1f and %.1f", maxPodCPU, last.Home.CPU, last.Provider.CPU)
	b.aim(last.HomeMemory.Heap <= maxPodMemory, "at most 30 KiB of live heap a pod at home: %.1f", last.HomeMemory.Heap/kib)
	b.aim(last.ProviderMemory.Heap <= maxPodMemory, "at most 30 KiB of live heap a pod at the provider: %.1f", last.ProviderMemory.Heap/kib)
}

// keepLists saves the requests to the API servers, if files are wanted.
func (p *podBench) keepLists(n int, bare bool, what string, lists map[string]string) error {
	for name, list := range lists {
		if p.keep == "" {
			return nil
		}
		file := filepath.Join(p.keep, fmt.Sprintf("%05d-%v-%s-%s.txt", n, bare, what, name))
		if err := os.WriteFile(file, []byte(list), 0o644); err != nil {
			return err
		}
	}
	return nil
}

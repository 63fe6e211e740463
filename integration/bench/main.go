// Command bench measures the cost of peers to an agent: memory, processor time, and how long they
// wait. One agent, the real program, on a control plane of its own peers with clusters that this
// process simulates: each with an identity, a session over TLS and the whole protocol, but without
// a real cluster.
//
// For each number of peers it begins again. They all join at once and make a contract each, and
// then the agent is measured at rest. With the last number it also changes the cluster's capacity,
// and measures when each peer is notified.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/entente-dev/entente/integration/puppet"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/peering/jointoken"
)

const (
	// all is how long a run may take, allLimits one with -limits, and round how long joining
	// with so many peers may.
	all       = 45 * time.Minute
	allLimits = 3 * time.Hour
	round     = 5 * time.Minute
	// heardMost is how long a change may take to reach a peer.
	heardMost = 45 * time.Second
	kib       = 1 << 10
	mib       = 1 << 20
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ctrllog.SetLogger(logr.Discard())
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// result is one number of peers.
type result struct {
	Peers int `json:"peers"`
	// Empty is the agent without peers, Full at rest with them. PerPeer is the
	// difference, for each.
	Empty   size `json:"empty"`
	Full    size `json:"full"`
	PerPeer size `json:"perPeer"`
	// Joined, Connected and Signed is when that was done, since a peer began.
	Joined    spread `json:"joined"`
	Connected spread `json:"connected"`
	Signed    spread `json:"signed"`
	// All is when the last had its contract, Busy how much processor time the agent
	// used until it was at rest, both in seconds.
	All  float64 `json:"all"`
	Busy float64 `json:"busy"`
	// Requests is what the API server was asked for each peer until then, ServerBusy
	// how much processor time that took it, with all else that it did, in seconds.
	Requests   float64 `json:"requests"`
	ServerBusy float64 `json:"serverBusy"`
	// Again is how many negotiations had to be begun again.
	Again int64 `json:"again"`
	// Rest is how much of one processor the agent takes at rest, in percent.
	Rest float64 `json:"rest"`
	// Offers are the results of changes of the offered capacity.
	Offers []fanout `json:"offers,omitempty"`
}

// spread is how long something took, in milliseconds.
type spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// fanout is a change of the offered capacity, on its way to all peers.
type fanout struct {
	Change string `json:"change"`
	spread
	// Bytes is how much was sent to one peer, on average.
	Bytes float64 `json:"bytes"`
	Heard int     `json:"heard"`
}

// bench is a run.
type bench struct {
	root, binary, dir, keep string
	rest                    time.Duration
	out                     io.Writer
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	numbers := flags.String("peers", "1,10,100,250", "how many peers, one number after the other")
	rest := flags.Duration("rest", heartbeat.MaxInterval, "how long the agent is measured at rest; peers repeat their states so often")
	percent := flags.Int("limits", 0, "measure one peer at so many percent of all of its limits, and what it costs another, instead of many peers")
	pods := flags.String("pods", "", "measure what offloading so many pods to another cluster costs, one number after the other, instead of many peers")
	parts := flags.String("parts", allParts, "with -pods, what to measure; "+barePart+" is of the courses only bare pods, not compared with native ones")
	network := flags.Bool("network", false, "with -pods, measure their courses a second time, with a contract that has a network")
	cycles := flags.Int("cycles", 10_000, "with -pods, how many pods come and go after that; 0 for none")
	file := flags.String("o", "", "write the numbers to this file too, as JSON")
	profiles := flags.String("profiles", "", "keep profiles of the agent, and its log, in this folder")
	if err := flags.Parse(args); err != nil {
		return err
	}
	counts, err := numbersOf("peers", *numbers, 1000)
	if err != nil {
		return err
	}
	var podCounts []int
	if *pods != "" {
		if podCounts, err = numbersOf("pods", *pods, mostPods); err != nil {
			return err
		}
	}
	for one := range strings.SplitSeq(*parts, ",") {
		if !slices.Contains(strings.Split(allParts+","+barePart, ","), one) {
			return fmt.Errorf("-parts %q: want some of %s,%s", *parts, allParts, barePart)
		}
	}
	most := all
	if *percent > 0 || len(podCounts) > 0 {
		most = allLimits
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("it takes longer than %s", most))
	defer cancel()
	b := &bench{rest: *rest, keep: *profiles, out: out}
	if b.root = os.Getenv("ENTENTE_ROOT"); b.root == "" {
		if b.root, err = filepath.Abs(".."); err != nil {
			return err
		}
	}
	if b.dir, err = os.MkdirTemp("", "entente-bench"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	if b.keep != "" {
		if err := os.MkdirAll(b.keep, 0o755); err != nil {
			return err
		}
	}
	b.binary = filepath.Join(b.dir, "entented")
	if err := build(ctx, b.root, b.binary, nil); err != nil {
		return err
	}
	if len(podCounts) > 0 {
		r, err := b.offloading(ctx, podCounts, strings.Split(*parts, ","), *cycles, false)
		if err == nil && *network {
			var more podsResult
			more, err = b.offloading(ctx, podCounts, []string{"courses"}, 0, true)
			r.Courses = append(r.Courses, more.Courses...)
		}
		b.reportPods(r)
		b.aimsOfPods(r)
		return errors.Join(err, keepNumbers(*file, r))
	}
	if *percent != 0 {
		if *percent < 1 || *percent > 100 {
			return fmt.Errorf("-limits %d: want 1 to 100", *percent)
		}
		r, err := b.limits(ctx, *percent)
		if err != nil {
			return err
		}
		b.reportLimits(r)
		return keepNumbers(*file, r)
	}
	var results []result
	for i, n := range counts {
		r, err := b.measure(ctx, n, i == len(counts)-1)
		if err != nil {
			if len(results) > 0 {
				b.report(results)
			}
			return fmt.Errorf("%d peers: %w", n, err)
		}
		results = append(results, r)
	}
	b.report(results)
	return keepNumbers(*file, results)
}

// numbersOf reads what a flag says: numbers from 1 to most.
func numbersOf(name, text string, most int) ([]int, error) {
	var out []int
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("-%s %q: want numbers from 1 to %d", name, text, most)
		}
		out = append(out, n)
	}
	return out, nil
}

// keepNumbers writes numbers to a file, if one is named.
func keepNumbers(file string, numbers any) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(numbers, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// say prints progress.
func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.out, format+"\n", args...) }

// measure has n peers join an agent, all at once.
func (b *bench) measure(ctx context.Context, n int, last bool) (r result, err error) {
	dir := filepath.Join(b.dir, strconv.Itoa(n))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, err
	}
	a, err := startAgent(ctx, provider, dir, b.root, b.binary, puppet.PodCIDR.String())
	if err != nil {
		return r, err
	}
	defer a.stop()
	peers, stop, err := gather(ctx, n)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	tokens, err := a.tokens(ctx, n)
	if err != nil {
		return r, err
	}
	b.say("%d peers: the agent is ready, and rests", n)
	if err := sleep(ctx, 3*time.Second); err != nil {
		return r, err
	}
	r.Peers = n
	if r.Empty, err = a.size(ctx); err != nil {
		return r, err
	}
	asked, err := a.apiUse(ctx)
	if err != nil {
		return r, err
	}
	b.say("%d peers: all join", n)
	joining := b.whileJoining(ctx, a, n)
	if err := r.join(a.lives(ctx), peers, tokens); err != nil {
		return r, errors.Join(err, b.keepLog(a, n))
	}
	if err := joining(); err != nil {
		return r, err
	}
	// What follows from the contracts takes its time, and so do the collector and
	// the return of memory.
	b.say("%d peers: all have a contract after %.1fs; they rest", n, r.All)
	if err := settle(ctx, a); err != nil {
		return r, err
	}
	now, err := a.apiUse(ctx)
	if err != nil {
		return r, err
	}
	r.ServerBusy = now.cpu - asked.cpu
	var list string
	r.Requests, list = now.since(asked, n)
	if err := b.keepRequests(list, n); err != nil {
		return r, err
	}
	if r.Full, err = a.size(ctx); err != nil {
		return r, err
	}
	r.Busy = r.Full.CPU - r.Empty.CPU
	r.PerPeer = perPeer(r.Empty, r.Full, n)
	if err := r.idle(ctx, a, peers, b.rest); err != nil {
		return r, err
	}
	if b.keep != "" {
		if err := b.profile(ctx, a, n); err != nil {
			return r, err
		}
	}
	if !last {
		return r, nil
	}
	b.say("%d peers: the cluster loses half of its processors, and gets them back", n)
	for _, change := range []struct {
		name    string
		percent int64
		heard   func(before, now float64) bool
	}{
		{"half of the processors go", 50, func(before, now float64) bool { return now < 0.7*before }},
		{"they come back", 100, func(before, now float64) bool { return now > 1.4*before }},
	} {
		if err := sleep(ctx, 2*time.Second); err != nil {
			return r, err
		}
		f, err := spreadOffer(ctx, peers, func(ctx context.Context) error { return a.halve(ctx, change.percent) }, change.heard)
		if err != nil {
			return r, err
		}
		f.Change = change.name
		r.Offers = append(r.Offers, f)
	}
	return r, nil
}

// gather makes peers and lets them live until stop.
func gather(ctx context.Context, n int) (peers []*puppet.Peer, stop func() error, err error) {
	peers = make([]*puppet.Peer, n)
	var making errgroup.Group
	making.SetLimit(4)
	for i := range peers {
		making.Go(func() error {
			var err error
			peers[i], err = puppet.New(ctx, i+1, nil)
			return err
		})
	}
	if err := making.Wait(); err != nil {
		return nil, nil, err
	}
	living, end := context.WithCancel(ctx)
	var lives errgroup.Group
	for _, p := range peers {
		lives.Go(func() error { return p.Run(living) })
	}
	return peers, func() error {
		end()
		return lives.Wait()
	}, nil
}

// join makes all peers join at once.
func (r *result) join(ctx context.Context, peers []*puppet.Peer, tokens []jointoken.Token) error {
	ctx, cancel := context.WithTimeoutCause(ctx, round, fmt.Errorf("joining takes longer than %s", round))
	defer cancel()
	took := make([]puppet.Times, len(peers))
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	start := make(chan struct{})
	for i, p := range peers {
		g.Go(func() error {
			<-start
			var err error
			if took[i], err = p.PeerWith(ctx, tokens[i]); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			return nil
		})
	}
	close(start)
	err := g.Wait()
	r.All = time.Since(begin).Seconds()
	for _, p := range peers {
		r.Again += p.Again.Load()
	}
	r.Joined = spreadOf(took, func(t puppet.Times) time.Duration { return t.Joined })
	r.Connected = spreadOf(took, func(t puppet.Times) time.Duration { return t.Connected })
	r.Signed = spreadOf(took, func(t puppet.Times) time.Duration { return t.Signed })
	return err
}

// idle measures the agent at rest.
func (r *result) idle(ctx context.Context, a *agent, peers []*puppet.Peer, rest time.Duration) error {
	before, err := a.metrics(ctx)
	if err != nil {
		return err
	}
	sessions, begin := sessionsOf(peers), time.Now()
	if err := sleep(ctx, rest); err != nil {
		return err
	}
	after, err := a.metrics(ctx)
	if err != nil {
		return err
	}
	took := time.Since(begin).Seconds()
	r.Rest = 100 * (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / took
	// If sessions came and went the agent was not at rest but ill.
	if !slices.Equal(sessions, sessionsOf(peers)) {
		return fmt.Errorf("sessions came and went in %.0fs", took)
	}
	return nil
}

// sessionsOf is the number of each peer's session, 0 for none.
func sessionsOf(peers []*puppet.Peer) []uint64 {
	out := make([]uint64, len(peers))
	for i, p := range peers {
		if s := p.Sessions.Status(p.ID).Session; s != nil {
			out[i] = s.Number
		}
	}
	return out
}

// settle waits until the agent does as little as it ever will. It also has what
// joining left behind collected by then: Go's runtime does that each 2 min even if
// nothing happens, and gives the memory back after.
func settle(ctx context.Context, a *agent) error {
	least := 150 * time.Second
	for until := time.Now().Add(least + 2*time.Minute); time.Now().Before(until); least = 0 {
		if err := sleep(ctx, least); err != nil {
			return err
		}
		before, err := a.metrics(ctx)
		if err != nil {
			return err
		}
		if err := sleep(ctx, 5*time.Second); err != nil {
			return err
		}
		after, err := a.metrics(ctx)
		if err != nil {
			return err
		}
		if after["process_cpu_seconds_total"]-before["process_cpu_seconds_total"] < 0.5 {
			return nil
		}
	}
	return nil // what it does without end shows in the numbers
}

// spreadOffer changes the offered capacity and measures when the peers receive it.
func spreadOffer(ctx context.Context, peers []*puppet.Peer, change func(context.Context) error, heard func(before, now float64) bool) (fanout, error) {
	cpu := func(p *puppet.Peer) float64 {
		o := p.Offer.Load()
		if o == nil {
			return 0
		}
		q, err := resource.ParseQuantity(o.Resources["cpu"].String())
		if err != nil {
			return 0
		}
		return q.AsApproximateFloat64()
	}
	before, bytes := make([]float64, len(peers)), int64(0)
	for i, p := range peers {
		before[i] = cpu(p)
		bytes -= p.OfferBytes.Load()
	}
	begin := time.Now()
	if err := change(ctx); err != nil {
		return fanout{}, err
	}
	took := make([]puppet.Times, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			for time.Since(begin) < heardMost && ctx.Err() == nil {
				if at := p.OfferAt.Load(); at > begin.UnixNano() && heard(before[i], cpu(p)) {
					took[i].Signed = time.Duration(at - begin.UnixNano())
					return
				}
				_ = sleep(ctx, 5*time.Millisecond)
			}
		})
	}
	wg.Wait()
	var f fanout
	for i, p := range peers {
		bytes += p.OfferBytes.Load()
		if took[i].Signed > 0 {
			f.Heard++
		} else {
			took[i].Signed = heardMost
		}
	}
	f.spread = spreadOf(took, func(t puppet.Times) time.Duration { return t.Signed })
	f.Bytes = float64(bytes) / float64(len(peers))
	return f, ctx.Err()
}

// profile saves profiles that explain the numbers.
func (b *bench) profile(ctx context.Context, a *agent, n int) error {
	file := func(name string) string { return b.file(n, name) }
	return errors.Join(b.keepLog(a, n),
		a.profile(ctx, "/debug/pprof/heap?gc=1", file("heap.pprof")),
		a.profile(ctx, "/debug/pprof/goroutine", file("goroutines.pprof")),
		a.profile(ctx, "/debug/pprof/profile?seconds=20", file("rest.pprof")),
	)
}

// whileJoining keeps a profile of the seconds that follow, if any are kept.
func (b *bench) whileJoining(ctx context.Context, a *agent, n int) (end func() error) {
	var g errgroup.Group
	if b.keep != "" {
		g.Go(func() error {
			return a.profile(ctx, "/debug/pprof/profile?seconds=10", filepath.Join(b.keep, fmt.Sprintf("%04d-joining.pprof", n)))
		})
	}
	return g.Wait
}

// file is the path of a file about a number of peers.
func (b *bench) file(n int, name string) string {
	return filepath.Join(b.keep, fmt.Sprintf("%04d-%s", n, name))
}

// keepLog saves the agent's log, if files are wanted.
func (b *bench) keepLog(a *agent, n int) error {
	if b.keep == "" {
		return nil
	}
	log, err := os.ReadFile(a.log)
	return errors.Join(err, os.WriteFile(filepath.Join(b.keep, fmt.Sprintf("%04d-agent.log", n)), log, 0o644))
}

func perPeer(empty, full size, n int) size {
	each := func(a, b float64) float64 { return (b - a) / float64(n) }
	return size{
		RSS: each(empty.RSS, full.RSS), Heap: each(empty.Heap, full.Heap), Stacks: each(empty.Stacks, full.Stacks),
		Goroutines: each(empty.Goroutines, full.Goroutines), CPU: each(empty.CPU, full.CPU),
	}
}

func spreadOf(all []puppet.Times, of func(puppet.Times) time.Duration) spread {
	sorted := make([]float64, len(all))
	for i, t := range all {
		sorted[i] = float64(of(t).Microseconds()) / 1000
	}
	slices.Sort(sorted)
	at := func(percent int) float64 { return sorted[min(len(sorted)*percent/100, len(sorted)-1)] }
	return spread{P50: at(50), P99: at(99), Max: sorted[len(sorted)-1]}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// report writes the numbers, and the aims.
func (b *bench) report(results []result) {
	b.say("")
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "peers\tRSS MiB\theap MiB\tgoroutines\tRSS KiB/peer\theap KiB/peer\tstacks KiB/peer\tgoroutines/peer\tat rest %\tCPU ms/peer to peer\t")
	for _, r := range results {
		fmt.Fprintf(w, "0 (%d)\t%.1f\t%.1f\t%.0f\t\t\t\t\t\t\t\n", r.Peers, r.Empty.RSS/mib, r.Empty.Heap/mib, r.Empty.Goroutines)
	}
	for _, r := range results {
		fmt.Fprintf(w, "%d\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\t%.0f\t%.1f\t%.2f\t%.0f\t\n", r.Peers,
			r.Full.RSS/mib, r.Full.Heap/mib, r.Full.Goroutines, r.PerPeer.RSS/kib, r.PerPeer.Heap/kib, r.PerPeer.Stacks/kib, r.PerPeer.Goroutines,
			r.Rest, 1000*r.Busy/float64(r.Peers))
	}
	_ = w.Flush()
	b.say("")
	fmt.Fprintln(w, "at once\tjoined p50 ms\tp99\tconnected p50\tp99\tsigned p50\tp99\tmax\tall s\tbegun again\tAPI requests/peer\tAPI server CPU ms/peer\t")
	for _, r := range results {
		fmt.Fprintf(w, "%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%d\t%.1f\t%.0f\t\n", r.Peers,
			r.Joined.P50, r.Joined.P99, r.Connected.P50, r.Connected.P99, r.Signed.P50, r.Signed.P99, r.Signed.Max, r.All, r.Again,
			r.Requests, 1000*r.ServerBusy/float64(r.Peers))
	}
	_ = w.Flush()
	first, last := results[0], results[len(results)-1]
	each := last.PerPeer
	if more := last.Peers - first.Peers; more > 0 {
		// What the first peer of all makes the agent set up is not counted to each.
		each = perPeer(first.Full, last.Full, more)
		b.say("")
		b.say("from %d to %d peers each takes %.0f KiB of RSS: %.0f KiB of live heap, %.0f KiB of stacks, and what the collector leaves; %.1f goroutines",
			first.Peers, last.Peers, each.RSS/kib, each.Heap/kib, each.Stacks/kib, each.Goroutines)
	}
	if len(last.Offers) > 0 {
		b.say("")
		fmt.Fprintln(w, "offers\theard\tp50 ms\tp99\tlast\tbytes/peer\t")
		for _, f := range last.Offers {
			fmt.Fprintf(w, "%s\t%d of %d\t%.0f\t%.0f\t%.0f\t%.0f\t\n", f.Change, f.Heard, last.Peers, f.P50, f.P99, f.Max, f.Bytes)
		}
		_ = w.Flush()
	}
	b.say("")
	b.aim(each.RSS < 250*kib, "memory of a peer below 250 KiB: %.0f KiB at %d peers (%.0f with what the first of all takes)",
		each.RSS/kib, last.Peers, last.PerPeer.RSS/kib)
	b.aim(last.Rest < 2, "less than 2 %% of a processor at rest: %.2f %% at %d peers", last.Rest, last.Peers)
	b.aim(first.Signed.P50 < 100, "from token to signed contract within 100 ms: %.0f ms for %d at once", first.Signed.P50, first.Peers)
	for _, f := range last.Offers {
		b.aim(f.Heard == last.Peers && f.Max < 1000, "all peers receive a change within 1 s: %s, after %.0f ms %d of %d had", f.Change, f.Max, f.Heard, last.Peers)
	}
}

// aim says whether something that was aimed at was reached.
func (b *bench) aim(ok bool, format string, args ...any) {
	word := "reached"
	if !ok {
		word = "MISSED "
	}
	b.say("%s  %s", word, fmt.Sprintf(format, args...))
}

package tunnel

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// way is one of those that the same pods' packets can take.
type way struct {
	name string
	from *rigNode
	to   netip.Addr
	// beside is the way that this one is compared with; empty for none.
	beside string
}

// sample is the result of one measurement of a way.
type sample struct {
	trafficResult
	// cpu is the processor time that the whole machine took for it.
	cpu time.Duration
}

// figure is a number that a measurement gives.
type figure struct {
	what   string
	of     func(sample) float64
	format string
	// aim is the ratio to wireguard-go alone that is wanted; a ratio that misses it is in bold.
	aim aim
	// worst is the ratio to wireguard-go alone beyond which the test fails, where it is not 0:
	// below it, or above it if it is greater than 1. It leaves room for a noisy machine.
	worst aim
}

// aim is the least ratio, or the greatest one if it is greater than 1; 0 is none.
type aim float64

const (
	aimThroughput  aim = 0.95
	aimLatency     aim = 1.05
	aimConnections aim = 0.9
)

func (a aim) String() string {
	switch {
	case a == 0:
		return ""
	case a > 1:
		return fmt.Sprintf("≤ %.2f", float64(a))
	default:
		return fmt.Sprintf("≥ %.2f", float64(a))
	}
}

func (a aim) missed(ratio float64) bool {
	return a > 1 && ratio > float64(a) || a > 0 && a < 1 && ratio < float64(a)
}

type measurement struct {
	// part is its name in TUNNEL_BENCH_PARTS.
	part string
	traffic
	figures []figure
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func measurements() []measurement {
	const long = 3 * time.Second
	rate := func(s sample) float64 { return s.rate() }
	var all []measurement
	for n, worst := range map[int]aim{1: 0.8, 4: 0.7, 16: 0} {
		all = append(all, measurement{fmt.Sprint("tcp", n), traffic{Kind: trafficStream, For: long, Streams: n}, []figure{
			{fmt.Sprintf("TCP, streams: %d, Mbit/s", n), func(s sample) float64 { return s.rate() * 8 / 1e6 }, "%.0f", aimThroughput, worst},
			{fmt.Sprintf("CPU s per Gbit, streams: %d", n), func(s sample) float64 { return s.cpu.Seconds() / (float64(s.Count) * 8 / 1e9) }, "%.2f", 0, 0},
		}})
	}
	slices.SortFunc(all, func(a, b measurement) int { return a.Streams - b.Streams })
	return append(all,
		measurement{"udp", traffic{Kind: trafficPackets, For: long, Size: 64}, []figure{
			{"UDP 64 B, arrived a second of as many as go out", rate, "%.0f", aimThroughput, 0.5},
		}},
		measurement{"udpcpu", traffic{Kind: trafficPackets, For: long, Size: 64, Rate: 5000}, []figure{
			{"UDP 64 B, CPU µs a packet at 5,000 a second", func(s sample) float64 { return micro(s.cpu) / float64(max(1, s.Count)) }, "%.1f", 0, 0},
		}},
		measurement{"rr", traffic{Kind: trafficRoundTrips, For: long, Size: 64}, []figure{
			{"TCP_RR 64 B, mean µs", func(s sample) float64 { return micro(s.mean()) }, "%.0f", aimLatency, 1.35},
			{"TCP_RR 64 B, p99 µs", func(s sample) float64 { return micro(s.quantile(0.99)) }, "%.0f", aimLatency, 0},
		}},
		measurement{"connections", traffic{Kind: trafficConnections, For: long, Size: 64, Streams: 4}, []figure{
			{"new connections a second", rate, "%.0f", aimConnections, 0.75},
		}},
	)
}

// chosenMeasurements are those that TUNNEL_BENCH_PARTS lists, and all if it is empty.
func chosenMeasurements(t *testing.T) []measurement {
	t.Helper()
	all := measurements()
	list := os.Getenv("TUNNEL_BENCH_PARTS")
	if list == "" {
		return all
	}
	var chosen []measurement
	for part := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(m measurement) bool { return m.part == part })
		if i < 0 {
			var parts []string
			for _, m := range all {
				parts = append(parts, m.part)
			}
			t.Fatalf("TUNNEL_BENCH_PARTS: %q is not one of %s", part, strings.Join(parts, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen
}

// TestFabricBesidePlainWireGuard compares the fabric, with its translation and firewall, with
// wireguard-go as it comes and with no tunnel at all: between the same pods, one way after the
// other, round by round. It prints the table of docs/benchmarks.md, and takes ten minutes:
// TUNNEL_BENCH=1 go test -run TestFabricBesidePlainWireGuard -timeout 30m -v ./tunnel/
// TUNNEL_BENCH_PARTS=tcp16,rr measures these rows only, in two minutes.
func TestFabricBesidePlainWireGuard(t *testing.T) {
	if os.Getenv("TUNNEL_BENCH") == "" {
		t.Skip("takes ten minutes; set TUNNEL_BENCH=1")
	}
	r, ways := waysBetweenPods(t)
	all := chosenMeasurements(t)
	samples := make([]map[string][]sample, len(all))
	for i := range samples {
		samples[i] = map[string][]sample{}
	}
	rounds := benchRounds(t)
	for range rounds {
		for i, m := range all {
			for _, w := range ways {
				samples[i][w.name] = append(samples[i][w.name], r.measure(w, m.traffic))
			}
		}
	}
	t.Logf("numbers are medians of %d rounds; a ratio is the median of the rounds' ratios, in bold where it misses the aim\n%s", rounds, benchTable(t, ways, all, samples))
}

func benchRounds(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("TUNNEL_BENCH_ROUNDS"), "5"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// waysBetweenPods sets up two clusters of a gateway and another node each, and the ways between
// their pods. The other nodes reach each other directly.
func waysBetweenPods(t *testing.T) (*rig, []way) {
	t.Helper()
	r := &directRig{rig: newRig(t)}
	// Other numbers on each side: wireguard-go alone knows no aliases.
	r.a = []*rigNode{r.node("a", 1, "11"), r.node("a", 2, "12")}
	r.b = []*rigNode{r.node("b", 3, "21"), r.node("b", 4, "22")}
	r.a[1].worker, r.b[1].worker = true, true
	for _, n := range r.all() {
		n.set(r.desired(n))
	}
	for _, n := range r.all() {
		n.up()
		load := r.start(n.pod, "traffic-server", nil)
		t.Cleanup(load.kill)
	}
	var ways []way
	for i, name := range []string{"gateways", "other nodes"} {
		from, to := r.a[i], r.b[i]
		r.plain(from, to, 51999)
		r.plain(to, from, 51998)
		ways = append(ways,
			way{"fabric, " + name, from, remap(t, to.podAddr, directAliasOfB), "wireguard-go, " + name},
			way{"wireguard-go, " + name, from, to.podAddr, ""})
	}
	e := r.echoes(r.a[1].pod, ways[2].to)
	r.wantDirect(r.a[1], r.b[1], true)
	r.wantDirect(r.b[1], r.a[1], true)
	e.stop()
	return r.rig, append(ways, way{"no tunnel", r.a[0], r.untunnelled(r.a[0], r.b[0]), ""})
}

// untunnelled gives the pods of two nodes further addresses, between which there are routes
// and no tunnel.
func (r *rig) untunnelled(nodes ...*rigNode) netip.Addr {
	r.t.Helper()
	second := func(a netip.Addr) netip.Addr {
		b := a.As4()
		b[1]++
		return netip.AddrFrom4(b)
	}
	for i, n := range nodes {
		other := nodes[1-i]
		r.in(n.ns, fmt.Sprintf("ip addr add %v/24 dev cni0; ip route add %v/32 via %v", second(n.bridge), second(other.podAddr), other.underlay))
		r.in(n.pod, fmt.Sprintf("ip addr add %[1]v/24 dev eth0; ip route add %[2]v/32 via %[3]v src %[1]v", second(n.podAddr), second(other.podAddr), second(n.bridge)))
	}
	return second(nodes[1].podAddr)
}

// measure does one measurement of a way.
func (r *rig) measure(w way, what traffic) sample {
	r.t.Helper()
	what.To = w.to
	encoded, err := json.Marshal(what)
	if err != nil {
		r.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := r.command(w.from.pod, self)
	cmd.Env = append(os.Environ(), roleVariable+"=traffic-client", "TUNNEL_TEST_TRAFFIC="+string(encoded))
	var complaint strings.Builder
	cmd.Stderr = &complaint
	before := ownCPU(r.t)
	out, err := cmd.Output()
	s := sample{cpu: ownCPU(r.t) - before}
	if err == nil {
		err = json.Unmarshal(out, &s.trafficResult)
	}
	if err != nil {
		r.t.Fatalf("%s by %s: %v\n%s%s", what.Kind, w.name, err, out, &complaint)
	}
	return s
}

// ownCPU is the processor time of this machine without that of programs that have nothing to do
// with the test: what the kernel does for the network counts, wherever it does it.
func ownCPU(t testing.TB) time.Duration {
	t.Helper()
	read := func(file string) []string {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil // it has ended
		}
		s := string(b)
		return strings.Fields(s[strings.LastIndexByte(s, ')')+1:]) // the name may contain anything
	}
	sum := func(fields ...string) (ticks int) {
		for _, f := range fields {
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			ticks += n
		}
		return ticks
	}
	stat := read("/proc/stat") // "cpu", user, nice, system, idle, iowait, irq, softirq
	busy := sum(stat[1], stat[2], stat[3], stat[6], stat[7])
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string][]string{}
	for _, file := range files {
		if f := read(file); len(f) > 14 { // state, parent, …, flags, …, utime, stime, cutime, cstime
			programs[filepath.Base(filepath.Dir(file))] = f
		}
	}
	own := func(pid string) bool {
		for range len(programs) {
			if pid == strconv.Itoa(os.Getpid()) {
				return true
			}
			f, there := programs[pid]
			if !there {
				return false
			}
			pid = f[1]
		}
		return false
	}
	const kernelThread = 0x00200000
	for pid, f := range programs {
		if flags := sum(f[6]); flags&kernelThread == 0 && !own(pid) {
			busy -= sum(f[11:15]...)
		}
	}
	return time.Duration(busy) * 10 * time.Millisecond
}

// benchTable is the table of the results, with the ways that are compared side by side.
func benchTable(t *testing.T, ways []way, all []measurement, samples []map[string][]sample) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d processors\n\n| | aim |", kernelRelease(), runtime.NumCPU())
	for _, w := range ways {
		fmt.Fprintf(&b, " %s |", w.name)
		if w.beside != "" {
			b.WriteString(" ratio |")
		}
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", strings.Count(b.String(), " |")-1) + "\n")
	for i, m := range all {
		for _, f := range m.figures {
			fmt.Fprintf(&b, "| %s | %v |", f.what, f.aim)
			for _, w := range ways {
				values := each(samples[i][w.name], f.of)
				fmt.Fprintf(&b, " "+f.format+" |", median(values))
				if w.beside == "" {
					continue
				}
				ratio := medianRatio(values, each(samples[i][w.beside], f.of))
				text := fmt.Sprintf("%.2f", ratio)
				if f.aim.missed(ratio) {
					text = "**" + text + "**"
				}
				fmt.Fprintf(&b, " %s |", text)
				if f.worst.missed(ratio) {
					t.Errorf("%s: %s is %.2f of %s, want %.2f at worst", f.what, w.name, ratio, w.beside, float64(f.worst))
				}
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

func each(samples []sample, of func(sample) float64) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = of(s)
	}
	return out
}

// medianRatio is the median of the ratios of each round's values, not the ratio of the medians: both
// were measured one after the other, so that a busy moment is in both.
func medianRatio(values, beside []float64) float64 {
	ratios := make([]float64, len(values))
	for round, v := range beside {
		ratios[round] = values[round] / v
	}
	return median(ratios)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted, half := slices.Sorted(slices.Values(values)), len(values)/2
	if len(values)%2 == 0 {
		return (sorted[half-1] + sorted[half]) / 2
	}
	return sorted[half]
}

func kernelRelease() string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}

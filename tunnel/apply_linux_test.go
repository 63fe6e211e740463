package tunnel

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// applied is what a fabric took to apply a change in its first pass, and what it wrote for it in all.
type applied struct {
	took time.Duration
	// routes and elements are the changes that the kernel reports, peers those of the tunnel process that were written,
	// statuses how often the status changed.
	routes, elements, peers []string
	statuses, reads         int
}

// monitor writes down what a program prints in a namespace, until it is stopped.
func (r *rig) monitor(ns string, args ...string) (stop func() []string) {
	r.t.Helper()
	var mu sync.Mutex
	var out bytes.Buffer
	cmd := r.command(ns, args...)
	cmd.SysProcAttr = nil // the thread that starts it may end
	cmd.Stdout = lockedWriter{&mu, &out}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	r.t.Cleanup(end)
	return func() (lines []string) {
		end()
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.TrimSpace(line))
		}
		return lines
	}
}

// quiet waits until the fabric has not written anything for three seconds. It tries again what a busy machine lost.
func (n *rigNode) quiet() {
	n.r.t.Helper()
	state := func() int { return strings.Count(n.fabric.log(), "msg=changed") }
	for began, now := time.Now(), state(); ; {
		before := now
		time.Sleep(3 * time.Second)
		if now = state(); now == before {
			return
		}
		if time.Since(began) > 3*time.Minute {
			n.r.t.Fatalf("it writes again and again:\n%s", n.fabric.log())
		}
	}
}

// routesAt is when a pass placed routes, which is the last of its steps.
var routesAt = regexp.MustCompile(`(?m)^time=(\S+) .*msg=changed what=routes`)

// apply sets a desired state, and waits until it is applied and all is quiet.
func (n *rigNode) apply(d plan.Desired) applied {
	n.r.t.Helper()
	routes, elements := n.r.monitor(n.ns, "ip", "monitor", "route"), n.r.monitor(n.ns, "nft", "monitor")
	time.Sleep(500 * time.Millisecond) // until both listen
	n.fabric.mu.Lock()
	reports := n.fabric.reports
	n.fabric.mu.Unlock()
	logged, written := len(n.fabric.log()), len(n.wireguard.log())
	began := time.Now()
	n.set(d)
	n.r.eventually("the change is applied", func() error {
		if !strings.Contains(n.fabric.log()[logged:], "msg=changed what=routes") {
			return fmt.Errorf("routes have not changed\n%s", n.fabric.log()[logged:])
		}
		return nil
	})
	n.quiet()
	a := applied{routes: routes()}
	for _, line := range elements() {
		if !strings.HasPrefix(line, "#") {
			a.elements = append(a.elements, line)
		}
	}
	routed := routesAt.FindStringSubmatch(n.fabric.log()[logged:])
	last, err := time.Parse(time.RFC3339Nano, routed[1])
	if err != nil {
		n.r.t.Fatal(err)
	}
	a.took = last.Sub(began)
	for line := range strings.Lines(n.wireguard.log()[written:]) {
		if key, ok := strings.CutPrefix(strings.TrimSpace(line), mirrorSet); ok {
			a.peers = append(a.peers, key)
		} else {
			a.reads++
		}
	}
	n.fabric.mu.Lock()
	defer n.fabric.mu.Unlock()
	a.statuses = n.fabric.reports - reports
	return a
}

// resident is the memory of a process, in MB.
func resident(t *testing.T, p *process) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return float64(kib) / 1000
}

// changePeer returns a desired state in which one peer has another alias, another key of a gateway, and one
// destination less.
func changePeer(d plan.Desired, i int) plan.Desired {
	d.Peers = append([]plan.Peer{}, d.Peers...)
	q := d.Peers[i]
	q.Remote = []plan.Mapping{{Real: q.Remote[0].Real, Alias: prefix(fmt.Sprintf("30.%d.0.0/16", i))}}
	q.Gateways = append([]plan.Gateway{}, q.Gateways...)
	q.Gateways[0].PublicKey[31] = 9
	e := q.Inbound[0]
	e.Destinations = e.Destinations[1:]
	q.Inbound = []plan.Exposure{e}
	d.Peers[i] = q
	return d
}

// TestAChangeOfOnePeerRewritesNothingOfOthers has a fabric apply a cluster of 100 nodes with so many peers to a
// kernel, and then a change of one of them. TUNNEL_BENCH=1 prints the table of docs/benchmarks.md:
// TUNNEL_BENCH=1 go test -run TestAChangeOfOnePeerRewritesNothingOfOthers -timeout 30m -v ./tunnel/
func TestAChangeOfOnePeerRewritesNothingOfOthers(t *testing.T) {
	counts := []int{10}
	if os.Getenv("TUNNEL_BENCH") != "" {
		counts = peerCounts(t, 10, 100, 250, 500)
	}
	table := "| peers | planned, ms | applied, ms | memory, MB | routes | firewall rules and elements | peers of the device |\n| --- | --- | --- | --- | --- | --- | --- |\n"
	changes := "| peers | applied, ms | routes | changes of the firewall | peers of the device | statuses | of other peers |\n| --- | --- | --- | --- | --- | --- | --- |\n"
	for _, peers := range counts {
		t.Run(fmt.Sprint(peers, " peers"), func(t *testing.T) {
			r := newRig(t)
			n, d := r.crowded(peers, time.Hour)
			for i := range d.Peers {
				d.Peers[i].Probed = nil // 8 of them a second: the status would change for a minute
			}
			n.key()
			began := time.Now()
			if _, err := plan.Plan(d, plan.Observed{}); err != nil {
				t.Fatal(err)
			}
			planned := time.Since(began)
			first := n.apply(d)
			table += fmt.Sprintf("| %d | %d | %d | %.0f | %d | %d | %d |\n", peers, planned.Milliseconds(), first.took.Milliseconds(), resident(t, n.fabric),
				len(first.routes), len(first.elements), len(first.peers))
			r.eventually("all paths to be up", func() error { return n.allUp(99 + 2*peers) })
			const changed = 7
			change := n.apply(changePeer(d, changed))
			others := change.others(changed)
			changes += fmt.Sprintf("| %d | %d | %d | %d | %d | %d | %d |\n", peers, change.took.Milliseconds(), len(change.routes), len(change.elements), len(change.peers), change.statuses, len(others))
			if err := n.allUp(99 + 2*peers); err != nil && len(others) > 0 {
				t.Skipf("the machine is too busy: probes were lost meanwhile, and peers dialled again: %v", err)
			}
			for _, other := range others {
				t.Errorf("a change of one peer rewrote %s", other)
			}
			if t.Failed() {
				t.Logf("%s\n%s", n.fabric.log(), n.wireguard.log()[max(0, len(n.wireguard.log())-2000):])
			}
			if len(change.routes) == 0 || len(change.elements) == 0 || len(change.peers) == 0 {
				t.Errorf("no change was seen: %+v", change)
			}
		})
	}
	t.Logf("%s\n%s\n%s", kernelRelease(), table, changes)
}

// others are the changes that have nothing to do with a peer.
func (a applied) others(peer int) (out []string) {
	key := fmt.Sprintf("02%02x", peer)
	for _, written := range a.peers {
		if !strings.HasPrefix(written, key) {
			out = append(out, "the tunnel of "+written)
		}
	}
	address := regexp.MustCompile(`\d+\.\d+\.\d+\.\d+`)
	for _, line := range append(append([]string{}, a.routes...), a.elements...) {
		for _, text := range address.FindAllString(line, -1) {
			at := netip.MustParseAddr(text)
			if b := at.As4(); b[0] >= 20 && b[0] < 40 && int(b[1]) != peer {
				out = append(out, line)
				break
			}
		}
	}
	return out
}

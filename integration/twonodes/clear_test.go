package twonodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	aliasPool = "198.18.0.0/15"
	// unused are addresses of no cluster, to which a pod sends in clear at the beginning and at the end.
	unusedFirst, unusedLast = "192.0.2.77", "192.0.2.78"
)

// nothingInClear records what the router between the clusters sees until the test ends, and fails it if that has a packet
// of pods that no tunnel carries: by its addresses, or by the ports of the pods that talk. That it would see such, a pod
// shows with packets to others.
func (s *stage) nothingInClear(ctx context.Context, t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "clear.txt")
	out, err := os.Create(file)
	ok(t, err)
	cmd, err := s.World.Lab.Exec(context.WithoutCancel(ctx), lab.Internet, false, "tcpdump", "-n", "-l", "-i", "any",
		fmt.Sprintf("net %s or port %d or port %d", aliasPool, e2e.WebPort, e2e.EchoPort))
	ok(t, err)
	cmd.Stdout = out
	ok(t, cmd.Start())
	after := context.WithoutCancel(ctx)
	t.Cleanup(func() {
		shownErr := s.showsInClear(after, file, unusedLast)
		ok(t, cmd.Process.Signal(os.Interrupt))
		_ = cmd.Wait()
		text, err := os.ReadFile(file)
		ok(t, err)
		ok(t, shownErr)
		lines := slices.DeleteFunc(s.routed(string(text)), func(line string) bool {
			return strings.Contains(line, unusedFirst) || strings.Contains(line, unusedLast)
		})
		if len(lines) > 0 {
			t.Errorf("%d packets of pods were in clear between the clusters:\n%s", len(lines), strings.Join(lines[:min(len(lines), 20)], ""))
		}
	})
	ok(t, s.showsInClear(ctx, file, unusedFirst))
}

// routed returns the lines about packets that the router got from a node of one of the clusters or sent to one. The others
// are about those that its bridges carry from node to node of one cluster.
func (s *stage) routed(text string) []string {
	lans := map[string]bool{}
	for _, side := range s.World.Sides() {
		lans[side.Plan.LANName] = true
		for _, more := range side.Plan.More {
			lans[more.Name] = true
		}
	}
	return slices.DeleteFunc(slices.Collect(strings.Lines(text)), func(line string) bool {
		words := strings.Fields(line) // the time, the device, ...
		return len(words) < 2 || !lans[words[1]]
	})
}

// showsInClear has the pod at home send packets to an address outside until they are recorded.
func (s *stage) showsInClear(ctx context.Context, file, to string) error {
	w := s.World
	return w.Until(ctx, e2e.Soon, "a packet in clear to be recorded", func(ctx context.Context) (string, error) {
		conn, err := w.Home.DialFromPod(ctx, s.inn.Status.PodIP, "udp", fmt.Sprintf("%s:%d", to, e2e.EchoPort))
		if err != nil {
			return "", err
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("in clear")); err != nil {
			return "", err
		}
		text, err := os.ReadFile(file)
		if err == nil && !strings.Contains(strings.Join(s.routed(string(text)), ""), to) {
			return "it is not yet", nil
		}
		return "", err
	})
}

// callsFrom runs a pod on a node that calls a pod of the other cluster ten times a second, from its start on, until the
// test ends. Nothing answers it.
func (s *stage) callsFrom(ctx context.Context, t *testing.T, side *e2e.Side, node string) {
	t.Helper()
	to := s.out.Status.PodIP
	if side == s.World.Abroad {
		aliases, err := side.ReadyEndpoints(ctx, s.twin.Namespace, "inn")
		ok(t, err)
		to = aliases[0]
	}
	pod := e2e.WebPod("default", "calls", map[string]string{"app": "calls"})
	pod.Spec.NodeName = node
	pod.Spec.Containers[0].Args = []string{"curl", "-n", "1000000", "-t", "100ms", "http://" + to + ":9/"}
	pod.Spec.Containers[0].ReadinessProbe = nil
	ok(t, side.Create(ctx, pod))
	t.Cleanup(func() { ok(t, side.Client.Delete(context.WithoutCancel(ctx), pod)) })
	_, err := side.PodsReady(ctx, e2e.Scheduled, pod.Namespace, pod.Labels, 1)
	ok(t, err)
}

// guard closes the alias pool on a node that was switched on, as docs/upgrades.md has a node do before its kubelet
// starts, and returns what opens it.
func (s *stage) guard(ctx context.Context, node string) (open func(context.Context) error, err error) {
	route := func(verb string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.World.On(ctx, node, "ip", "route", verb, "blackhole", aliasPool, "metric", "4000000000")
			return err
		}
	}
	return route("del"), route("replace")(ctx)
}

// fabricsAreKilled kills both processes of the fabrics on the first node of each cluster while pods there talk.
func (s *stage) fabricsAreKilled(ctx context.Context, t *testing.T, side *e2e.Side) {
	t.Helper()
	w := s.World
	s.during(ctx, t, side, func() {
		type process struct {
			side *e2e.Side
			part string
		}
		before := map[process]int{}
		for _, side := range w.Sides() {
			for _, part := range []string{e2e.PartWireGuard, e2e.PartNode} {
				pid, err := side.Process(ctx, part)
				ok(t, err)
				before[process{side, part}] = pid
			}
		}
		for _, pid := range before {
			ok(t, e2e.KillProcess(pid))
		}
		for p, was := range before {
			ok(t, w.Until(ctx, e2e.Restarted, p.part+" of "+p.side.Name+" to be back", func(ctx context.Context) (string, error) {
				now, err := p.side.Process(ctx, p.part)
				if now == was {
					return "it is still dying", err
				}
				return "", err
			}))
		}
		ok(t, s.outAnswers(ctx))
	}, func(result e2e.StreamResult) {
		t.Logf("the fabrics were killed: nothing passed for %s", result.Longest)
	})
}

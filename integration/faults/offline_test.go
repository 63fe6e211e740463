package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

const (
	// outage is for how long no API server answers, in which what is killed is killed each killEach.
	outage   = 15 * time.Minute
	killEach = 4 * time.Minute
)

// parts is the processes of a fabric.
func parts() []string { return []string{e2e.PartNode, e2e.PartWireGuard} }

// TestTunnelsOutliveTheAPIServers cuts off the API servers of both clusters, kills both processes
// of the fabric on each node meanwhile, and expects them back with the keys that they had: a
// connection continues, and new ones are possible.
func TestTunnelsOutliveTheAPIServers(t *testing.T) {
	only.Matrix(t, "twenty minutes; package fabric has nodes start that no API server answers")
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	e2e.Offloaded(ctx, t, w, shop)
	inn, _ := e2e.Web(shop, "inn", 1, e2e.AtHome)
	out, _ := e2e.Web(shop, "out", 1, e2e.Away)
	e2e.OK(t, w.Home.Create(ctx, inn, out))
	inns, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, inn.Labels, 1)
	e2e.OK(t, err)
	outs, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, out.Labels, 1)
	e2e.OK(t, err)
	e2e.OK(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, inns[0].Name, "http://"+outs[0].Status.PodIP+":8080/name", outs))
	fabrics, keys := map[*e2e.Side]*corev1.Pod{}, map[*e2e.Side]string{}
	for _, s := range w.Sides() {
		fabrics[s], err = s.FabricPod(ctx)
		e2e.OK(t, err)
		keys[s], err = keyOf(ctx, s, fabrics[s])
		e2e.OK(t, err)
		root, err := s.NodeRoot(ctx)
		e2e.OK(t, err)
		// A node saves its configuration some seconds after it received it, including the last one.
		e2e.OK(t, w.Until(ctx, e2e.Soon, "node "+s.Node()+" to keep its plan and key", func(context.Context) (string, error) {
			for name, mode := range map[string]os.FileMode{"": 0o700, "key": 0o600, "plan": 0o600} {
				if info, err := os.Stat(filepath.Join(root, "var/lib/entente", name)); err != nil || info.Mode().Perm() != mode {
					return fmt.Sprintf("%q has %v (%v), want mode %v", name, info, err, mode), nil
				}
			}
			return "", nil
		}))
	}
	stream, err := w.Home.StartStream(ctx, inns[0].Status.PodIP, outs[0].Status.PodIP)
	e2e.OK(t, err)
	began := time.Now()
	answer := silent(ctx, t, w)
	for round := 0; round == 0 || time.Since(began)+killEach < outage; round++ {
		if round > 0 {
			time.Sleep(killEach)
		} else {
			time.Sleep(5 * time.Second)
		}
		killed := time.Now()
		killFabrics(ctx, t, w, fabrics)
		e2e.OK(t, w.Until(ctx, 3*time.Minute, "packets to pass", func(context.Context) (string, error) {
			before, err := stream.Exchanged()
			time.Sleep(time.Second)
			after, err2 := stream.Exchanged()
			if err != nil || err2 != nil {
				return "", fmt.Errorf("the connection broke: %w", err2)
			}
			if after < before+10 {
				return "none does", nil
			}
			return "", nil
		}))
		t.Logf("packets pass %s after the fabrics were killed", time.Since(killed).Round(100*time.Millisecond))
		for s, pod := range fabrics {
			if key, err := keyOf(ctx, s, pod); err != nil || key != keys[s] {
				t.Errorf("node %s has the key %s, and had %s: %v", s.Node(), key, keys[s], err)
			}
		}
	}
	second, err := w.Home.StartStream(ctx, inns[0].Status.PodIP, outs[0].Status.PodIP)
	e2e.OK(t, err)
	time.Sleep(max(10*time.Second, time.Until(began.Add(outage))))
	later, took := second.Stop(), time.Since(began)
	answer()
	first := stream.Stop()
	t.Logf("API servers were away for %s: %s; begun after the fabrics were back: %s", took.Round(time.Second), first, later)
	if first.TCPError != nil {
		t.Errorf("the connection broke: %v", first.TCPError)
	}
	if later.TCPError != nil || later.Lost > 0 {
		t.Errorf("begun while no API server answered: %s", later)
	}
	for _, s := range w.Sides() {
		e2e.OK(t, s.AgentReady(ctx, e2e.Restarted))
	}
	_, err = w.Peered(ctx, e2e.Restarted)
	e2e.OK(t, err)
	e2e.OK(t, w.Home.ReachesAll(ctx, e2e.Restarted, shop, inns[0].Name, "http://"+outs[0].Status.PodIP+":8080/name", outs))
}

// silent cuts off the API servers of both clusters, until answer is called or the test ends.
func silent(ctx context.Context, t *testing.T, w *e2e.World) (answer func()) {
	t.Helper()
	const rules = "table inet silent { chain in { type filter hook input priority -300; tcp dport 6443 reject with tcp reset; }; }"
	over := false
	answer = func() {
		if over {
			return
		}
		over = true
		for _, s := range w.Sides() {
			if _, err := s.OnNode(context.WithoutCancel(ctx), "nft", "delete table inet silent"); err != nil {
				t.Errorf("have the API server of %s answer: %v", s.Name, err)
			}
		}
	}
	t.Cleanup(answer)
	for _, s := range w.Sides() {
		_, err := s.OnNode(ctx, "nft", rules)
		e2e.OK(t, err)
		if _, err := s.FabricPod(ctx); err == nil {
			t.Fatalf("the API server of %s answers", s.Name)
		}
	}
	return answer
}

// killFabrics kills both processes of the fabrics on all nodes, and waits until there are others.
func killFabrics(ctx context.Context, t *testing.T, w *e2e.World, fabrics map[*e2e.Side]*corev1.Pod) {
	t.Helper()
	before := map[string]int{}
	for s, pod := range fabrics {
		for _, part := range parts() {
			pid, err := e2e.ProcessOf(pod, part)
			e2e.OK(t, err)
			before[s.Name+" "+part] = pid
		}
	}
	for _, pid := range before {
		e2e.OK(t, e2e.KillProcess(pid))
	}
	for s, pod := range fabrics {
		for _, part := range parts() {
			e2e.OK(t, w.Until(ctx, 6*time.Minute, part+" of "+s.Name+" to be back", func(context.Context) (string, error) {
				now, err := e2e.ProcessOf(pod, part)
				switch {
				case err != nil:
					return err.Error(), nil //nolint:nilerr // it is asked again
				case now == before[s.Name+" "+part]:
					return "it is still dying", nil
				}
				return "", nil
			}))
		}
	}
}

// keyOf is the public key of the device of a node. It asks no API server.
func keyOf(ctx context.Context, s *e2e.Side, fabric *corev1.Pod) (string, error) {
	pid, err := e2e.ProcessOf(fabric, e2e.PartWireGuard)
	if err != nil {
		return "", err
	}
	out, err := s.OnNode(ctx, e2e.WireGuardIn(pid, "entente0", "public-key")...)
	return strings.TrimSpace(out), err
}

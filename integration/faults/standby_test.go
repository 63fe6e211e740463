package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// Another agent has to lead within handOverAim, and to do the leader's work within handedOver, on a busy machine; where
// nothing else is to do it does that within handOverAim, too.
const (
	handOverAim = 10 * time.Second
	handedOver  = 15 * time.Second
)

// handOver is how an agent stops leading.
type handOver struct {
	name string
	side *e2e.Side
	// stop ends the leader, and returns what to do afterwards.
	stop func(ctx context.Context, leader *corev1.Pod) (after func() error, err error)
}

// TestAStandbyAgentTakesOver runs two agents on either side, ends the leader in several ways, and
// expects the other one to take over soon, without any effect on a virtual node or a pod.
func TestAStandbyAgentTakesOver(t *testing.T) {
	only.Matrix(t, "two minutes, one of them for installing")
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	e2e.Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	const replicas = 3
	out, _ := e2e.Web(shop, "out", replicas, e2e.Anywhere)
	e2e.OK(t, w.Home.Create(ctx, out))
	pods, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, out.Labels, replicas)
	e2e.OK(t, err)
	remote, err := w.RemoteNamespace(ctx, shop)
	e2e.OK(t, err)
	twins, err := w.Abroad.Pods(ctx, remote, out.Labels)
	e2e.OK(t, err)
	home, abroad := e2e.LivesOf(pods), e2e.LivesOf(twins)
	twin, err := w.Abroad.Twin(ctx, &pods[0])
	e2e.OK(t, err)
	standBy(ctx, t, w)

	killed := func(s *e2e.Side) func(context.Context, *corev1.Pod) (func() error, error) {
		return func(ctx context.Context, leader *corev1.Pod) (func() error, error) {
			return nil, s.KillPod(ctx, leader)
		}
	}
	deleted := func(s *e2e.Side) func(context.Context, *corev1.Pod) (func() error, error) {
		return func(ctx context.Context, leader *corev1.Pod) (func() error, error) {
			return nil, s.Client.Delete(ctx, leader)
		}
	}
	frozen := func(ctx context.Context, leader *corev1.Pod) (func() error, error) { return e2e.FreezePod(leader) }
	ways := []handOver{
		{"the provider's leader is killed", w.Abroad, killed(w.Abroad)},
		{"the consumer's leader is stopped", w.Home, deleted(w.Home)},
		{"the consumer's leader is killed", w.Home, killed(w.Home)},
		{"the provider's leader is stopped", w.Abroad, deleted(w.Abroad)},
		{"the provider's leader hangs, and resumes when another one leads", w.Abroad, frozen},
		{"the consumer's leader hangs, and resumes when another one leads", w.Home, frozen},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			notReady := watchNode(ctx, t, w.Home)
			log := followLog(ctx, t, w, &pods[0], twin)
			leader, err := way.side.AgentPod(ctx)
			e2e.OK(t, err)
			e2e.OK(t, w.Until(ctx, e2e.Soon, "an agent to stand by", twoReady(way.side)))
			began := time.Now()
			after, err := way.stop(ctx, leader)
			e2e.OK(t, err)
			var another time.Duration
			e2e.OK(t, w.Until(ctx, e2e.Restarted, "another agent of "+way.side.Name+" to lead", func(ctx context.Context) (string, error) {
				now, err := way.side.AgentPod(ctx)
				if err == nil && now.UID == leader.UID {
					return "the old one does", nil
				}
				another = time.Since(began)
				return "", err
			}))
			// What goes through the virtual node's kubelet endpoint, the session and the provider.
			e2e.OK(t, w.Until(ctx, e2e.Restarted, "logs of a pod abroad", func(ctx context.Context) (string, error) {
				// The API server may dial the address of the previous agent, which no pod has any
				// more.
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				_, err := w.Home.Kubectl(ctx, "logs", "-n", shop, pods[0].Name, "--tail=1")
				return "", err
			}))
			took := time.Since(began)
			t.Logf("another agent led after %s, and did its work after %s; the aim is %s", another.Round(100*time.Millisecond), took.Round(100*time.Millisecond), handOverAim)
			if another > handOverAim || took > handedOver {
				t.Errorf("another agent led after %s, want %s at most, and did its work after %s, want %s at most", another, handOverAim, took, handedOver)
			}
			// Home's agent is where the API server reads the log.
			if way.side == w.Abroad {
				log(t)
			}
			if after != nil {
				e2e.OK(t, after())
			}
			e2e.OK(t, w.Until(ctx, e2e.Restarted, "one agent to lead and one to stand by", twoReady(way.side)))
			time.Sleep(3 * time.Second) // in which an agent that should not act would
			if seen := notReady(); len(seen) > 0 {
				t.Errorf("the virtual node was not Ready: %q", seen)
			}
			untouched(ctx, t, w, remote, home, abroad, out.Labels)
		})
	}
}

// followLog follows the log of a pod abroad, by its name at home. The function that it returns
// expects the log to continue, with each line written meanwhile once.
func followLog(ctx context.Context, t *testing.T, w *e2e.World, pod, twin *corev1.Pod) (goesOn func(*testing.T)) {
	t.Helper()
	var mu sync.Mutex
	var text strings.Builder
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() {
		_, err := w.Home.Kubectl(e2e.Watching(ctx, writer(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return text.Write(b)
		})), "logs", "-f", "-n", pod.Namespace, pod.Name, "--tail=0")
		ended <- err
	}()
	var marks []string
	write := func() {
		marks = append(marks, fmt.Sprintf("/mark-%d-%d", time.Now().UnixNano(), len(marks)))
		// The API server abroad is independent of agents.
		_, err := w.Abroad.InPod(ctx, twin.Namespace, twin.Name, "/tool", "curl", "http://127.0.0.1:8080"+marks[len(marks)-1])
		e2e.OK(t, err)
	}
	has := func(ctx context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, mark := range marks {
			if times := strings.Count(text.String(), mark+" "); times != 1 {
				return fmt.Sprintf("line %s of %d came %d times:\n%s", mark, len(marks), times, &text), nil
			}
		}
		return "", nil
	}
	// What was written before it was open is not in it.
	e2e.OK(t, w.Until(ctx, e2e.Soon, "the log to be open", func(ctx context.Context) (string, error) {
		marks = nil
		write()
		time.Sleep(500 * time.Millisecond)
		return has(ctx)
	}))
	return func(t *testing.T) {
		t.Helper()
		write()
		e2e.OK(t, w.Until(ctx, e2e.Soon, "the log to continue", has))
		select {
		case err := <-ended:
			t.Errorf("it ended: %v", err)
		default:
		}
		t.Logf("a followed log continued: %d lines, each once", len(marks))
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// standBy has two agents on either side, and further Helm values, until the test ends.
func standBy(ctx context.Context, t *testing.T, w *e2e.World, values ...string) {
	t.Helper()
	old := map[*e2e.Side][]string{}
	for _, s := range w.Sides() {
		old[s] = slices.Clone(s.Values)
		s.Values = append(append(s.Values, "agent.replicas=2"), values...)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		for _, s := range w.Sides() {
			s.Values = old[s]
		}
		if err := w.Each(ctx, w.Install); err != nil {
			t.Errorf("have one agent again: %v", err)
		}
	})
	began := time.Now()
	e2e.OK(t, w.Each(ctx, w.Install))
	for _, s := range w.Sides() {
		e2e.OK(t, w.Until(ctx, e2e.Restarted, "two agents of "+s.Name, twoReady(s)))
	}
	known, err := w.Home.Peer(ctx)
	e2e.OK(t, err)
	if known != nil {
		_, err := w.Peered(ctx, e2e.Restarted)
		e2e.OK(t, err)
	}
	t.Logf("two agents on either side after %s", time.Since(began).Round(100*time.Millisecond))
}

// twoReady returns what is missing until a cluster has two ready agents, one of them leading.
func twoReady(s *e2e.Side) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		pods, err := s.AgentPods(ctx)
		if err != nil {
			return "", err
		}
		ready, leaders := 0, 0
		for i := range pods {
			if pods[i].DeletionTimestamp.IsZero() && e2e.PodReady(&pods[i]) {
				ready++
			}
			if pods[i].Labels[v1alpha1.LabelLeader] == "true" && pods[i].DeletionTimestamp.IsZero() {
				leaders++
			}
		}
		if ready != 2 || leaders != 1 {
			return fmt.Sprintf("of %d agents %d are ready, and %d lead", len(pods), ready, leaders), nil
		}
		// And the Service leads to that one alone.
		if to, err := s.ReadyEndpoints(ctx, e2e.SystemNamespace, "entente-peer"); err != nil || len(to) != 1 {
			return fmt.Sprintf("entente-peer leads to %q", to), err
		}
		return "", nil
	}
}

// watchNode returns what says how a virtual node was not Ready since.
func watchNode(ctx context.Context, t *testing.T, s *e2e.Side) (seen func() []string) {
	t.Helper()
	w, err := s.Client.Watch(ctx, &corev1.NodeList{}, ctrlclient.HasLabels{v1alpha1.LabelVirtualNode})
	e2e.OK(t, err)
	var found []string
	var ended atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range w.ResultChan() {
			node, is := e.Object.(*corev1.Node)
			if !is {
				if !ended.Load() {
					found = append(found, fmt.Sprintf("the watch ended: %v", e.Object))
				}
				continue
			}
			if ready, why := e2e.NodeCondition(node); !ready {
				found = append(found, time.Now().Format(time.TimeOnly)+" "+why)
			}
		}
	})
	end := func() {
		ended.Store(true)
		w.Stop()
		wg.Wait()
	}
	t.Cleanup(end)
	return func() []string {
		end()
		return found
	}
}

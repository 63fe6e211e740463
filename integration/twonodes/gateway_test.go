package twonodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
)

// gateway returns the nodes that are a cluster's gateways.
func gateway(ctx context.Context, side *e2e.Side) (string, error) {
	var list v1alpha1.FabricNodeList
	if err := side.Client.List(ctx, &list); err != nil {
		return "", err
	}
	var names []string
	for i := range list.Items {
		if list.Items[i].Spec.Gateway {
			names = append(names, list.Items[i].Name)
		}
	}
	return strings.Join(names, " "), nil
}

func isGateway(ctx context.Context, w *e2e.World, side *e2e.Side, node string) error {
	return w.Until(ctx, e2e.Restarted, node+" to be the gateway of "+side.Name, func(ctx context.Context) (string, error) {
		names, err := gateway(ctx, side)
		if names == node {
			return "", err
		}
		return "it is " + names, err
	})
}

// makeGateway has a cluster's second node become its gateway: it keeps the two nodes'
// fabrics from each other until that is so. The API server's node would otherwise be
// the gateway, and it has to live on.
func makeGateway(ctx context.Context, w *e2e.World, side *e2e.Side) error {
	node := second(side)
	if now, err := gateway(ctx, side); err != nil || now == node {
		return err
	}
	rules := fmt.Sprintf("table inet apart { chain in { type filter hook input priority 0; ip saddr %s udp dport %d drop; }; }",
		side.Plan.Control().Address, e2e.WireGuardPort)
	if _, err := w.On(ctx, node, "nft", rules); err != nil {
		return err
	}
	err := isGateway(ctx, w, side, node)
	if _, healed := w.On(context.WithoutCancel(ctx), node, "nft", "delete", "table", "inet", "apart"); err == nil {
		err = healed
	}
	return err
}

// event is something that changed.
type event struct {
	after      time.Duration
	what, text string
}

// chronicle writes down what changes while a node is dead.
type chronicle struct {
	mu     sync.Mutex
	begin  time.Time
	last   map[string]string
	events []event
	stop   func()
}

func (c *chronicle) see(what, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, known := c.last[what]; !known || last != text {
		c.last[what] = text
		c.events = append(c.events, event{time.Since(c.begin), what, text})
	}
}

// when returns when something was first said in these words, and whether it was.
func (c *chronicle) when(what, words string) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.events, func(e event) bool { return e.what == what && strings.Contains(e.text, words) })
	if i < 0 {
		return 0, false
	}
	return c.events[i].after, true
}

func (c *chronicle) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, e := range c.events {
		fmt.Fprintf(&b, "%6.1f s  %s: %s\n", e.after.Seconds(), e.what, e.text)
	}
	return b.String()
}

// watchAll writes down what both clusters' objects say, until it is stopped.
func watchAll(ctx context.Context, t *testing.T, w *e2e.World) *chronicle {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	c := &chronicle{begin: time.Now(), last: map[string]string{}}
	var tasks sync.WaitGroup
	c.stop = func() { cancel(); tasks.Wait() }
	for _, side := range w.Sides() {
		for _, list := range []ctrlclient.ObjectList{&v1alpha1.ForeignClusterList{}, &v1alpha1.FabricNodeList{}, &corev1.NodeList{}} {
			// Not polled: each change counts.
			changes, err := side.Client.Watch(ctx, list)
			ok(t, err)
			tasks.Go(func() {
				defer changes.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case change, more := <-changes.ResultChan():
						if !more {
							return
						}
						c.look(side.Name, change.Object)
					}
				}
			})
		}
	}
	return c
}

func (c *chronicle) look(side string, object runtime.Object) {
	switch o := object.(type) {
	case *v1alpha1.ForeignCluster:
		for _, kind := range []string{v1alpha1.ConditionConnected, v1alpha1.ConditionNetwork} {
			if is := meta.FindStatusCondition(o.Status.Conditions, kind); is != nil {
				c.see(side+" "+kind, fmt.Sprintf("%s %s", is.Status, is.Reason))
			}
		}
	case *v1alpha1.FabricNode:
		c.see(side+" node "+o.Name+" is gateway", fmt.Sprint(o.Spec.Gateway))
	case *corev1.Node:
		ready, _ := e2e.NodeCondition(o)
		c.see(side+" node "+o.Name+" is Ready", fmt.Sprint(ready))
	}
}

// TestGatewayNodeThatDiesIsReplaced pulls the plug of each cluster's gateway while pods
// on the other nodes talk: the condition says so, another node takes over, and traffic
// goes on. The node that comes back changes nothing.
func TestGatewayNodeThatDiesIsReplaced(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	for _, side := range w.Sides() {
		t.Run(side.Name, func(t *testing.T) {
			dead := second(side)
			ok(t, isGateway(ctx, w, side, dead))
			_, err := w.Peered(ctx, e2e.Restarted)
			ok(t, err)
			stream, err := w.Home.StartStream(ctx, s.inn.Status.PodIP, s.out.Status.PodIP)
			ok(t, err)
			time.Sleep(2 * time.Second)
			events := watchAll(ctx, t, w)
			stopErr := w.Lab.StopNode(ctx, dead)
			t.Cleanup(func() {
				// A node that runs already is left alone.
				if err := w.Lab.StartNode(context.WithoutCancel(ctx), dead); err != nil {
					t.Errorf("switch node %s on again: %v", dead, err)
				}
			})
			takenErr := isGateway(ctx, w, side, side.Node())
			var flowsErr error
			for _, end := range w.Sides() {
				if _, err := end.Condition(ctx, e2e.Restarted, v1alpha1.ConditionNetwork, metav1.ConditionTrue); err != nil {
					flowsErr = err
				}
			}
			reachErr := w.Home.ReachesAll(ctx, e2e.Restarted, shop, s.inn.Name, "http://"+s.out.Status.PodIP+":8080/name", []corev1.Pod{s.out})
			// By address: one of two DNS servers died, too.
			backErr := w.Abroad.ReachesAll(ctx, e2e.Restarted, s.twin.Namespace, s.twin.Name, "http://"+s.innAbroad+":8080/name", []corev1.Pod{s.inn})
			answered, _ := stream.Exchanged()
			goesOnErr := w.Until(ctx, e2e.Restarted, "the connection between the pods to go on", func(context.Context) (string, error) {
				now, err := stream.Exchanged()
				if err == nil && now < answered+2 {
					return "nothing was answered since", nil
				}
				return "", err
			})
			t.Logf("the connection went on %s after the death", time.Since(events.begin).Round(100*time.Millisecond))
			events.stop()
			result := stream.Stop()
			t.Logf("after the gateway of %s was switched off:\n%sthe stream: %s", side.Name, events, result)
			for _, err := range []error{stopErr, takenErr, flowsErr, reachErr, backErr, goesOnErr} {
				ok(t, err)
			}
			said, was := events.when(side.Name+" "+v1alpha1.ConditionNetwork, "GatewayUnreachable")
			chosen, _ := events.when(side.Name+" node "+side.Node()+" is gateway", "true")
			if !was || said > chosen {
				t.Errorf("the condition Network of %s does not say GatewayUnreachable before another node is chosen", side.Name)
			}
			if result.TCPError != nil {
				t.Errorf("the connection between the pods broke: %v", result.TCPError)
			}
			s.returns(ctx, t, side, dead)
		})
	}
}

// returns switches a node on again and sees that traffic does not notice, and that the
// other node stays the gateway.
func (s *stage) returns(ctx context.Context, t *testing.T, side *e2e.Side, node string) {
	t.Helper()
	w := s.World
	stream, err := w.Home.StartStream(ctx, s.inn.Status.PodIP, s.out.Status.PodIP)
	ok(t, err)
	events := watchAll(ctx, t, w)
	ok(t, w.Lab.StartNode(ctx, node))
	backErr := w.Until(ctx, e2e.Scheduled, "the fabric of "+node+" to be back and to reach the gateway", func(ctx context.Context) (string, error) {
		var n v1alpha1.FabricNode
		if err := side.Client.Get(ctx, ctrlclient.ObjectKey{Name: node}, &n); err != nil {
			return "", err
		}
		if n.Status.ObservedAt.Time.Before(events.begin) {
			return "it was last heard of at " + n.Status.ObservedAt.String(), nil
		}
		for _, p := range n.Status.Paths {
			if p.PeerID == n.Spec.ClusterID && p.Node == side.Node() && p.State == "Up" {
				return "", nil
			}
		}
		return fmt.Sprintf("its paths are %+v", n.Status.Paths), nil
	})
	time.Sleep(10 * time.Second) // longer than there has to be evidence to move a gateway
	events.stop()
	result := stream.Stop()
	t.Logf("after %s was switched on again:\n%sthe stream: %s", node, events, result)
	ok(t, backErr)
	if result.Lost > 0 || result.TCPError != nil {
		t.Errorf("the node that came back disturbed traffic: %s", result)
	}
	if after, became := events.when(side.Name+" node "+node+" is gateway", "true"); became {
		t.Errorf("the node that came back became the gateway after %s", after)
	}
	var n corev1.Node
	ok(t, w.Until(ctx, e2e.Scheduled, "node "+node+" to be Ready", func(ctx context.Context) (string, error) {
		if err := side.Client.Get(ctx, ctrlclient.ObjectKey{Name: node}, &n); err != nil {
			return "", err
		}
		if ready, why := e2e.NodeCondition(&n); !ready {
			return why, nil
		}
		return "", nil
	}))
	_, err = w.Peered(ctx, e2e.Soon)
	ok(t, err)
}

package twonodes

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// TestNetworkIsFalseWhileANodeIsCutOff makes faults on the node at home that is not the gateway.
// Network is False within 15 s and names the node and what is wrong, and the virtual node stays as
// it is: the gateway reaches the peer all the time.
func TestNetworkIsFalseWhileANodeIsCutOff(t *testing.T) {
	only.Matrix(t, "it takes minutes; what decides is tested in internal/gateways")
	ctx, s := onStage(t)
	w := s.World
	gateway, worker := second(w.Home), w.Home.Node()
	ok(t, label(ctx, w.Home, gateway, "true"))
	t.Cleanup(func() { ok(t, label(context.WithoutCancel(ctx), w.Home, gateway, "")) })
	ok(t, areGateways(ctx, w, w.Home, gateway))
	ok(t, carries(ctx, w, w.Home, gateway))
	_, err := w.Home.Condition(ctx, e2e.Scheduled, v1alpha1.ConditionNetwork, metav1.ConditionTrue)
	ok(t, err)
	url := "http://" + s.out.Status.PodIP + ":8080/name"

	on := func(script string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := w.On(ctx, worker, "sh", "-ec", script)
			return err
		}
	}
	at := w.Home.Plan.Nodes[1].Address
	for _, f := range []struct {
		name, says string
		within     time.Duration
		make, mend func(context.Context) error
	}{
		{"it does not forward", "ForwardingDisabled", e2e.Truthful, on("echo 0 > /proc/sys/net/ipv4/ip_forward"), on("echo 1 > /proc/sys/net/ipv4/ip_forward")},
		{
			"it does not reach the gateway", "probes from there to gateway node " + gateway + " are lost", e2e.Truthful,
			on(fmt.Sprintf("nft 'table inet cut { chain out { type filter hook output priority 0; ip daddr %s udp dport %d drop; }; }'", at, e2e.WireGuardPort)), on("nft delete table inet cut"),
		},
		{
			// Its pod stops for some seconds, in which its tunnels are there.
			"its fabric does not run", "no pod of the fabric runs there", 2 * e2e.Truthful,
			fabricOn(w.Home, fmt.Sprintf("{%q:%q}", corev1.LabelHostname, gateway), `{"type":"OnDelete","rollingUpdate":null}`),
			fabricOn(w.Home, fmt.Sprintf("{%q:null}", corev1.LabelHostname), `{"type":"RollingUpdate"}`),
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			defer e2e.WatchTruth(ctx, t, w.Home, s.inn.Status.PodIP, url)()
			begin := time.Now()
			ok(t, f.make(ctx))
			madeErr := s.names(ctx, worker, f.says, f.within)
			t.Logf("Network names the node after %s", time.Since(begin).Round(time.Second))
			availableErr := available(ctx, w.Home, s.out.Spec.NodeName)
			ok(t, f.mend(context.WithoutCancel(ctx)))
			begin = time.Now()
			_, err := w.Home.Condition(ctx, e2e.Restarted, v1alpha1.ConditionNetwork, metav1.ConditionTrue)
			t.Logf("Network is True %s after it was mended", time.Since(begin).Round(time.Second))
			ok(t, madeErr)
			ok(t, availableErr)
			ok(t, err)
			ok(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, s.inn.Name, url, []corev1.Pod{s.out}))
		})
	}
}

// names waits until Network is False for a node that is cut off, and says why.
func (s *stage) names(ctx context.Context, node, why string, limit time.Duration) error {
	return s.World.Until(ctx, limit, "Network to name node "+node, func(ctx context.Context) (string, error) {
		peer, err := s.World.Home.Peer(ctx)
		if err != nil || peer == nil {
			return "there is no peer", err
		}
		c := meta.FindStatusCondition(peer.Status.Conditions, v1alpha1.ConditionNetwork)
		if c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonNodesCutOff && strings.Contains(c.Message, "pods on "+node+" are cut off") && strings.Contains(c.Message, why) {
			return "", nil
		}
		return fmt.Sprintf("it is %s: %s: %s", c.Status, c.Reason, c.Message), nil
	})
}

// available says whether Kubernetes may put pods on a virtual node, as far as its network goes.
func available(ctx context.Context, side *e2e.Side, name string) error {
	var node corev1.Node
	if err := side.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &node); err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status != corev1.ConditionFalse {
			return fmt.Errorf("node %s has NetworkUnavailable=%s: %s", name, c.Status, c.Message)
		}
	}
	return nil
}

// fabricOn patches the node selector of a cluster's fabric, and leaves the pods on other nodes as
// they are.
func fabricOn(side *e2e.Side, selector, update string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := side.Kubectl(ctx, "patch", "daemonset", "entente-fabric", "-n", e2e.SystemNamespace, "-p",
			`{"spec":{"updateStrategy":`+update+`,"template":{"spec":{"nodeSelector":`+selector+`}}}}`)
		return err
	}
}

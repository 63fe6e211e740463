package twonodes

import (
	"context"
	"fmt"
	"testing"
	"time"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
)

// opens waits until packets from the first node of a side go directly to the first of the other.
func opens(ctx context.Context, w *e2e.World, side *e2e.Side, to string) error {
	return w.Until(ctx, e2e.Scheduled, "packets from node "+side.Node()+" to go directly to "+to, func(ctx context.Context) (string, error) {
		var n v1alpha1.FabricNode
		if err := side.Client.Get(ctx, ctrlclient.ObjectKey{Name: side.Node()}, &n); err != nil {
			return "", err
		}
		for _, d := range n.Status.DirectPaths {
			if d.Node == to && d.InUse {
				return "", nil
			}
		}
		return fmt.Sprintf("it has %+v", n.Status.DirectPaths), nil
	})
}

// TestPodsTalkFromNodeToNode has pods talk that are on no gateways. Once they talk much their packets
// go past the gateways, whose tunnels are cut then: nothing is lost.
func TestPodsTalkFromNodeToNode(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	for _, side := range w.Sides() {
		ok(t, label(ctx, side, second(side), "true"))
		t.Cleanup(func() { ok(t, label(context.WithoutCancel(ctx), side, second(side), "")) })
	}
	for _, side := range w.Sides() {
		ok(t, areGateways(ctx, w, side, second(side)))
		ok(t, carries(ctx, w, side, second(side)))
	}
	stream, err := w.Home.StartStream(ctx, s.inn.Status.PodIP, s.out.Status.PodIP)
	ok(t, err)
	begin := time.Now()
	homeErr := opens(ctx, w, w.Home, w.Abroad.Node())
	abroadErr := opens(ctx, w, w.Abroad, w.Home.Node())
	t.Logf("direct %s after the pods began to talk", time.Since(begin).Round(time.Second))
	if result := stream.Stop(); homeErr == nil && abroadErr == nil && result.Lost > 0 {
		t.Errorf("packets were lost while it came to be direct: %s", result)
	}
	ok(t, homeErr)
	ok(t, abroadErr)

	stream, err = w.Home.StartStream(ctx, s.inn.Status.PodIP, s.out.Status.PodIP)
	ok(t, err)
	for _, side := range w.Sides() {
		_, err := w.On(ctx, second(side), "nft", fmt.Sprintf("table inet cut { chain in { type filter hook input priority 0; udp dport %d drop; }; }", e2e.WireGuardPort))
		ok(t, err)
	}
	time.Sleep(10 * time.Second)
	for _, side := range w.Sides() {
		_, err := w.On(context.WithoutCancel(ctx), second(side), "nft", "delete", "table", "inet", "cut")
		ok(t, err)
	}
	result := stream.Stop()
	t.Logf("while no gateway had a tunnel: %s", result)
	if result.Lost > 0 || result.TCPError != nil {
		t.Errorf("packets went through gateways: %s", result)
	}
	for _, side := range w.Sides() {
		ok(t, reaches(ctx, w, side, second(side)))
	}
}

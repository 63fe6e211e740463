package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/lab"
)

// RelayPort is the TCP port of relays and of what the agent has for them.
const RelayPort = 7448

// OnlyUDP has the internet lose, until the test ends, all that home and abroad send to each other but
// what is of WireGuard, and that too unless it is of one of the IP families.
func OnlyUDP(ctx context.Context, t testing.TB, w *World, families lab.Families) {
	t.Helper()
	var rules strings.Builder
	for _, way := range [][2]*Side{{w.Home, w.Abroad}, {w.Abroad, w.Home}} {
		match := fmt.Sprintf("iifname %q oifname %q", way[0].Plan.LANName, way[1].Plan.LANName)
		switch families {
		case lab.IPv4Only:
			fmt.Fprintf(&rules, "%s meta nfproto ipv6 counter drop; ", match)
		case lab.IPv6Only:
			fmt.Fprintf(&rules, "%s meta nfproto ipv4 counter drop; ", match)
		case lab.DualStack:
		}
		fmt.Fprintf(&rules, "%s udp dport %d accept; %s counter drop; ", match, WireGuardPort, match)
	}
	_, err := w.OnInternet(ctx, "nft", "table inet onlyudp { chain forward { type filter hook forward priority -20; "+rules.String()+" }; }")
	OK(t, err)
	t.Cleanup(func() {
		_, err := w.OnInternet(context.WithoutCancel(ctx), "nft", "delete", "table", "inet", "onlyudp")
		OK(t, err)
	})
	// Otherwise the test would prove nothing.
	for _, a := range w.Abroad.Plan.Control().Addresses() {
		at := net.JoinHostPort(a.String(), fmt.Sprint(PeerNodePort))
		if conn, err := w.Home.DialOnNode(ctx, "tcp", at); err == nil {
			_ = conn.Close()
			t.Fatalf("TCP passes to %s", at)
		}
	}
}

// AreInBand checks that home and abroad say that their session runs inside the tunnel.
func AreInBand(ctx context.Context, t testing.TB, w *World) {
	t.Helper()
	for _, side := range []*Side{w.Home, w.Abroad} {
		for _, kind := range []string{v1alpha1.ConditionInBand, v1alpha1.ConditionTrusted, v1alpha1.ConditionConnected} {
			_, err := side.Condition(ctx, Restarted, kind, metav1.ConditionTrue)
			OK(t, err)
		}
		peer, err := side.Peer(ctx)
		OK(t, err)
		if s := peer.Status.Session; s == nil || !s.InBand || s.Endpoint != "" || len(peer.Spec.Endpoints) > 0 {
			t.Errorf("%s: session %+v, endpoints %q", side.Name, s, peer.Spec.Endpoints)
		}
		text, err := side.Entente(ctx, "info", "peer", peer.Name)
		OK(t, err)
		if !strings.Contains(text, "in-band: inside the tunnel") {
			t.Errorf("%s does not say that the session is in-band:\n%s", side.Name, text)
		}
	}
}

// NoRelaysLeft waits until all of a former in-band peering is gone.
func NoRelaysLeft(ctx context.Context, t testing.TB, w *World) {
	t.Helper()
	for _, side := range []*Side{w.Home, w.Abroad} {
		OK(t, side.Unpeered(ctx, Scheduled))
		OK(t, w.Until(ctx, Soon, "keys and relays of "+side.Name+" to be gone", func(ctx context.Context) (string, error) {
			var secret corev1.Secret
			if err := side.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: SystemNamespace, Name: v1alpha1.FabricSecret}, &secret); err != nil {
				return "", err
			}
			if len(secret.Data) > 0 {
				return fmt.Sprintf("%d keys", len(secret.Data)), nil
			}
			for _, node := range side.Plan.Nodes {
				text, err := w.On(ctx, node.Name, "ss", "-Hltn", fmt.Sprintf("sport = :%d", RelayPort))
				if err != nil || strings.TrimSpace(text) != "" {
					return "on " + node.Name + " listens " + text, err
				}
			}
			return "", nil
		}))
	}
}

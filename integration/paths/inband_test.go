package paths

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

// TestInBandBehindNATAndOverIPv6Alone has rome and milan peer where nothing but UDP passes between them: with
// one of them behind a translation or a firewall, or over IPv6 alone. The agents' session runs in the tunnel, with all that
// needs it, also after the router forgot its flows and an agent died.
func TestInBandBehindNATAndOverIPv6Alone(t *testing.T) {
	only.Matrix(t, "five minutes; package twonodes has peerings in-band with nothing in the way but a filter, and the sample of package matrix over IPv6 and IPv4")
	for _, tt := range []struct {
		name   string
		hidden func(*world) *e2e.Side // nil: both can be dialled
		over   lab.Families
		// byFiles has the two administrators exchange files.
		byFiles bool
	}{
		{"the consumer behind NAT", func(w *world) *e2e.Side { return w.rome }, lab.IPv4Only, false},
		{"the provider behind NAT", func(w *world) *e2e.Side { return w.milan }, lab.IPv4Only, true},
		{"over IPv6 alone", nil, lab.IPv6Only, false},
		{"over IPv6 alone, the provider behind a firewall", func(w *world) *e2e.Side { return w.milan }, lab.IPv6Only, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, w := onStage(t)
			var hidden *e2e.Side
			if tt.hidden != nil {
				hidden = tt.hidden(w)
				e2e.OK(t, w.NAT(ctx, hidden))
			}
			e2e.OnlyUDP(ctx, t, w.World, tt.over)
			begin := time.Now()
			w.peerInBand(ctx, t, tt.byFiles)
			_, err := w.rome.VirtualNodeReady(ctx, e2e.Soon)
			e2e.OK(t, err)
			e2e.OK(t, w.known(ctx, e2e.Soon, w.rome, w.milan, "reached", func(fc *v1alpha1.ForeignCluster) error {
				return is(fc, v1alpha1.ConditionNetwork, metav1.ConditionTrue)
			}))
			t.Logf("peered after %s", time.Since(begin).Round(100*time.Millisecond))
			e2e.AreInBand(ctx, t, w.World)
			w.endpointsAre(ctx, t, hidden, tt.over)
			e2e.Offloaded(ctx, t, w.World, shop)
			pods := w.bothEnds(ctx, t)
			works := func(after string) {
				t.Helper()
				begin := time.Now()
				e2e.OK(t, w.connect(ctx, pods))
				e2e.OK(t, w.bothFamilies(ctx, pods))
				e2e.AreInBand(ctx, t, w.World)
				t.Logf("%s: all works after %s", after, time.Since(begin).Round(100*time.Millisecond))
			}
			works("peered")
			_, err = w.OnInternet(ctx, "conntrack", "--flush")
			e2e.OK(t, err)
			works("the router forgot all flows")
			for _, side := range []*e2e.Side{w.rome, w.milan} {
				e2e.OK(t, side.KillAgent(ctx))
				e2e.OK(t, side.AgentReady(ctx, e2e.Restarted))
				works("the agent of " + side.Name + " was killed")
			}
			e2e.OK(t, w.DeleteNamespace(ctx, shop))
			e2e.OK(t, w.Unpeer(ctx))
			e2e.NoRelaysLeft(ctx, t, w.World)
		})
	}
}

// peerInBand has rome use resources of milan, in-band.
func (w *world) peerInBand(ctx context.Context, t *testing.T, byFiles bool) {
	t.Helper()
	if !byFiles {
		_, err := w.rome.Entente(ctx, "peer", "--in-band", "--remote-kubeconfig", w.milan.Kubeconfig)
		e2e.OK(t, err)
		return
	}
	files := map[*e2e.Side]string{}
	for _, side := range []*e2e.Side{w.rome, w.milan} {
		text, err := side.Entente(ctx, "network", "parameters")
		e2e.OK(t, err)
		files[side] = filepath.Join(t.TempDir(), side.Name+".yaml")
		e2e.OK(t, os.WriteFile(files[side], []byte(text), 0o600))
	}
	// The first administrator waits for the second.
	first := make(chan error, 1)
	go func() {
		_, err := w.milan.Entente(ctx, "network", "connect", "--in-band", "-f", files[w.rome])
		first <- err
	}()
	_, err := w.rome.Entente(ctx, "network", "connect", "--in-band", "-f", files[w.milan])
	e2e.OK(t, err)
	e2e.OK(t, <-first)
	_, err = w.rome.Entente(ctx, "peer", w.milan.Name)
	e2e.OK(t, err)
}

// endpointsAre checks where each side sends to: the other one's node in the family, or where the translation
// has it.
func (w *world) endpointsAre(ctx context.Context, t *testing.T, hidden *e2e.Side, over lab.Families) {
	t.Helper()
	for _, side := range []*e2e.Side{w.rome, w.milan} {
		node := side.Other.Plan.Control()
		want := net.JoinHostPort(node.Address.String(), fmt.Sprint(e2e.WireGuardPort))
		switch {
		case over == lab.IPv6Only:
			want = net.JoinHostPort(node.Address6.String(), fmt.Sprint(e2e.WireGuardPort))
		case side.Other == hidden:
			want = hidden.Plan.Public.String() + ":"
		}
		text, err := side.WireGuard(ctx, "entente0", "endpoints")
		e2e.OK(t, err)
		if f := strings.Fields(text); len(f) != 2 || !strings.HasPrefix(f[1], want) {
			t.Errorf("%s sends to %q, want %s", side.Name, f, want)
		}
	}
}

// bothFamilies waits until the pod at home reaches the one abroad by its address of each family.
func (w *world) bothFamilies(ctx context.Context, p between) error {
	if n := len(addresses(&p.out)); n != 2 {
		return fmt.Errorf("the pod abroad has %d addresses, want one of each family", n)
	}
	for _, a := range addresses(&p.out) {
		url := "http://" + net.JoinHostPort(a, fmt.Sprint(e2e.WebPort)) + "/name"
		if err := w.rome.ReachesAll(ctx, e2e.Soon, shop, p.inn.Name, url, []corev1.Pod{p.out}); err != nil {
			return err
		}
	}
	return nil
}

package lan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// TestTwoClustersPeerOnALANWithoutIPv4 has the LAN carry IPv6 only: clusters find each
// other by ff02::fb, and their agents peer over unique local addresses. The lab's
// Kubernetes is IPv4 inside the nodes: the agents' pods are given IPv6 by hand, and the
// tunnel, whose ends are the nodes' own addresses of Kubernetes, is not part of this.
func TestTwoClustersPeerOnALANWithoutIPv4(t *testing.T) {
	only.Matrix(t, "two minutes, mostly installing")
	ctx, s := onStage(t)
	rome, milan := s.rome(), s.milan()
	ok(t, s.are(ctx, nil))
	s.more = map[setting][]string{}
	at, want := map[*e2e.Side]string{}, map[*e2e.Side]setting{}
	for _, side := range []*e2e.Side{rome, milan} {
		is := setting("six-" + side.Name)
		at[side], want[side] = netip.AddrPortFrom(side.Plan.Control().Address6, e2e.PeerNodePort).String(), is
		s.more[is] = append(s.values(member), "peer.endpoints={"+at[side]+"}")
	}
	// The bridge passes neither IPv4 nor ARP from one node to another. The way by which this
	// machine reaches the API servers stays.
	const rules = "table bridge six { chain between_nodes { type filter hook forward priority 0; ether type { 0x0800, 0x0806 } drop; }; }"
	_, err := s.World.OnInternet(ctx, "nft", rules)
	ok(t, err)
	t.Cleanup(func() {
		_, err := s.World.OnInternet(context.WithoutCancel(ctx), "nft", "delete table bridge six")
		ok(t, err)
	})
	if out, err := rome.OnNode(ctx, "ping", "-c1", "-W2", milan.Plan.Control().Address.String()); err == nil {
		t.Fatalf("the LAN carries IPv4: %s", out)
	}
	ok(t, s.are(ctx, want))
	for _, side := range []*e2e.Side{rome, milan} {
		ok(t, overIPv6(ctx, t, side, at[side]))
	}
	begin := time.Now()
	for _, p := range (pair{rome, milan}).Ways() {
		side, other := p[0], p[1]
		ok(t, s.World.Until(ctx, 2*atMost, side.Name+" to have contracts with "+other.Name+" in both roles", func(ctx context.Context) (string, error) {
			fc, err := side.Knows(ctx, other)
			if err != nil || fc == nil {
				return "it does not know it", err
			}
			for _, f := range fc.Status.Sightings {
				for _, e := range f.Endpoints {
					if ap, err := netip.ParseAddrPort(e); err != nil || !ap.Addr().Is6() {
						return "", fmt.Errorf("it is found at %s", e)
					}
				}
			}
			have, err := side.ContractsWith(ctx, other)
			switch {
			case err != nil:
				return "", err
			case len(fc.Status.Sightings) == 0:
				return "it is not found", nil
			case !meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected) || len(have) != 2:
				return fmt.Sprintf("%d contracts are in force: %+v", len(have), fc.Status.Conditions), nil
			}
			t.Logf("%s finds %s at %q and reaches it at %q", side.Name, other.Name, fc.Status.Sightings[0].Endpoints, fc.Spec.Endpoints)
			return "", nil
		}))
	}
	t.Logf("peered %s after the agents had IPv6", seconds(time.Since(begin)))
	ok(t, s.are(ctx, nil))
}

// overIPv6 gives the pod of a cluster's agent IPv6, by way of its node, and has the node
// pass on to it what comes to an address of its own, as a load balancer does.
func overIPv6(ctx context.Context, t *testing.T, side *e2e.Side, at string) error {
	t.Helper()
	agent, err := side.AgentPod(ctx)
	if err != nil {
		return err
	}
	pod := agent.Status.PodIP
	const bridge, gateway, address = "cni0", "fd0a::1", "fd0a::2"
	for _, argv := range [][]string{
		{"ip", "-6", "address", "replace", gateway + "/64", "dev", bridge, "nodad"},
		{"sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"},
		{"nft", "table ip6 six { chain out { type nat hook postrouting priority 100; ip6 saddr " + address + " oifname eth0 masquerade; }; }"},
	} {
		if _, err := side.OnNode(ctx, argv...); err != nil {
			return err
		}
	}
	for _, argv := range [][]string{
		{"sh", "-c", "echo 0 | tee /proc/sys/net/ipv6/conf/*/disable_ipv6"},
		{"ip", "-6", "address", "replace", address + "/64", "dev", "eth0", "nodad"},
		{"ip", "-6", "route", "replace", "default", "via", gateway},
	} {
		if _, err := side.InNetworkOf(ctx, pod, argv...); err != nil {
			return err
		}
	}
	l, err := side.ListenOnNode(ctx, "tcp6", at)
	if err != nil {
		return err
	}
	t.Cleanup(func() {
		_ = l.Close()
		ctx := context.WithoutCancel(ctx)
		_, err1 := side.OnNode(ctx, "nft", "delete table ip6 six")
		_, err2 := side.OnNode(ctx, "ip", "-6", "address", "del", gateway+"/64", "dev", bridge)
		_, err3 := side.OnNode(ctx, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/all/forwarding")
		ok(t, errors.Join(err1, err2, err3))
	})
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go pass(ctx, side, in, net.JoinHostPort(pod, "7443"))
		}
	}()
	return nil
}

// pass passes a connection on to an address that the cluster's node reaches.
func pass(ctx context.Context, side *e2e.Side, in net.Conn, to string) {
	defer func() { _ = in.Close() }()
	out, err := side.DialOnNode(ctx, "tcp4", to)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // whichever ends first ends both
			ended <- struct{}{}
		}()
	}
	<-ended
}

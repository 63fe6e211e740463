package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// named is how soon doctor names a fault: nodes check themselves each minute, and one of
// which nothing was heard for three is not checked.
const named = 4 * time.Minute

// fault is something that is wrong with a network, and what doctor says of it at home.
type fault struct {
	name   string
	reason string // of the finding; several are parted by |
	make   func(context.Context, *e2e.World) error
	mend   func(context.Context, *e2e.World) error
}

// onNode runs commands of a shell in the network of the node at home.
func onNode(script string) func(context.Context, *e2e.World) error {
	return func(ctx context.Context, w *e2e.World) error {
		_, err := w.Home.OnNode(ctx, "sh", "-ec", script)
		return err
	}
}

// onInternet does so on the router between the clusters.
func onInternet(script string) func(context.Context, *e2e.World) error {
	return func(ctx context.Context, w *e2e.World) error {
		_, err := w.OnInternet(ctx, "sh", "-ec", script)
		return err
	}
}

// frozen stops the process of a part until it is mended.
func frozen(name, reason, part string, side func(*e2e.World) *e2e.Side) fault {
	var thaw func() error
	return fault{name, reason, func(ctx context.Context, w *e2e.World) (err error) {
		thaw, err = side(w).Freeze(ctx, part)
		return err
	}, func(context.Context, *e2e.World) error { return thaw() }}
}

// faultsOfTheNode are those of the node at home.
func faultsOfTheNode() []fault {
	serviceCIDR := `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: faulty}
spec: {cidrs: [198.19.240.0/20]}
`
	return []fault{
		{"the node does not forward", "ForwardingDisabled", onNode("echo 0 > /proc/sys/net/ipv4/ip_forward"), onNode("echo 1 > /proc/sys/net/ipv4/ip_forward")},
		{
			"a firewall drops what is forwarded", "ForwardDropped",
			onNode("nft 'add table inet faulty'; nft 'add chain inet faulty f { type filter hook forward priority 0; policy drop; }'"), onNode("nft delete table inet faulty"),
		},
		{
			"a firewall rejects what no rule lets pass", "ForwardDropped",
			onNode("nft 'add table inet faulty'; nft 'add chain inet faulty f { type filter hook forward priority 0; ct state established accept; reject; }'"), onNode("nft delete table inet faulty"),
		},
		{
			"IPv6 is turned off", "IPv6Disabled",
			onNode("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/entente0/disable_ipv6"),
			onNode("echo 0 > /proc/sys/net/ipv6/conf/default/disable_ipv6; echo 0 > /proc/sys/net/ipv6/conf/entente0/disable_ipv6"),
		},
		{
			"a VPN takes what goes to peers", "AliasesDiverted",
			onNode("ip route add unreachable 198.16.0.0/12 table 7120; ip rule add not fwmark 0x1bd00 lookup 7120 priority 110"),
			onNode("ip rule del priority 110; ip route flush table 7120"),
		},
		{"a route into the alias pool", "RouteOverlap", onNode("ip link add faulty0 type veth peer name faulty9; ip link set faulty9 up; ip link set faulty0 up; ip route add 198.19.0.0/24 dev faulty0"), onNode("ip link del faulty0")},
		{
			"an address of the alias pool", "RouteOverlap",
			onNode("ip link add faulty0 type veth peer name faulty9; ip link set faulty9 up; ip link set faulty0 up; ip addr add 198.19.0.1/24 dev faulty0"), onNode("ip link del faulty0"),
		},
		{"the network's MTU is too small", "UnderlayMTUTooSmall", onNode("d=$(ip -o route get 192.0.2.1 | sed 's/.* dev \\([^ ]*\\).*/\\1/'); ip link set $d mtu 1300"), onNode("d=$(ip -o route get 192.0.2.1 | sed 's/.* dev \\([^ ]*\\).*/\\1/'); ip link set $d mtu 1500")},
		{
			"pods outside of the prefixes that are known", "PodsOutsidePrefixes",
			onNode("ip link add cali123 type veth peer name faulty1; ip link set cali123 up; ip route add 10.99.3.4 dev cali123"), onNode("ip link del cali123"),
		},
		{
			"Services get addresses of the alias pool", "ServiceOverlap",
			func(ctx context.Context, w *e2e.World) error { return applied(ctx, w, serviceCIDR) },
			func(ctx context.Context, w *e2e.World) error {
				_, err := w.Home.Kubectl(ctx, "delete", "servicecidr", "faulty", "--wait=false")
				return err
			},
		},
		portTaken(),
		// One that hangs is restarted by its liveness probe before it is missed.
		{"the fabric does not run", "FabricNotRunning", fabricWants(`{"nowhere":"yes"}`), fabricWants(`{"nowhere":null}`)},
	}
}

// faultsOfTheWay are those of the network between the clusters, and of the other cluster.
func faultsOfTheWay() []fault {
	drop := func(what string) string {
		return "nft 'add table inet faulty'; nft 'add chain inet faulty f { type filter hook forward priority 0; " + what + " drop; }'"
	}
	const mend = "nft delete table inet faulty"
	agent := fmt.Sprintf("tcp dport %[1]d drop; tcp sport %[1]d", e2e.PeerNodePort)
	return []fault{
		{"a firewall on the way drops UDP", "PathDown", onInternet(drop("meta l4proto udp")), onInternet(mend)},
		// IPv4 goes on with packets of 576 bytes, of which 636 are on the way.
		{"a firewall on the way drops large packets", "LargePacketsLost", onInternet(drop("meta l4proto udp meta length > 600")), onInternet(mend)},
		{"a firewall on the way drops the agents' TCP", "NoSession", onInternet(drop(agent)), onInternet(mend)},
		frozen("the peer's tunnel hangs", "PathDown", e2e.PartWireGuard, func(w *e2e.World) *e2e.Side { return w.Abroad }),
		frozen("the peer's fabric hangs", "PathDown", e2e.PartNode, func(w *e2e.World) *e2e.Side { return w.Abroad }),
		frozen("the peer's agent hangs", "NoSession", e2e.PartAgent, func(w *e2e.World) *e2e.Side { return w.Abroad }),
	}
}

// portTaken has another process take the port of WireGuard as its own is killed.
func portTaken() fault {
	var release func() error
	return fault{"another process has the port", "PortTaken|NotChecked", func(ctx context.Context, w *e2e.World) error {
		if err := w.Home.Kill(ctx, e2e.PartWireGuard); err != nil {
			return err
		}
		return w.Until(ctx, e2e.Soon, "the port to be free", func(ctx context.Context) (string, error) {
			c, err := w.Home.ListenPacketOnNode(ctx, "udp", ":51820")
			if err != nil {
				return err.Error(), nil //nolint:nilerr // that is what is waited for
			}
			release = c.Close
			return "", nil
		})
	}, func(context.Context, *e2e.World) error { return release() }}
}

// fabricWants patches the node selector of the fabric at home.
func fabricWants(selector string) func(context.Context, *e2e.World) error {
	return func(ctx context.Context, w *e2e.World) error {
		_, err := w.Home.Kubectl(ctx, "patch", "daemonset", "entente-fabric", "-n", e2e.SystemNamespace, "-p",
			`{"spec":{"template":{"spec":{"nodeSelector":`+selector+`}}}}`)
		return err
	}
}

func applied(ctx context.Context, w *e2e.World, manifest string) error {
	file, err := os.CreateTemp("", "fault*.yaml")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	if _, err := file.WriteString(manifest); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	_, err = w.Home.Kubectl(ctx, "apply", "-f", file.Name())
	return err
}

// TestDoctorNamesFaults makes one fault after the other. doctor names each, and nothing once
// it is mended; and while pods do not reach each other no status says that they do.
func TestDoctorNamesFaults(t *testing.T) {
	only.Matrix(t, "it takes a quarter of an hour")
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
	url := "http://" + outs[0].Status.PodIP + ":8080/name"
	e2e.OK(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, inns[0].Name, url, outs))
	e2e.OK(t, healthy(ctx, w))

	missed := 0
	for _, f := range append(faultsOfTheNode(), faultsOfTheWay()...) {
		t.Run(f.name, func(t *testing.T) {
			t.Cleanup(e2e.WatchTruth(ctx, t, w.Home, inns[0].Status.PodIP, url))
			begin := time.Now()
			e2e.OK(t, f.make(ctx, w))
			wanted := strings.Split(f.reason, "|")
			err := w.Until(ctx, named, "doctor to name "+f.reason, func(ctx context.Context) (string, error) {
				found, err := doctor(ctx, w)
				if slices.ContainsFunc(found, func(reason string) bool { return slices.Contains(wanted, reason) }) {
					t.Logf("doctor names %q after %s", found, time.Since(begin).Round(time.Second))
					return "", nil
				}
				return fmt.Sprintf("it names %q", found), err
			})
			if err != nil {
				missed++
				t.Error(err)
			}
			e2e.OK(t, f.mend(ctx, w))
			begin = time.Now()
			e2e.OK(t, healthy(ctx, w))
			t.Logf("doctor finds nothing %s after it was mended", time.Since(begin).Round(time.Second))
			e2e.OK(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, inns[0].Name, url, outs))
		})
	}
	t.Logf("%d faults were not named", missed)
}

// doctor returns the reasons of doctor's findings at home.
func doctor(ctx context.Context, w *e2e.World) ([]string, error) {
	text, err := w.Home.Entente(ctx, "doctor", "-o", "json")
	if failed := (*e2e.CommandError)(nil); err != nil && (!errors.As(err, &failed) || failed.Code != 3) {
		return nil, err
	}
	var answer struct {
		Findings []struct{ Reason, Severity string }
	}
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("read %q: %w", text, err)
	}
	var found []string
	for _, f := range answer.Findings {
		if f.Severity != "Info" {
			found = append(found, f.Reason)
		}
	}
	return found, nil
}

func healthy(ctx context.Context, w *e2e.World) error {
	return w.Until(ctx, named, "doctor to find nothing", func(ctx context.Context) (string, error) {
		found, err := doctor(ctx, w)
		if len(found) > 0 {
			return fmt.Sprintf("it names %q", found), err
		}
		return "", err
	})
}

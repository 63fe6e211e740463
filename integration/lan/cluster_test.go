package lan

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

// pair is two clusters.
type pair = e2e.Pair

func (s *stage) pairs() []pair {
	return []pair{{s.rome(), s.milan()}, {s.rome(), s.oslo()}, {s.milan(), s.oslo()}}
}

// peered waits until pairs of clusters are peered in both directions, and logs when
// each hop was there, counted from begin.
func (s *stage) peered(ctx context.Context, t *testing.T, limit time.Duration, begin time.Time, pairs ...pair) time.Duration {
	t.Helper()
	ok(t, s.World.BothWays(ctx, limit, func(hop string) { t.Logf("%s  %s", seconds(time.Since(begin)), hop) }, pairs...))
	return time.Since(begin)
}

// offloads runs a pod of a cluster in another one, and has it asked from home.
func (s *stage) offloads(ctx context.Context, t *testing.T, from, to *e2e.Side) {
	t.Helper()
	id, err := to.ID(ctx)
	ok(t, err)
	home, _ := e2e.Web(shop, "home-for-"+to.Name, 1, e2e.AtHome)
	away, service := e2e.Web(shop, "in-"+to.Name, 1, e2e.Away)
	away.Spec.Template.Spec.NodeSelector[v1alpha1.LabelPeer] = id
	t.Cleanup(func() {
		for _, o := range []ctrlclient.Object{home, away, service} {
			ok(t, ctrlclient.IgnoreNotFound(from.Client.Delete(context.WithoutCancel(ctx), o, ctrlclient.PropagationPolicy(metav1.DeletePropagationBackground))))
		}
	})
	ok(t, from.Create(ctx, home, away, service))
	homes, err := from.PodsReady(ctx, e2e.Scheduled, shop, home.Labels, 1)
	ok(t, err)
	pods, err := from.PodsReady(ctx, e2e.Scheduled, shop, away.Labels, 1)
	ok(t, err)
	ok(t, from.ReachesAll(ctx, atMost, shop, homes[0].Name, "http://"+service.Name+":8080/name", pods))
	twin, err := to.Twin(ctx, &pods[0])
	ok(t, err)
	if twin.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod in %s is %s", to.Name, twin.Status.Phase)
	}
}

// mdnsPackets matches all packets of Multicast DNS.
const mdnsPackets = "udp port 5353 or dst host 224.0.0.251 or dst host ff02::fb"

// recorded returns the packets of Multicast DNS on the LAN while do runs, as lines.
func (s *stage) recorded(ctx context.Context, t *testing.T, do func(context.Context) error) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "lan.pcap")
	ok(t, s.World.RecordLAN(ctx, mdnsPackets, file, do))
	out, err := exec.CommandContext(ctx, "tcpdump", "-n", "-r", file).Output()
	ok(t, err)
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}

// avahiPrograms are the programs that avahi needs.
var avahiPrograms = []string{"avahi-daemon", "avahi-browse", "dbus-daemon"}

// host is a machine on a LAN until the test ends.
func (s *stage) host(ctx context.Context, t testing.TB, name string, lan int) *lab.Host {
	t.Helper()
	h, err := s.World.Lab.Host(ctx, name, lan)
	ok(t, err)
	t.Cleanup(func() { ok(t, h.Remove(context.WithoutCancel(ctx))) })
	return h
}

// daemon runs a program on a host until the host is removed.
func daemon(ctx context.Context, t testing.TB, h *lab.Host, argv ...string) {
	t.Helper()
	cmd := h.Exec(context.WithoutCancel(ctx), argv...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	ok(t, cmd.Start())
	t.Cleanup(func() {
		ok(t, h.Remove(context.WithoutCancel(ctx))) // removed twice is fine, and now it ends
		_ = cmd.Wait()                              // it was killed
		if t.Failed() {
			t.Logf("%s on %s says:\n%s", argv[0], h.Name, out.String())
		}
	})
}

// avahi runs avahi-daemon on a host. It stays in the foreground, and ends with the host.
func avahi(ctx context.Context, t testing.TB, h *lab.Host) {
	t.Helper()
	daemon(ctx, t, h, "sh", "-c", "mkdir -p /run/dbus && exec dbus-daemon --system --nofork --nopidfile --nosyslog")
	daemon(ctx, t, h, "sh", "-c", "until test -S /run/dbus/system_bus_socket; do sleep 0.1; done; exec avahi-daemon --no-drop-root --no-chroot --no-rlimits --file /dev/null")
}

// browses returns what avahi finds from a host now, one line for each.
func browses(ctx context.Context, h *lab.Host, service string) (string, error) {
	out, err := h.Exec(ctx, "timeout", "10", "avahi-browse", "--resolve", "--parsable", "--terminate", "--no-db-lookup", service).Output()
	return string(out), err
}

// listens lists what on a cluster's node hears Multicast DNS: sockets on its port, and
// interfaces that are in its groups.
func listens(ctx context.Context, side *e2e.Side) ([]string, error) {
	sockets, err := side.OnNode(ctx, "ss", "-Hulnp", "sport = :5353")
	if err != nil {
		return nil, err
	}
	groups, err := side.OnNode(ctx, "ip", "-o", "maddr")
	if err != nil {
		return nil, err
	}
	all := strings.FieldsFunc(sockets, func(r rune) bool { return r == '\n' })
	for line := range strings.Lines(groups) {
		if strings.Contains(line, " 224.0.0.251") || strings.Contains(line, " ff02::fb") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all, nil
}

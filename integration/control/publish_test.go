package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/internal/namedtest"
	"github.com/entente-dev/entente/peering"
)

const dnsSecret = "YSBzZWNyZXQgb2YgbW9yZSB0aGFuIHNpeHRlZW4gYnl0ZXM="

// dig asks a name server as people do.
func dig(ctx context.Context, n *namedtest.Named, name, kind string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "dig", "@127.0.0.1", "-p", strconv.Itoa(int(n.Addr.Port())), "+short", "+tries=1", name, kind).Output()
	if err != nil {
		return nil, fmt.Errorf("dig %s %s: %w", name, kind, err)
	}
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", " ")), nil
}

// reachable returns an address of this machine that others may dial, to which packets go over
// loopback anyway.
func reachable(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() && !ip.IP.IsLinkLocalUnicast() {
			return ip.IP.String()
		}
	}
	t.Skip("this machine has no address but that of loopback")
	return ""
}

// TestAPeerPublishesItselfAndIsFoundAgain has abroad publish itself in a zone of BIND by
// dynamic updates. Then it moves: its old endpoint answers no more, and home, which
// trusts it, finds it by what the zone says, and learns the new one of itself. With no
// server in its settings what it published goes.
func TestAPeerPublishesItselfAndIsFoundAgain(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	host := reachable(t)
	n := namedtest.New(t, fmt.Sprintf(`
key "abroad" { algorithm hmac-sha256; secret %q; };
zone "clusters.test" { type primary; file "clusters.test"; update-policy { grant abroad zonesub ANY; }; };
`, dnsSecret), "clusters.test")
	if _, err := exec.LookPath("dig"); err != nil {
		t.Skip("dig is not installed (Debian: bind9-dnsutils)")
	}
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "dns-key"},
		StringData: map[string]string{"key": dnsSecret},
	}
	if err := abroad.client.Create(ctx, secret); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = abroad.client.Delete(context.WithoutCancel(ctx), secret) })
	homeFlags, abroadFlags, address, homeAddress := home.flags, abroad.flags, abroad.peerAddress, home.peerAddress
	t.Cleanup(func() {
		home.flags, abroad.flags, abroad.peerAddress, home.peerAddress = homeFlags, abroadFlags, address, homeAddress
		ctx := context.WithoutCancel(ctx)
		if err := home.pair.both(func(c *cluster) error { return c.restart(ctx) }); err != nil {
			t.Error(err)
		}
	})

	// Both move while neither can notify the other, so that only abroad's publication says where it
	// is.
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	moved := net.JoinHostPort(host, port)
	home.kill()
	elsewhere, err := freeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	home.peerAddress = elsewhere[0]
	abroad.peerAddress = moved
	abroad.flags = append(slices.Clone(abroadFlags),
		"--discovery-update-server="+n.Addr.String(), "--discovery-update-zone=clusters.test", "--discovery-update-secret=dns-key", "--discovery-update-key-name=abroad")
	if err := abroad.restart(ctx); err != nil {
		t.Fatal(err)
	}
	var cm corev1.ConfigMap
	cm.Namespace = systemNamespace
	err = eventually.Is(ctx, later, "abroad to be in the zone", func(ctx context.Context) error {
		for _, q := range []struct{ name, kind, want string }{
			{"_entente._tcp.clusters.test", "PTR", abroadName + "._entente._tcp.clusters.test."},
			{abroadName + "._entente._tcp.clusters.test", "SRV", port},
			{abroadName + "._entente._tcp.clusters.test", "TXT", `"name=` + abroadName + `"`},
		} {
			got, err := dig(ctx, n, q.name, q.kind)
			if err != nil {
				return fmt.Errorf("dig %s %s: %w", q.name, q.kind, err)
			}
			if !slices.Contains(got, q.want) {
				return fmt.Errorf("dig %s %s: %q, want %q", q.name, q.kind, got, q.want)
			}
		}
		if err := abroad.get(ctx, "entente-dns-update", &cm); err != nil {
			return err
		}
		if !strings.Contains(cm.Data["status"], `published in clusters.test as "abroad"`) {
			return fmt.Errorf("the ConfigMap says %q", cm.Data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(fmt.Sprint(cm.Data), dnsSecret) {
		t.Error("the key's secret is in the ConfigMap")
	}

	home.flags = append(slices.Clone(homeFlags), "--discovery-domain=clusters.test", "--discovery-resolver="+n.Addr.String())
	if err := home.start(ctx); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, 2*later, "home to find abroad again", func(ctx context.Context) error {
		var fc v1alpha1.ForeignCluster
		if err := home.get(ctx, abroadName, &fc); err != nil {
			return err
		}
		if err := conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected); err != nil {
			return fmt.Errorf("%w; sightings %+v", err, fc.Status.Sightings)
		}
		if !slices.Equal(fc.Spec.Endpoints, []string{moved}) {
			return fmt.Errorf("its endpoints are %v", fc.Spec.Endpoints)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	abroad.flags = abroadFlags
	if err := abroad.restart(ctx); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, later, "abroad to be in the zone no more", func(ctx context.Context) error {
		var errs []error
		for _, q := range [][2]string{{"_entente._tcp.clusters.test", "PTR"}, {abroadName + "._entente._tcp.clusters.test", "TXT"}, {hostOf(ctx, home) + ".clusters.test", "A"}} {
			if got, err := dig(ctx, n, q[0], q[1]); err != nil || len(got) != 0 {
				errs = append(errs, fmt.Errorf("dig %s: %q, %w", q, got, err))
			}
		}
		if err := abroad.get(ctx, "entente-dns-update", &cm); err == nil {
			errs = append(errs, fmt.Errorf("the ConfigMap says %q", cm.Data))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Error(err)
	}
}

// hostOf is the name of abroad's host in DNS.
func hostOf(ctx context.Context, home *cluster) string {
	var fc v1alpha1.ForeignCluster
	if err := home.get(ctx, abroadName, &fc); err != nil {
		return "unknown"
	}
	return "entente-" + peering.ClusterID(fc.Spec.ClusterID).Short()
}

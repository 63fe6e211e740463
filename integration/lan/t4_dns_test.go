package lan

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/peering"
)

// tsigSecret is the secret of the keys of these tests.
const tsigSecret = "c2l4dGVlbiBieXRlcyBvZiBhIHNlY3JldCBvciBtb3Jl"

// zoneHead is the beginning of a zone file.
const zoneHead = "$TTL 60\n@ SOA ns hostmaster 1 3600 600 86400 60\n@ NS ns\nns A %s\n"

// TestClustersAreFoundInZonesOfBINDAndCoreDNS has name servers on machines of the LAN.
// Rome publishes itself in a zone of BIND with a key that may write its own instance
// only, and an administrator adds the pointers with nsupdate; its records are pasted into
// a zone of CoreDNS. Milan looks into the one, oslo into the other.
func TestClustersAreFoundInZonesOfBINDAndCoreDNS(t *testing.T) {
	only.Matrix(t, "two minutes, mostly installing")
	ctx, s := onStage(t)
	rome, milan, oslo := s.rome(), s.milan(), s.oslo()
	ok(t, lab.InstallHostPrograms(ctx, s.Say, "named", "dig", "nsupdate"))
	coredns, err := lab.BinaryPath(ctx, "coredns", s.Say)
	ok(t, err)
	// What clusters are to each other by a group would hide what a domain says.
	ok(t, s.are(ctx, nil))
	ok(t, s.are(ctx, map[*e2e.Side]setting{rome: off}))
	id, err := rome.ID(ctx)
	ok(t, err)
	short := peering.ClusterID(id).Short()

	bind, core := s.host(ctx, t, "bind", 1), s.host(ctx, t, "core", 1)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		ok(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	file("bind.test", fmt.Sprintf(zoneHead, bind.Address))
	daemon(ctx, t, bind, "named", "-g", "-n", "1", "-c", file("named.conf", fmt.Sprintf(`
options { directory %[1]q; pid-file none; session-keyfile none; managed-keys-directory %[1]q; recursion no; dnssec-validation no; };
controls { };
key "rome" { algorithm hmac-sha256; secret %[2]q; };
key "admin" { algorithm hmac-sha256; secret %[2]q; };
zone "bind.test" { type primary; file "bind.test"; update-policy {
	grant rome name rome._entente._tcp.bind.test. SRV TXT;
	grant rome name entente-%[3]s.bind.test. A AAAA;
	grant admin zonesub ANY;
}; };
`, dir, tsigSecret, short)))
	fragment, err := rome.Entente(ctx, "discover", "zone", "core.test")
	ok(t, err)
	daemon(ctx, t, core, coredns, "-conf", file("Corefile", fmt.Sprintf("core.test {\n\tbind %s\n\tfile %s\n\terrors\n}\n",
		core.Address, file("core.test", "$ORIGIN core.test.\n"+fmt.Sprintf(zoneHead, core.Address)+fragment))))

	s.more = map[setting][]string{
		"publishes":   {"discovery.update.server=" + bind.Address.String(), "discovery.update.zone=bind.test", "discovery.update.keySecret.name=dns-key", "discovery.update.keyName=rome"},
		"asksBIND":    {"discovery.domains={bind.test}", "discovery.resolvers={" + bind.Address.String() + "}"},
		"asksCoreDNS": {"discovery.domains={core.test}", "discovery.resolvers={" + core.Address.String() + "}"},
	}
	ok(t, rome.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: e2e.SystemNamespace, Name: "dns-key"}, StringData: map[string]string{"key": tsigSecret},
	}))
	ok(t, s.are(ctx, map[*e2e.Side]setting{rome: "publishes", milan: "asksBIND", oslo: "asksCoreDNS"}))
	finds := func(side *e2e.Side, domain string) {
		t.Helper()
		begin, want := time.Now(), fmt.Sprintf("%s:%d", rome.Plan.Control().Address, e2e.PeerNodePort)
		ok(t, s.World.Until(ctx, 2*atMost, side.Name+" to find rome in "+domain, func(ctx context.Context) (string, error) {
			fc, err := side.KnowsID(ctx, id)
			switch {
			case err != nil:
				return "", err
			case fc == nil:
				return "it is not known", nil
			case fc.Status.Source != v1alpha1.SourceDNS || len(fc.Status.Sightings) != 1 || fc.Status.Sightings[0].Location != domain || !slices.Contains(fc.Status.Sightings[0].Endpoints, want):
				return fmt.Sprintf("it is found by %q: %+v", fc.Status.Source, fc.Status.Sightings), nil
			case meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionTrusted):
				return "it is trusted", nil
			}
			return "", nil
		}))
		t.Logf("%s finds rome in %s, %s later", side.Name, domain, seconds(time.Since(begin)))
	}
	finds(oslo, "core.test")

	// The pointers are the administrator's to add.
	var missing string
	ok(t, s.World.Until(ctx, atMost, "rome to publish itself, and to name the pointers that it may not write", func(ctx context.Context) (string, error) {
		var cm corev1.ConfigMap
		if err := rome.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: e2e.SystemNamespace, Name: "entente-dns-update"}, &cm); err != nil {
			return "", err
		}
		if missing = cm.Data["missing"]; missing == "" {
			return fmt.Sprintf("it says %q", cm.Data), nil
		}
		return "", nil
	}))
	var script strings.Builder
	fmt.Fprintf(&script, "server %s\nzone bind.test\n", bind.Address)
	for line := range strings.Lines(missing) {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintf(&script, "update add %s\n", line)
		}
	}
	script.WriteString("send\n")
	update := core.Exec(ctx, "nsupdate", "-y", "hmac-sha256:admin:"+tsigSecret)
	update.Stdin = strings.NewReader(script.String())
	if out, err := update.CombinedOutput(); err != nil {
		t.Fatalf("nsupdate: %v\n%s\nof\n%s", err, out, script.String())
	}
	finds(milan, "bind.test")

	// An uninstall removes what the agent wrote.
	ok(t, s.are(ctx, map[*e2e.Side]setting{milan: "asksBIND", oslo: "asksCoreDNS"}))
	for _, name := range []string{"rome._entente._tcp.bind.test", "entente-" + short + ".bind.test"} {
		out, err := core.Exec(ctx, "dig", "@"+bind.Address.String(), "+short", "+tries=1", name, "ANY").Output()
		ok(t, err)
		if text := strings.TrimSpace(string(out)); text != "" {
			t.Errorf("%s is in the zone after the uninstall: %s", name, text)
		}
	}
	ok(t, s.are(ctx, nil))
}

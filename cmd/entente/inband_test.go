package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
)

// printed is the file that a cluster's administrator gives to others.
func printed(t *testing.T, c *fakeCluster) string {
	t.Helper()
	w := newWorld()
	w.consumer.id, w.consumer.name = c.id, c.name
	out, errOut, code := w.run(t, "", "network", "parameters")
	if code != 0 || errOut != "" {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	return out
}

func TestTwoAdministratorsConnectTheirClustersByFiles(t *testing.T) {
	w := newWorld()
	golden(t, "network-parameters", w, []string{"network", "parameters"}, []string{"network", "parameters", "--get", "clusterId"})
	compareFile(t, "testdata/provider.yaml", printed(t, w.provider))
	w.inBandAt = 3
	golden(t, "network-connect-in-band", w,
		[]string{"network", "connect", "--in-band", "-f", "testdata/provider.yaml", "--dry-run"},
		[]string{"network", "connect", "--in-band", "-f", "testdata/provider.yaml", "--name", "hq"},
		[]string{"info", "peer", "provider"},
	)
	sent(t, w.consumer, "ConnectInBand "+w.provider.id+" 2 hq")
}

func TestConnectShowsTheFirstAdministratorWhatItWaitsFor(t *testing.T) {
	w := newWorld()
	w.stuck = "InBand"
	golden(t, "network-connect-in-band-stuck", w, []string{"network", "connect", "--in-band", "-f", "testdata/provider.yaml", "--timeout", "30s"})
}

func TestInvalidParameterFilesAreRefused(t *testing.T) {
	w := newWorld()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("kind: Contract"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		in   string
		says string
		code int
	}{
		"its own":                   {[]string{"network", "connect", "--in-band", "-f", "-"}, printed(t, w.consumer), "PEER_IS_SELF", exit.Failed},
		"something else":            {[]string{"network", "connect", "--in-band", "-f", bad}, "", "kind", exit.Usage},
		"something else from stdin": {[]string{"network", "connect", "--in-band", "-f", "-"}, "hello", "network parameters", exit.Usage},
		"no such file":              {[]string{"network", "connect", "--in-band", "-f", bad + "x"}, "", "no such file", exit.Failed},
		"no file":                   {[]string{"network", "connect", "--in-band"}, "", "--filename", exit.Usage},
		"a file without --in-band":  {[]string{"network", "connect", "-f", bad}, "", "--in-band", exit.Usage},
		"a peer and a file":         {[]string{"network", "connect", "office", "--in-band", "-f", bad}, "", "--name", exit.Usage},
		"neither":                   {[]string{"network", "connect"}, "", "name a peer", exit.Usage},
		"peer with one side alone":  {[]string{"peer", "office", "--in-band"}, "", "both ends", exit.Usage},
	} {
		_, errOut, code := w.run(t, c.in, c.args...)
		if code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("%s: exit %d, want %d that says %q:\n%s", name, code, c.code, c.says, errOut)
		}
	}
}

func TestPeerSetsUpBothEndsInBand(t *testing.T) {
	w := newWorld()
	golden(t, "peer-in-band", w,
		[]string{"peer", "--in-band", "--remote-kubeconfig", "provider.yaml", "--cpu", "4"},
		[]string{"peer", "--in-band", "--remote-kubeconfig", "provider.yaml"},
	)
	sent(t, w.provider, "ConnectInBand "+w.consumer.id+" 2")
}

package fabric

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

type measuredFabric struct {
	status   tunnel.Status
	counters tunnel.Counters
	err      error
}

func (f *measuredFabric) Status() tunnel.Status              { return f.status }
func (f *measuredFabric) Counters() (tunnel.Counters, error) { return f.counters, f.err }

func TestMetricsHaveEachWay(t *testing.T) {
	t.Parallel()
	times := probe.Times{}.With(200 * time.Microsecond).With(3 * time.Millisecond).With(time.Minute)
	f := &measuredFabric{
		status: tunnel.Status{
			Peers: []tunnel.PeerStatus{
				{Cluster: "self", Node: "other", State: probe.PathUp, Way: tunnel.WayDirect, Received: 5, Sent: 6, Probes: 7},
				{
					Cluster: "peer", Node: "gw", Remote: true, State: probe.PathUp, Way: tunnel.WayObserved, Active: true, LargeLost: true, MTU: 1280,
					LastHandshake: time.Unix(1000, 0), Received: 1 << 40, Sent: 2, Probes: 4, Times: times,
				},
				{Cluster: "peer", Node: "gw2", Remote: true, State: probe.PathDown},
				{Cluster: "peer", Node: "gw2", Remote: true, State: probe.PathUp}, // a peer that gives two one name
				{Cluster: "peer", Node: "worker", Remote: true, State: probe.PathDown, OnDemand: true},
			},
			Switches: map[string]uint64{"peer": 3},
			Offloads: userspace.Offloads{userspace.OffloadTUNUDP: false, userspace.OffloadUDPSend: true},
			Problems: []plan.Problem{{Peer: "peer", Text: "x"}},
		},
		counters: tunnel.Counters{Received: 8, Sent: 9, ReceiveErrors: 12, Totals: firewall.Totals{
			Dropped: map[firewall.Drop]firewall.Count{{Reason: firewall.NotExposed}: {Packets: 10}, {Reason: firewall.NoAlias, Peer: "peer"}: {Packets: 11, Bytes: 1}},
			Carried: map[string]firewall.Flow{"peer": {Received: firewall.Count{Packets: 1, Bytes: 100}, Sent: firewall.Count{Packets: 2, Bytes: 200}}},
			Direct:  map[string]firewall.Flow{"peer": {Received: firewall.Count{Packets: 3, Bytes: 300}, Sent: firewall.Count{Packets: 4, Bytes: 400}}},
		}},
	}
	c := newCollector(f, func() *time.Time { return new(time.Unix(2000, 0)) }, slog.New(slog.DiscardHandler))
	const want = `# HELP entente_fabric_dropped_packets_total Packets that the rules of the node or its WireGuard dropped.
# TYPE entente_fabric_dropped_packets_total counter
entente_fabric_dropped_packets_total{peer="",reason="not_exposed"} 10
entente_fabric_dropped_packets_total{peer="peer",reason="no_alias"} 11
# HELP entente_fabric_key_due_seconds When the WireGuard key of the node is due to be replaced, in seconds since 1970; absent if never.
# TYPE entente_fabric_key_due_seconds gauge
entente_fabric_key_due_seconds 2000
# HELP entente_fabric_offload Whether WireGuard in user space processes many packets at once there.
# TYPE entente_fabric_offload gauge
entente_fabric_offload{offload="TUNUDP"} 0
entente_fabric_offload{offload="UDPSend"} 1
# HELP entente_fabric_path_up Whether probes to a node are answered; connection_type says how packets get there.
# TYPE entente_fabric_path_up gauge
entente_fabric_path_up{connection_type="",node="gw2",peer="peer"} 0
entente_fabric_path_up{connection_type="Direct",node="other",peer=""} 1
entente_fabric_path_up{connection_type="Observed",node="gw",peer="peer"} 1
# HELP entente_fabric_peer_bytes_total Bytes of these, decrypted.
# TYPE entente_fabric_peer_bytes_total counter
entente_fabric_peer_bytes_total{direction="received",peer="peer",via="direct"} 300
entente_fabric_peer_bytes_total{direction="received",peer="peer",via="gateway"} 100
entente_fabric_peer_bytes_total{direction="sent",peer="peer",via="direct"} 400
entente_fabric_peer_bytes_total{direction="sent",peer="peer",via="gateway"} 200
# HELP entente_fabric_peer_packets_total Packets from and to a peer, on the one node that translates them.
# TYPE entente_fabric_peer_packets_total counter
entente_fabric_peer_packets_total{direction="received",peer="peer",via="direct"} 3
entente_fabric_peer_packets_total{direction="received",peer="peer",via="gateway"} 1
entente_fabric_peer_packets_total{direction="sent",peer="peer",via="direct"} 4
entente_fabric_peer_packets_total{direction="sent",peer="peer",via="gateway"} 2
# HELP entente_fabric_probes_answered_total Probes that a node answered.
# TYPE entente_fabric_probes_answered_total counter
entente_fabric_probes_answered_total{node="gw",peer="peer"} 3
entente_fabric_probes_answered_total{node="gw2",peer="peer"} 0
entente_fabric_probes_answered_total{node="other",peer=""} 0
# HELP entente_fabric_receive_errors_total Packets that the device refused; if it is one of the kernel, also because of the cipher.
# TYPE entente_fabric_receive_errors_total counter
entente_fabric_receive_errors_total 12
# HELP entente_fabric_received_bytes_total Bytes that came from a node, those of WireGuard included.
# TYPE entente_fabric_received_bytes_total counter
entente_fabric_received_bytes_total{node="gw",peer="peer"} 1.099511627776e+12
entente_fabric_received_bytes_total{node="gw2",peer="peer"} 0
entente_fabric_received_bytes_total{node="other",peer=""} 5
# HELP entente_fabric_switches_total How often traffic to a peer changed from some gateways to others.
# TYPE entente_fabric_switches_total counter
entente_fabric_switches_total{peer="peer"} 3
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want),
		"entente_fabric_dropped_packets_total", "entente_fabric_offload", "entente_fabric_path_up", "entente_fabric_probes_answered_total", "entente_fabric_received_bytes_total",
		"entente_fabric_key_due_seconds", "entente_fabric_peer_bytes_total", "entente_fabric_peer_packets_total", "entente_fabric_receive_errors_total", "entente_fabric_switches_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(c, "entente_fabric_round_trip_seconds"); n != 1 {
		t.Errorf("%d ways have round trips, want the one that is used", n)
	}
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	f.err = errors.New("no table")
	if n := testutil.CollectAndCount(c, "entente_fabric_dropped_packets_total", "entente_fabric_packets_total"); n != 0 {
		t.Errorf("%d series of what could not be read", n)
	}
	if n := testutil.CollectAndCount(c, "entente_fabric_path_up"); n != 3 {
		t.Errorf("%d ways are left, want 3", n)
	}
}

func TestRoundTripsAreCountedUpToEachBound(t *testing.T) {
	t.Parallel()
	got := cumulative(probe.Times{}.With(0).With(250 * time.Microsecond).With(251 * time.Microsecond).With(time.Hour))
	if len(got) != len(probe.TimeBounds()) || got[0.00025] != 2 || got[0.0005] != 3 || got[1.024] != 3 {
		t.Errorf("got %v", got)
	}
}

// writePair writes a certificate for a name as the kubelet does: all of it at once.
func writePair(t *testing.T, directory, name string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	next := t.TempDir()
	for file, b := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(next, file), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Remove(directory)
	if err := os.Symlink(next, directory); err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return pool
}

// The agent makes the certificate and replaces it while the node runs.
func TestMetricsAreServedWithTheCertificateThatThereIs(t *testing.T) {
	t.Parallel()
	directory := filepath.Join(t.TempDir(), "serving")
	file := &certificateFile{directory: directory}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: file.get})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake()
			_ = c.Close()
		}
	}()
	dial := func(roots *x509.CertPool, name string) error {
		c, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: name}}).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	if err := dial(x509.NewCertPool(), "one"); err == nil {
		t.Error("there is no certificate, and it has one")
	}
	for _, name := range []string{"one", "two"} {
		roots := writePair(t, directory, name)
		if err := dial(roots, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Remove(directory); err != nil {
		t.Fatal(err)
	}
	if err := dial(x509.NewCertPool(), "two"); err == nil {
		t.Error("the certificate was taken away, and it has one")
	}
}

// The server of a node, with the API server that it asks.
func TestNodesServeMetricsToWhomTheAPIServerKnows(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		body, _ := io.ReadAll(r.Body)
		switch {
		case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
			fmt.Fprintf(w, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":%t,"user":{"username":"u"}}}`, bytes.Contains(body, []byte("good")))
		case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
			fmt.Fprintf(w, `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":%t}}`, bytes.Contains(body, []byte("/metrics")))
		}
	}))
	defer api.Close()
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(t.TempDir(), "serving")
	roots := writePair(t, directory, "entente-fabric")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	cfg := Config{Kubernetes: &rest.Config{Host: api.URL}, MetricsAddress: address, MetricsCertificate: directory, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- serveMetrics(ctx, cfg, &measuredFabric{}, func() *time.Time { return nil }) }()
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "entente-fabric"}}}
	for token, want := range map[string]int{"good": http.StatusOK, "bad": http.StatusUnauthorized} {
		var status int
		var body []byte
		eventually(t, "the server responds", func() bool {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := web.Do(req)
			if err != nil {
				return false
			}
			status = resp.StatusCode
			body, err = io.ReadAll(resp.Body)
			return errors.Join(err, resp.Body.Close()) == nil
		})
		if status != want || strings.Contains(string(body), "entente_fabric_problems") != (want == http.StatusOK) {
			t.Errorf("%s: %d, %.200s", token, status, body)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

package fabric

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/entente-dev/entente/internal/kubeauth"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/probe"
)

// serveMetrics serves the metrics of a node until ctx ends, to callers that may read them. Failures
// are logged: tunnels do not depend on metrics.
func serveMetrics(ctx context.Context, cfg Config, source measured, keyDue func() *time.Time) error {
	if cfg.MetricsAddress == "" {
		return nil
	}
	own := newCollector(source, keyDue, cfg.Log)
	if err := metrics.Registry.Register(own); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	defer metrics.Registry.Unregister(own)
	for ctx.Err() == nil {
		server, err := metricsServer(cfg)
		if err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
		if err := server.Start(ctx); err != nil && ctx.Err() == nil {
			cfg.Log.Warn("cannot serve metrics, trying again", "address", cfg.MetricsAddress, "err", err, "after", metricsRetry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(metricsRetry):
		}
	}
	return nil
}

// metricsServer serves with the certificate that the agent made, and refuses connections without it.
func metricsServer(cfg Config) (metricsserver.Server, error) {
	c, err := rest.HTTPClientFor(cfg.Kubernetes)
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfigAndClient(cfg.Kubernetes, c)
	if err != nil {
		return nil, err
	}
	return metricsserver.NewServer(metricsserver.Options{
		BindAddress: cfg.MetricsAddress, SecureServing: true,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion, c.GetCertificate = tls.VersionTLS13, (&certificateFile{directory: cfg.MetricsCertificate}).get
		}},
		FilterProvider: func(*rest.Config, *http.Client) (metricsserver.Filter, error) {
			return func(_ logr.Logger, next http.Handler) (http.Handler, error) {
				return kubeauth.MetricsReaders(kube, cfg.Log, next), nil
			}, nil
		},
	}, cfg.Kubernetes, c)
}

// certificateFile is a certificate in a directory, read again when its file changes.
type certificateFile struct {
	directory string

	mu       sync.Mutex
	modified time.Time
	pair     *tls.Certificate
}

func (c *certificateFile) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	chain, key := filepath.Join(c.directory, corev1.TLSCertKey), filepath.Join(c.directory, corev1.TLSPrivateKeyKey)
	info, err := os.Stat(chain)
	if err != nil {
		return nil, fmt.Errorf("read the certificate for metrics, which the agent makes: %w", err)
	}
	if c.pair == nil || !info.ModTime().Equal(c.modified) {
		pair, err := tls.LoadX509KeyPair(chain, key)
		if err != nil {
			return nil, fmt.Errorf("parse the certificate for metrics: %w", err)
		}
		c.pair, c.modified = &pair, info.ModTime()
	}
	return c.pair, nil
}

// measured is the part of a [tunnel.Fabric] that the metrics read.
type measured interface {
	Status() tunnel.Status
	Counters() (tunnel.Counters, error)
}

// collector has the metrics of a node's tunnels, read at each scrape. There are as many
// series as tunnels, and those of a tunnel end with it.
type collector struct {
	fabric measured
	// due is when the node's key is due to be replaced; nil means unknown, the zero time never.
	due func() *time.Time
	log *slog.Logger

	up, active, mtu, large, handshake, problems, keyDue                *prometheus.Desc
	received, sent, probes, answered, switches, packets, dropped, trip *prometheus.Desc
	peerPackets, peerBytes, refused, ends, offload                     *prometheus.Desc
}

func newCollector(fabric measured, keyDue func() *time.Time, log *slog.Logger) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	of := func(name, help string) *prometheus.Desc { return desc(name, help, "peer", "node") }
	return &collector{
		fabric: fabric, due: keyDue, log: log,
		up:          desc("entente_fabric_path_up", "Whether probes to a node are answered; connection_type says how packets get there.", "peer", "node", "connection_type"),
		active:      of("entente_fabric_path_active", "Whether traffic goes this way."),
		mtu:         of("entente_fabric_path_mtu_bytes", "Size of packets that are known to pass."),
		large:       of("entente_fabric_large_packets_lost", "Whether large packets are lost though small ones pass."),
		handshake:   of("entente_fabric_last_handshake_seconds", "When WireGuard last agreed on a session, in seconds since 1970."),
		received:    of("entente_fabric_received_bytes_total", "Bytes that came from a node, those of WireGuard included."),
		sent:        of("entente_fabric_sent_bytes_total", "Bytes that went to a node, those of WireGuard included."),
		probes:      of("entente_fabric_probes_total", "Probes that were sent to a node."),
		answered:    of("entente_fabric_probes_answered_total", "Probes that a node answered."),
		trip:        of("entente_fabric_round_trip_seconds", "Round trips of probes on ways that traffic goes."),
		switches:    desc("entente_fabric_switches_total", "How often traffic to a peer changed from some gateways to others.", "peer"),
		packets:     desc("entente_fabric_packets_total", "Packets of all tunnels of the node, decrypted.", "direction"),
		dropped:     desc("entente_fabric_dropped_packets_total", "Packets that the rules of the node or its WireGuard dropped.", "reason", "peer"),
		peerPackets: desc("entente_fabric_peer_packets_total", "Packets from and to a peer, on the one node that translates them.", "peer", "via", "direction"),
		peerBytes:   desc("entente_fabric_peer_bytes_total", "Bytes of these, decrypted.", "peer", "via", "direction"),
		refused:     desc("entente_fabric_receive_errors_total", "Packets that the device refused; if it is one of the kernel, also because of the cipher."),
		offload:     desc("entente_fabric_offload", "Whether WireGuard in user space processes many packets at once there.", "offload"),
		ends:        desc("entente_fabric_end_to_end_up", "Whether probes from pods' network to pods' network pass to all nodes of a peer, in all sizes; absent until that is known.", "peer"),
		keyDue:      desc("entente_fabric_key_due_seconds", "When the WireGuard key of the node is due to be replaced, in seconds since 1970; absent if never."),
		problems:    desc("entente_fabric_problems", "Problems that the node reports now."),
	}
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.up, c.active, c.mtu, c.large, c.handshake, c.received, c.sent, c.probes, c.answered, c.trip, c.switches, c.packets, c.dropped, c.problems,
		c.peerPackets, c.peerBytes, c.refused, c.keyDue, c.ends, c.offload,
	} {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	status := c.fabric.Status()
	gauge(out, c.problems, float64(len(status.Problems)))
	if due := c.due(); due != nil && !due.IsZero() {
		gauge(out, c.keyDue, float64(due.Unix()))
	}
	seen := map[[2]string]bool{} // peers name their nodes, and two series of one name would be an error
	for _, p := range status.Peers {
		if p.OnDemand && !p.Direct && !p.Entry {
			continue // it comes and goes, and carriers replace it
		}
		peer := ""
		if p.Remote {
			peer = p.Cluster
		}
		if name := [2]string{peer, p.Node}; !seen[name] {
			seen[name] = true
			c.path(out, p, peer)
		}
	}
	for name, on := range status.Offloads {
		gauge(out, c.offload, boolValue(on), string(name))
	}
	for _, e := range status.Ends {
		if e.State != probe.EndUnknown {
			gauge(out, c.ends, boolValue(e.State == probe.EndUp), e.Cluster)
		}
	}
	for peer, n := range status.Switches {
		count(out, c.switches, n, peer)
	}
	counters, err := c.fabric.Counters()
	if err != nil {
		c.log.Warn("cannot read the counters of the kernel for metrics", "err", err)
		return
	}
	c.counted(out, counters)
}

// path collects the metrics of the tunnel to a node.
func (c *collector) path(out chan<- prometheus.Metric, p tunnel.PeerStatus, peer string) {
	gauge(out, c.up, boolValue(p.State == probe.PathUp), peer, p.Node, string(p.Way))
	gauge(out, c.active, boolValue(p.Active || p.Direct || p.Entry), peer, p.Node)
	gauge(out, c.large, boolValue(p.LargeLost), peer, p.Node)
	if p.MTU > 0 {
		gauge(out, c.mtu, float64(p.MTU), peer, p.Node)
	}
	if !p.LastHandshake.IsZero() {
		gauge(out, c.handshake, float64(p.LastHandshake.Unix()), peer, p.Node)
	}
	count(out, c.received, uint64(max(p.Received, 0)), peer, p.Node)
	count(out, c.sent, uint64(max(p.Sent, 0)), peer, p.Node)
	count(out, c.probes, p.Probes, peer, p.Node)
	count(out, c.answered, p.Times.Count(), peer, p.Node)
	if p.Active || p.Direct || p.Entry {
		out <- prometheus.MustNewConstHistogram(c.trip, p.Times.Count(), p.Times.Sum.Seconds(), cumulative(p.Times), peer, p.Node)
	}
}

// counted collects the kernel's counters.
func (c *collector) counted(out chan<- prometheus.Metric, counters tunnel.Counters) {
	count(out, c.packets, counters.Received, "received")
	count(out, c.packets, counters.Sent, "sent")
	count(out, c.refused, counters.ReceiveErrors)
	for via, flows := range map[string]map[string]firewall.Flow{"gateway": counters.Carried, "direct": counters.Direct} {
		for peer, f := range flows {
			for direction, n := range map[string]firewall.Count{"received": f.Received, "sent": f.Sent} {
				count(out, c.peerPackets, n.Packets, peer, via, direction)
				count(out, c.peerBytes, n.Bytes, peer, via, direction)
			}
		}
	}
	for d, n := range counters.Dropped {
		count(out, c.dropped, n.Packets, strings.ReplaceAll(string(d.Reason), " ", "_"), d.Peer)
	}
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func count(out chan<- prometheus.Metric, d *prometheus.Desc, n uint64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// cumulative returns the counts of round trips up to each bound, in seconds, as Prometheus needs them.
func cumulative(t probe.Times) map[float64]uint64 {
	out, sum := map[float64]uint64{}, uint64(0)
	for i, bound := range probe.TimeBounds() {
		sum += t.Counts[i]
		out[bound.Seconds()] = sum
	}
	return out
}

package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/internal/presharedkeys"
)

// peerMetrics are the metrics of trusted clusters, and of their share of the alias pool. It implements
// prometheus.Collector.
type peerMetrics struct {
	reader ctrlclient.Reader
	// timeout bounds one read of the cache, which does not exist at the very start.
	timeout  time.Duration
	pool     []netip.Prefix
	keyEvery time.Duration

	condition, cutOff, keyDue, size, used *prometheus.Desc
}

func newPeerMetrics(reader ctrlclient.Reader, pool []netip.Prefix, keyEvery time.Duration) *peerMetrics {
	return &peerMetrics{
		reader: reader, timeout: time.Second, pool: cidr.Of(pool...), keyEvery: keyEvery,
		condition: prometheus.NewDesc("entente_peer_condition", "Whether a condition of a trusted cluster is true; absent while that is unknown, or the condition does not apply.", []string{"peer", "type"}, nil),
		cutOff:    prometheus.NewDesc("entente_peer_nodes_cut_off", "Whether pods on some nodes do not reach a trusted cluster, and those on others do; absent while no tunnel is wanted.", []string{"peer"}, nil),
		keyDue:    prometheus.NewDesc("entente_preshared_key_due_seconds", "When the preshared key of the tunnel to a peer is due to be replaced, in seconds since 1970; absent if never.", []string{"peer"}, nil),
		size:      prometheus.NewDesc("entente_alias_pool_addresses", "How many addresses the alias pool has.", []string{"family"}, nil),
		used:      prometheus.NewDesc("entente_alias_pool_used_addresses", "How many of them are assigned to peers.", []string{"family"}, nil),
	}
}

// registerPeerMetrics registers the peers' metrics.
func (a *agent) registerPeerMetrics(pool []netip.Prefix) error {
	return register(newPeerMetrics(a.mgr.GetCache(), pool, a.states.KeyEvery))
}

func (m *peerMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.condition, m.cutOff, m.keyDue, m.size, m.used} {
		out <- d
	}
}

func (m *peerMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), m.timeout) //nolint:forbidigo // the interface gives none
	defer cancel()
	var list v1alpha1.ForeignClusterList
	if err := m.reader.List(ctx, &list, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		return // the next scrape has it
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	size, used := map[string]float64{}, map[string]float64{}
	for _, p := range m.pool {
		size[family(p)] += cidr.Size(p)
	}
	seen := map[string]bool{}
	for i := range list.Items {
		fc := &list.Items[i]
		for _, p := range stored.Pool(fc.Status) {
			used[family(p)] += cidr.Size(p)
		}
		// Any host on a LAN can announce clusters.
		if seen[fc.Spec.ClusterID] || !meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionTrusted) {
			continue
		}
		seen[fc.Spec.ClusterID] = true
		for _, c := range fc.Status.Conditions {
			if c.Status != metav1.ConditionUnknown && c.Reason != v1alpha1.ReasonTunnelNotRequired && c.Reason != v1alpha1.ReasonNoContract {
				gauge(m.condition, map[bool]float64{true: 1}[c.Status == metav1.ConditionTrue], fc.Spec.ClusterID, c.Type)
			}
		}
		if c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionNetwork); c != nil && c.Reason != v1alpha1.ReasonTunnelNotRequired {
			gauge(m.cutOff, map[bool]float64{true: 1}[c.Reason == v1alpha1.ReasonNodesCutOff], fc.Spec.ClusterID)
		}
		if due := presharedkeys.Due(fc, m.keyEvery); !due.IsZero() {
			gauge(m.keyDue, float64(due.Unix()), fc.Spec.ClusterID)
		}
	}
	for f, n := range size {
		gauge(m.size, n, f)
		gauge(m.used, used[f], f)
	}
}

func family(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

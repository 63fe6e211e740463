package gauges

import (
	"context"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// requests is the metric of the requests of trusted clusters that wait for an administrator.
type requests struct {
	reader  client.Reader
	pending *prometheus.Desc
}

// OfRequests returns the metric of requests, which it reads from a cache.
func OfRequests(reader client.Reader) prometheus.Collector {
	return &requests{reader: reader, pending: prometheus.NewDesc("entente_requests_pending", "Requests of a trusted cluster that wait for an administrator to approve or deny them.", []string{"peer"}, nil)}
}

// Describe implements prometheus.Collector.
func (m *requests) Describe(out chan<- *prometheus.Desc) { out <- m.pending }

// Collect implements prometheus.Collector.
func (m *requests) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout) //nolint:forbidigo // the interface gives none
	defer cancel()
	var list v1alpha1.ForeignClusterList
	if err := m.reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return // the next scrape has it
	}
	pending := map[string]int{} // two ForeignClusters may be of one cluster
	for i := range list.Items {
		fc := &list.Items[i]
		if !meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionTrusted) {
			continue
		}
		pending[fc.Spec.ClusterID] += 0
		for _, r := range fc.Status.Requests {
			if !slices.Contains(fc.Spec.ApprovedRequests, r.ID) && !slices.Contains(fc.Spec.DeniedRequests, r.ID) {
				pending[fc.Spec.ClusterID]++
			}
		}
	}
	for peer, n := range pending {
		out <- prometheus.MustNewConstMetric(m.pending, prometheus.GaugeValue, float64(n), peer)
	}
}

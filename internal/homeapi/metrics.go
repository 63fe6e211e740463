package homeapi

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/entente-dev/entente/peering"
)

// Outcomes of a request of a pod abroad.
const (
	outcomePassed  = "passed_on"
	outcomeLimited = "limited"
	outcomeRefused = "refused"
	// outcomeCancelled is the outcome of a request that ended before it was passed on, because the
	// pod or its connection did not wait.
	outcomeCancelled = "cancelled"
)

func newRequests() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "entente_home_api_requests_total", Help: "Requests of pods abroad to the API server of this cluster, their home.",
	}, []string{"peer", "outcome"})
}

// connections is a metric of how many connections there are, by peer.
type connections struct {
	desc *prometheus.Desc
	now  func() map[peering.ClusterID]int
}

func newConnections(name, help string, now func() map[peering.ClusterID]int) prometheus.Collector {
	return &connections{desc: prometheus.NewDesc(name, help, []string{"peer"}, nil), now: now}
}

// Describe implements prometheus.Collector.
func (c *connections) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect implements prometheus.Collector.
func (c *connections) Collect(out chan<- prometheus.Metric) {
	for peer, n := range c.now() {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), string(peer))
	}
}

// Collectors returns the metrics of home:
//
//	entente_home_api_connections{peer}             of pods of this cluster that run at the peer
//	entente_home_api_requests_total{peer,outcome}  passed_on, limited, refused, cancelled
func (h *Home) Collectors() []prometheus.Collector {
	return []prometheus.Collector{h.requests, newConnections("entente_home_api_connections", "Connections of pods abroad to the API server of this cluster, their home.",
		func() map[peering.ClusterID]int {
			h.mu.Lock()
			defer h.mu.Unlock()
			out := make(map[peering.ClusterID]int)
			for c := range h.conns {
				out[c.provider]++
			}
			return out
		})}
}

// Collectors returns the metrics of a provider:
//
//	entente_home_api_carried_connections{peer}  of the peer's pods that run here
func (a *Abroad) Collectors() []prometheus.Collector {
	return []prometheus.Collector{newConnections("entente_home_api_carried_connections", "Connections of pods of consumers to the API servers of their homes.",
		a.of.Now)}
}

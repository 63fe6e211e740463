package carry

import "github.com/prometheus/client_golang/prometheus"

// collector has the metrics of a Carrier.
type collector struct {
	c              *Carrier
	carried        prometheus.Collector
	bytes, refused *prometheus.Desc
}

// Collector returns the metrics of the connections between peers:
//
//	entente_carried_between_peers        connections
//	entente_carried_bytes_total          bytes, both ways
//	entente_carry_refused_total{reason}  requests that were refused
func (c *Carrier) Collector() prometheus.Collector {
	return &collector{
		c:       c,
		carried: c.gauge(),
		bytes:   prometheus.NewDesc("entente_carried_bytes_total", "Bytes that this cluster carried between peers, both ways.", nil, nil),
		refused: prometheus.NewDesc("entente_carry_refused_total", "Requests of peers for a connection to another one that were refused.", []string{"reason"}, nil),
	}
}

func (m *collector) Describe(out chan<- *prometheus.Desc) {
	m.carried.Describe(out)
	out <- m.bytes
	out <- m.refused
}

func (m *collector) Collect(out chan<- prometheus.Metric) {
	m.carried.Collect(out)
	out <- prometheus.MustNewConstMetric(m.bytes, prometheus.CounterValue, float64(m.c.bytes.Load()))
	for r := range refusals {
		out <- prometheus.MustNewConstMetric(m.refused, prometheus.CounterValue, float64(m.c.refused[r].Load()), r.String())
	}
}

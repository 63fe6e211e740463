package datagrams

import "github.com/prometheus/client_golang/prometheus"

// Collector returns the hub's metrics:
//
//	entente_relayed_datagrams_total{peer,direction}  carried, sent or received
//	entente_relayed_bytes_total{peer,direction}
//	entente_relayed_lost_total{peer,reason}          late, malformed, handshakes, homeless: see [Stats]
func (h *Hub) Collector() prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"peer"}, labels...), nil)
	}
	return &collector{
		hub:       h,
		datagrams: desc("entente_relayed_datagrams_total", "Datagrams of a tunnel that the agents carried.", "direction"),
		bytes:     desc("entente_relayed_bytes_total", "Bytes of these.", "direction"),
		lost:      desc("entente_relayed_lost_total", "Datagrams of a tunnel that the agent did not carry on.", "reason"),
	}
}

type collector struct {
	hub                    *Hub
	datagrams, bytes, lost *prometheus.Desc
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.datagrams, c.bytes, c.lost} {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for peer, s := range c.hub.Stats() {
		count(c.datagrams, s.Sent, peer, "sent")
		count(c.datagrams, s.Received, peer, "received")
		count(c.bytes, s.SentBytes, peer, "sent")
		count(c.bytes, s.ReceivedBytes, peer, "received")
		count(c.lost, s.Late, peer, "late")
		count(c.lost, s.Malformed, peer, "malformed")
		count(c.lost, s.Handshakes, peer, "handshakes")
		count(c.lost, s.Homeless, peer, "homeless")
	}
}

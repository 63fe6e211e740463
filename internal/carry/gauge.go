package carry

import "github.com/prometheus/client_golang/prometheus"

// gauge is the number of connections that are carried now.
func (c *Carrier) gauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "entente_carried_between_peers", Help: "Connections between peers that this cluster carries.",
	}, func() float64 { return float64(c.Carried()) })
}

package session

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/entente-dev/entente/peering"
)

// collector has the metrics of sessions and certificates. Series with a peer are of sessions
// that are up, so there are at most maxSessions of a kind.
type collector struct {
	m                                                    *Manager
	notAfter, sessions, inBand, carried, roundTrip, skew *prometheus.Desc
}

// Collector returns the metrics of the sessions and of the certificates, this
// side's own among them:
//
//	entente_certificate_not_after_seconds{kind,peer}  when the root, the leaf, or
//	    the leaf that a peer showed last ends, in seconds since 1970
//	entente_sessions                                  how many are up
//	entente_sessions_in_band                          how many of them run through tunnels
//	entente_sessions_carried                          how many of them a third peer carries
//	entente_session_round_trip_seconds{peer}
//	entente_session_clock_skew_seconds{peer}          how far the peer's clock is ahead
func (m *Manager) Collector() prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		m:         m,
		notAfter:  desc("entente_certificate_not_after_seconds", "When a certificate ends, in seconds since 1970: this cluster's root, its agent's leaf, or the leaf that a peer showed last.", "kind", "peer"),
		sessions:  desc("entente_sessions", "Sessions with peers that are up."),
		inBand:    desc("entente_sessions_in_band", "Sessions with peers that run through the tunnels to them."),
		carried:   desc("entente_sessions_carried", "Sessions with peers that a third peer carries."),
		roundTrip: desc("entente_session_round_trip_seconds", "Smoothed round trip time of a session.", "peer"),
		skew:      desc("entente_session_clock_skew_seconds", "How far a peer's clock is ahead of this one's.", "peer"),
	}
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.notAfter, c.sessions, c.inBand, c.carried, c.roundTrip, c.skew} {
		out <- d
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	end := func(kind string, peer peering.ClusterID, at time.Time) {
		gauge(c.notAfter, float64(at.Unix()), kind, string(peer))
	}
	source := c.m.cfg.Source
	_, leaf := source.Leaf()
	end("root", "", source.Identity().Root().NotAfter)
	end("leaf", "", leaf)
	sessions := c.m.Sessions()
	gauge(c.sessions, float64(len(sessions)))
	inBand, carried := 0, 0
	for _, s := range sessions {
		if s.InBand {
			inBand++
		}
		if s.Through != "" {
			carried++
		}
		end("peer", s.Peer, s.PeerNotAfter)
		if s.RoundTrip > 0 {
			gauge(c.roundTrip, s.RoundTrip.Seconds(), string(s.Peer))
		}
		if s.RoundTrip > 0 || s.Dialled {
			gauge(c.skew, s.ClockSkew.Seconds(), string(s.Peer))
		}
	}
	gauge(c.inBand, float64(inBand))
	gauge(c.carried, float64(carried))
}

// Package gauges has metrics that are read from the custom resources when they are scraped.
package gauges

import (
	"context"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// contracts are the metrics of the contracts that are not closed.
type contracts struct {
	reader                             client.Reader
	notBefore, notAfter, granted, used *prometheus.Desc
}

// OfContracts returns the metrics of contracts, which it reads from a cache.
func OfContracts(reader client.Reader) prometheus.Collector {
	labels := []string{"contract", "role", "peer"}
	byResource := append(slices.Clone(labels), "resource")
	return &contracts{
		reader:    reader,
		notBefore: prometheus.NewDesc("entente_contract_not_before_seconds", "When the contract began, in seconds since 1970.", labels, nil),
		notAfter:  prometheus.NewDesc("entente_contract_not_after_seconds", "When the contract ends, in seconds since 1970.", labels, nil),
		granted:   prometheus.NewDesc("entente_contract_granted", "What the contract grants, in base units (cores, bytes).", byResource, nil),
		used:      prometheus.NewDesc("entente_contract_used", "What live pods use of the contract, in base units (cores, bytes), by this cluster's own count.", byResource, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *contracts) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.notBefore, m.notAfter, m.granted, m.used} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *contracts) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout) //nolint:forbidigo // the interface gives none
	defer cancel()
	var list v1alpha1.ContractList
	if err := m.reader.List(ctx, &list); err != nil {
		return // the next scrape has it
	}
	for i := range list.Items {
		c := &list.Items[i]
		if c.Status.Phase == "" || c.Status.Phase == peering.PhaseClosed.String() {
			continue
		}
		labels := []string{c.Name, strings.ToLower(string(c.Spec.Role)), c.Spec.PeerID}
		gauge := func(d *prometheus.Desc, v float64, more ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, slices.Concat(labels, more)...)
		}
		gauge(m.notBefore, float64(c.Spec.NotBefore.Unix()))
		gauge(m.notAfter, float64(c.Spec.NotAfter.Unix()))
		for name, granted := range c.Spec.Resources {
			gauge(m.granted, granted.AsApproximateFloat64(), string(name))
			gauge(m.used, amount(c.Status.Used, name), string(name))
		}
	}
}

func amount(list corev1.ResourceList, name corev1.ResourceName) float64 {
	q := list[name]
	return q.AsApproximateFloat64()
}

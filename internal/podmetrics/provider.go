package podmetrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/peering"
)

// Pod is a pod of a contract that runs in this cluster.
type Pod struct {
	// UID is the pod's UID at the consumer.
	UID string
	// Namespace and Name are those here.
	Namespace, Name string
	// Started is when a kubelet started it. Earlier measurements are of another pod.
	Started time.Time
	// Containers are the names of those that the consumer sent. What others use is not reported.
	Containers []string
}

// Source reads what pods use.
type Source interface {
	// Measure returns what the pods of a contract in a namespace use, by name. Without a metrics
	// API the error is a *peering.Error with the reason METRICS_UNAVAILABLE.
	Measure(ctx context.Context, namespace, contract string) (map[string]peering.PodMetrics, error)
}

// ProviderConfig is what a Provider needs.
type ProviderConfig struct {
	// Source measures. Required.
	Source Source
	// Pods returns the pods of a contract that run here. Required.
	Pods func(ctx context.Context, contract string) ([]Pod, error)
	// Now is the time. Default time.Now.
	Now func() time.Time
}

// Provider measures the pods of contracts for their consumers. However often it is asked, it
// reads the cluster at a limited rate.
type Provider struct {
	cfg   ProviderConfig
	slots chan struct{}
	lists *rate.Limiter

	mu        sync.Mutex
	contracts map[string]*measured
}

// measured has the last measurement of a contract.
type measured struct {
	lock   chan struct{} // a lock of the rest that can be waited for with a context
	at     time.Time
	result peering.ContractMetrics
	err    error
}

// NewProvider returns a Provider without measurements.
func NewProvider(cfg ProviderConfig) (*Provider, error) {
	if cfg.Source == nil || cfg.Pods == nil {
		return nil, errors.New("metrics of pods: a source and pods are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Provider{
		cfg: cfg, slots: make(chan struct{}, measuredAtOnce), lists: rate.NewLimiter(listsPerSecond, listsBurst), contracts: make(map[string]*measured),
	}, nil
}

// PodMetrics returns what the pods of a contract use. Pods that were not measured are missing.
func (p *Provider) PodMetrics(ctx context.Context, contract string) (peering.ContractMetrics, error) {
	m := p.of(contract)
	if err := take(ctx, m.lock); err != nil {
		return peering.ContractMetrics{}, err
	}
	defer func() { <-m.lock }()
	now := p.cfg.Now()
	if !m.due(now) {
		m.result.Time = now
		return m.result, m.err
	}
	if err := take(ctx, p.slots); err != nil {
		return peering.ContractMetrics{}, err
	}
	defer func() { <-p.slots }()
	pods, err := p.measure(ctx, contract)
	if ctx.Err() != nil { // the caller has gone; other callers measure again
		return peering.ContractMetrics{}, context.Cause(ctx)
	}
	now = p.cfg.Now()
	p.mu.Lock()
	m.at, m.err, m.result = now, err, peering.ContractMetrics{Time: now, Pods: pods}
	p.mu.Unlock()
	return m.result, err
}

// due reports whether it is time to measure again.
func (m *measured) due(now time.Time) bool {
	wait := measureEvery
	if e, ok := errors.AsType[*peering.Error](m.err); ok && e.Reason == peering.ReasonMetricsUnavailable {
		wait = unavailableFor
	}
	return m.at.IsZero() || now.Sub(m.at) >= wait
}

// of returns the last measurement of a contract, and forgets those that were not requested lately.
func (p *Provider) of(contract string) *measured {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Now()
	maps.DeleteFunc(p.contracts, func(_ string, m *measured) bool { return !m.at.IsZero() && now.Sub(m.at) > forgetAfter })
	m := p.contracts[contract]
	if m == nil {
		m = &measured{lock: make(chan struct{}, 1)}
		p.contracts[contract] = m
	}
	return m
}

// take waits until it can send to places.
func take(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Provider) measure(ctx context.Context, contract string) ([]peering.PodMetrics, error) {
	pods, err := p.cfg.Pods(ctx, contract)
	if err != nil {
		return nil, err
	}
	namespaces := make(map[string][]Pod)
	for _, pod := range pods {
		namespaces[pod.Namespace] = append(namespaces[pod.Namespace], pod)
	}
	var out []peering.PodMetrics
	for _, namespace := range slices.Sorted(maps.Keys(namespaces)) {
		if err := p.lists.Wait(ctx); err != nil {
			return nil, fmt.Errorf("wait to read another namespace: %w", err)
		}
		found, err := p.cfg.Source.Measure(ctx, namespace, contract)
		if err != nil {
			return nil, err
		}
		out = append(out, attribute(namespaces[namespace], found)...)
	}
	return out, nil
}

// attribute returns the measurements with the consumer's UIDs of the pods. It drops those of an
// earlier pod of the same name.
func attribute(pods []Pod, found map[string]peering.PodMetrics) []peering.PodMetrics {
	var out []peering.PodMetrics
	for _, pod := range pods {
		if m, ok := found[pod.Name]; ok && m.Time.After(pod.Started) {
			m.UID = pod.UID
			m.Containers = slices.DeleteFunc(slices.Clone(m.Containers), func(c peering.ContainerMetrics) bool { return !slices.Contains(pod.Containers, c.Name) })
			if len(m.Containers) > 0 {
				out = append(out, m)
			}
		}
	}
	return out
}

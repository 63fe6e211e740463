package agent

import (
	"context"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podmetrics"
)

// podMetrics builds what measures the pods that run here for consumers.
func (a *agent) podMetrics() (*podmetrics.Provider, error) {
	return podmetrics.NewProvider(podmetrics.ProviderConfig{
		Source: podmetrics.MetricsAPI{REST: a.kubernetes.Discovery().RESTClient(), Label: v1alpha1.LabelContract},
		Pods: func(ctx context.Context, contract string) ([]podmetrics.Pod, error) {
			running, err := a.lent.Running(ctx, contract)
			if err != nil {
				return nil, err
			}
			pods := make([]podmetrics.Pod, 0, len(running))
			for _, p := range running {
				pods = append(pods, podmetrics.Pod(p))
			}
			return pods, nil
		},
	})
}

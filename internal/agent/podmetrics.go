package agent

import (
	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podmetrics"
)

// podMetrics builds the measuring of pods that run here for consumers.
func (a *agent) podMetrics() (*podmetrics.Provider, error) {
	return podmetrics.NewProvider(podmetrics.ProviderConfig{
		Source: podmetrics.MetricsAPI{REST: a.kubernetes.Discovery().RESTClient(), Label: v1alpha1.LabelContract},
		Pods:   a.offloaded.Running,
	})
}

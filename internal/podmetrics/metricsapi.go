package podmetrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/peering"
)

// MetricsAPI reads metrics.k8s.io, which metrics-server and others serve. It needs the permission
// to list pods of that API in the namespaces of consumers.
type MetricsAPI struct {
	// REST is a client of the API server.
	REST rest.Interface
	// Label is the label of a pod that names its contract.
	Label string
}

// podMetricsList has those fields of a metrics.k8s.io/v1beta1 PodMetricsList that are read.
type podMetricsList struct {
	Items []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Timestamp  metav1.Time     `json:"timestamp"`
		Window     metav1.Duration `json:"window"`
		Containers []struct {
			Name  string `json:"name"`
			Usage struct {
				CPU    resource.Quantity `json:"cpu"`
				Memory resource.Quantity `json:"memory"`
			} `json:"usage"`
		} `json:"containers"`
	} `json:"items"`
}

// Measure implements Source.
func (a MetricsAPI) Measure(ctx context.Context, namespace, contract string) (map[string]peering.PodMetrics, error) {
	body, err := a.REST.Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces", namespace, "pods").
		Param("labelSelector", a.Label+"="+contract).SetHeader("Accept", "application/json").Stream(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsServiceUnavailable(err):
		return nil, &peering.Error{
			Reason: peering.ReasonMetricsUnavailable, Err: err,
			Message: "the provider's cluster does not serve metrics.k8s.io (metrics-server does, for example), or its agent may not read it",
		}
	case err != nil:
		return nil, fmt.Errorf("list metrics of pods in %s: %w", namespace, err)
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, maxListBytes+1))
	if err != nil {
		return nil, fmt.Errorf("list metrics of pods in %s: %w", namespace, err)
	}
	if len(raw) > maxListBytes {
		return nil, fmt.Errorf("list metrics of pods in %s: the response exceeds the limit of %d bytes", namespace, maxListBytes)
	}
	return readList(raw)
}

// readList decodes a list, and drops malformed entries.
func readList(raw []byte) (map[string]peering.PodMetrics, error) {
	var list podMetricsList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read a list of metrics.k8s.io: %w", err)
	}
	out := make(map[string]peering.PodMetrics, len(list.Items))
	for _, item := range list.Items {
		m := peering.PodMetrics{Time: item.Timestamp.Time, Window: item.Window.Duration}
		for _, c := range item.Containers {
			cpu, memory := nanocoresOf(c.Usage.CPU), c.Usage.Memory.Value()
			if cpu < 0 || memory < 0 {
				continue
			}
			m.Containers = append(m.Containers, peering.ContainerMetrics{Name: c.Name, Nanocores: uint64(cpu), Memory: uint64(memory)})
		}
		if item.Metadata.Name != "" && m.Window > 0 && len(m.Containers) > 0 {
			out[item.Metadata.Name] = m
		}
	}
	return out, nil
}

func nanocoresOf(q resource.Quantity) int64 { return q.ScaledValue(resource.Nano) }

package wire

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// PodMetricsTo writes what the pods of a contract use, in at least one message. It leaves out
// what exceeds the limits of the other side.
func PodMetricsTo(m peering.ContractMetrics) []*ententev1.PodMetricsResponse {
	out := []*ententev1.PodMetricsResponse{{SendTime: timestamppb.New(m.Time)}}
	parts := 0
	for _, pod := range m.Pods[:min(len(m.Pods), MaxMetricsPods)] {
		p := &ententev1.PodMetricsResponse_Pod{Uid: pod.UID, Time: timestamppb.New(pod.Time), Window: durationpb.New(pod.Window)}
		for _, c := range pod.Containers {
			p.Containers = append(p.Containers, &ententev1.PodMetricsResponse_Container{Name: c.Name, CpuNanocores: c.Nanocores, MemoryBytes: c.Memory})
		}
		if _, err := podMetricsFrom(p); err != nil {
			continue
		}
		size := partsOfMetrics + partsOfContainer*len(p.GetContainers())
		if parts += size; parts > metricsParts {
			if len(out) == MaxMetricsMessages {
				break
			}
			out, parts = append(out, &ententev1.PodMetricsResponse{}), size
		}
		last := out[len(out)-1]
		last.Pods = append(last.Pods, p)
	}
	return out
}

// PodMetricsFrom adds the metrics of a message to m. It checks each value by itself; the caller
// has to check that the pods exist and that the metrics are recent.
func PodMetricsFrom(m *peering.ContractMetrics, in *ententev1.PodMetricsResponse) error {
	if in.GetSendTime() != nil {
		if err := in.GetSendTime().CheckValid(); err != nil {
			return invalid("send_time", "%v", err)
		}
		m.Time = in.GetSendTime().AsTime()
	}
	if m.Time.IsZero() {
		return invalid("send_time", "is required in the first message")
	}
	if len(m.Pods)+len(in.GetPods()) > MaxMetricsPods {
		return invalid("pods", "want at most %d in all", MaxMetricsPods)
	}
	for _, p := range in.GetPods() {
		pod, err := podMetricsFrom(p)
		if err != nil {
			return err
		}
		m.Pods = append(m.Pods, pod)
	}
	return nil
}

func podMetricsFrom(p *ententev1.PodMetricsResponse_Pod) (peering.PodMetrics, error) {
	none := peering.PodMetrics{}
	if err := checkUID("pods.uid", p.GetUid()); err != nil {
		return none, err
	}
	if err := p.GetTime().CheckValid(); err != nil {
		return none, invalid("pods.time", "%v", err)
	}
	window := p.GetWindow().AsDuration()
	if err := p.GetWindow().CheckValid(); err != nil || window < MinMetricsWindow || window > MaxMetricsWindow {
		return none, invalid("pods.window", "want %s to %s", MinMetricsWindow, MaxMetricsWindow)
	}
	if len(p.GetContainers()) > MaxMetricsContainers {
		return none, invalid("pods.containers", "has %d, want at most %d", len(p.GetContainers()), MaxMetricsContainers)
	}
	out := peering.PodMetrics{UID: p.GetUid(), Time: p.GetTime().AsTime(), Window: window, Containers: make([]peering.ContainerMetrics, 0, len(p.GetContainers()))}
	for _, c := range p.GetContainers() {
		if err := checkLabel("pods.containers.name", c.GetName()); err != nil || c.GetName() == "" {
			return none, invalid("pods.containers.name", "want a DNS label")
		}
		if c.GetCpuNanocores() > MaxNanocores || c.GetMemoryBytes() > MaxMetricsBytes {
			return none, invalid("pods.containers", "want at most %d cores and %d bytes", MaxNanocores/nanocores, uint64(MaxMetricsBytes))
		}
		// A copy, so that it does not keep the message.
		out.Containers = append(out.Containers, peering.ContainerMetrics{Name: strings.Clone(c.GetName()), Nanocores: c.GetCpuNanocores(), Memory: c.GetMemoryBytes()})
	}
	return out, nil
}

// nanocores is how many of them a core has.
const nanocores = uint64(time.Second)

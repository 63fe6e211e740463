package offload

import (
	"context"
	"time"
)

// RunningPod is a pod of a contract that was started.
type RunningPod struct {
	// UID is the one at home.
	UID string
	// Namespace and Name are those here.
	Namespace, Name string
	// Started is when a kubelet took it.
	Started time.Time
}

// Running returns the pods of a contract that were started.
func (p *Provider) Running(ctx context.Context, contract string) ([]RunningPod, error) {
	if err := p.await(ctx); err != nil {
		return nil, err
	}
	var out []RunningPod
	for _, o := range p.inv.of(contract) {
		pod, _ := p.inv.pod(o.Namespace, o.Name)
		// Whatever else has its name now is not the consumer's to measure.
		if pod == nil || !isPodOf(pod, o) || pod.Status.StartTime == nil || ended(pod.Status.Phase) {
			continue
		}
		out = append(out, RunningPod{
			UID: o.Spec.OriginUID, Namespace: pod.Namespace, Name: pod.Name, Started: pod.Status.StartTime.Time,
		})
	}
	return out, nil
}

package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
)

// markEach is how often pods are looked at. They are in a cache.
const markEach = time.Second

// Mark is the label on the leader's pod.
type Mark struct {
	// Client reads pods from a cache.
	Client client.Client
	// Namespace and Pod name the leader's pod.
	Namespace, Pod string
	Log            *slog.Logger
}

// Run labels the pod of this agent, and takes the label off others, while this one leads. A pod
// keeps its label when it ends: it is not ready then, and the next leader takes it off.
func (m *Mark) Run(ctx context.Context) error {
	for {
		if err := m.reconcile(ctx); err != nil && ctx.Err() == nil {
			m.Log.Warn("cannot label the leader's pod, so Services may not lead to it", "pod", m.Pod, "err", err)
		}
		if !notify.Pause(ctx, markEach) {
			return nil
		}
	}
}

func (m *Mark) reconcile(ctx context.Context) error {
	var pods corev1.PodList
	if err := m.Client.List(ctx, &pods, client.InNamespace(m.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var errs []error
	for name, value := range relabel(pods.Items, m.Pod) {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name = m.Namespace, name
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, v1alpha1.LabelLeader, value)
		if err := m.Client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte(patch))); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("label pod %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// relabel returns the pods whose label has to change, and its value as JSON: the leader has it and nobody
// else.
func relabel(pods []corev1.Pod, self string) map[string]string {
	out := map[string]string{}
	for i := range pods {
		value, has := pods[i].Labels[v1alpha1.LabelLeader]
		switch leads := pods[i].Name == self; {
		case leads && value != "true":
			out[pods[i].Name] = `"true"`
		case !leads && has:
			out[pods[i].Name] = `null`
		}
	}
	return out
}

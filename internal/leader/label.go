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

// labelEach is how often pods are checked. They are in a cache.
const labelEach = time.Second

// Label puts a label on the leader's pod.
type Label struct {
	// Client reads pods from a cache.
	Client client.Client
	// Namespace and Pod name the leader's pod.
	Namespace, Pod string
	Log            *slog.Logger
}

// Run labels the pod of this agent, and removes the label from others, while this one leads. A pod keeps its label
// when it ends: it is not ready then, and the next leader removes it.
func (l *Label) Run(ctx context.Context) error {
	for {
		if err := l.reconcile(ctx); err != nil && ctx.Err() == nil {
			l.Log.Warn("cannot label the leader's pod, so Services may not lead to it", "pod", l.Pod, "err", err)
		}
		if !notify.Pause(ctx, labelEach) {
			return nil
		}
	}
}

func (l *Label) reconcile(ctx context.Context) error {
	var pods corev1.PodList
	if err := l.Client.List(ctx, &pods, client.InNamespace(l.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var errs []error
	for name, value := range relabel(pods.Items, l.Pod) {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name = l.Namespace, name
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, v1alpha1.LabelLeader, value)
		if err := l.Client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte(patch))); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("label pod %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// relabel returns the pods whose label has to change, and its value as JSON: only the leader has it.
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

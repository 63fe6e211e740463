// Package chartpolicies writes the policies of the chart after an install, which Helm cannot: it asks once
// which kinds the API server has, and the kind of policies is of the same chart.
package chartpolicies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
)

const (
	// ConfigMap has the manifests, in the agent's namespace.
	ConfigMap = "entente-policies"

	// written is the annotation of the ConfigMap once its policies are written. After that they are their
	// owner's: one that is deleted stays deleted, and a change stays, until Helm writes them at an upgrade.
	written = "entente.dev/written"
)

// Writer writes the policies once.
type Writer struct {
	client    ctrlclient.Client
	namespace string
	log       *slog.Logger
	tried     chan struct{}
}

// New returns a Writer. The client reads and writes without a cache.
func New(client ctrlclient.Client, namespace string, log *slog.Logger) *Writer {
	return &Writer{client: client, namespace: namespace, log: log, tried: make(chan struct{})}
}

// Run writes the policies, and tries again until that succeeds or ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	for first := true; ; first = false {
		err := w.attempt(ctx)
		if first {
			close(w.tried)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			w.log.Warn("cannot write the chart's policies; the agent tries again", "err", err)
		}
		if !notify.Pause(ctx, retryPause) {
			return nil
		}
	}
}

// Tried waits until the first attempt of Run ended, well or not, so that a cluster whose agent is
// ready has them.
func (w *Writer) Tried(ctx context.Context) {
	select {
	case <-w.tried:
	case <-ctx.Done():
	}
}

func (w *Writer) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return Write(ctx, w.client, w.namespace)
}

// Write writes the policies of the ConfigMap, unless that was done before.
func Write(ctx context.Context, c ctrlclient.Client, namespace string) error {
	var from corev1.ConfigMap
	if err := c.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: ConfigMap}, &from); err != nil {
		return ctrlclient.IgnoreNotFound(err)
	}
	if len(from.Data) == 0 || from.Annotations[written] != "" {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(from.Data)) {
		if err := write(ctx, c, &from, name); err != nil {
			errs = append(errs, fmt.Errorf("write PeeringPolicy %s: %w", name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	before := from.DeepCopy()
	if from.Annotations == nil {
		from.Annotations = map[string]string{}
	}
	from.Annotations[written] = "true"
	return c.Patch(ctx, &from, ctrlclient.MergeFrom(before))
}

// write creates a policy. One of the chart that is older than the ConfigMap is of an earlier install, and
// replaced; any other is left as it is.
func write(ctx context.Context, c ctrlclient.Client, from *corev1.ConfigMap, name string) error {
	// Not the type, with which an empty list would be absent.
	var policy unstructured.Unstructured
	if err := yaml.Unmarshal([]byte(from.Data[name]), &policy.Object); err != nil {
		return err
	}
	if policy.GroupVersionKind() != v1alpha1.GroupVersion.WithKind("PeeringPolicy") || policy.GetName() != name {
		return fmt.Errorf("ConfigMap %s has %s %q under this name", from.Name, policy.GroupVersionKind(), policy.GetName())
	}
	if err := c.Create(ctx, policy.DeepCopy()); !apierrors.IsAlreadyExists(err) {
		return err
	}
	var exists unstructured.Unstructured
	exists.SetGroupVersionKind(policy.GroupVersionKind())
	if err := c.Get(ctx, ctrlclient.ObjectKeyFromObject(&policy), &exists); err != nil {
		return err
	}
	if !exists.GetCreationTimestamp().UTC().Before(from.CreationTimestamp.UTC()) || !ofChart(&exists, &policy) {
		return nil
	}
	exists.SetLabels(policy.GetLabels())
	exists.Object["spec"] = policy.Object["spec"]
	return c.Update(ctx, &exists)
}

// ofChart reports whether a policy has the labels that only the chart's own have.
func ofChart(exists, policy *unstructured.Unstructured) bool {
	for _, label := range []string{"app.kubernetes.io/managed-by", "app.kubernetes.io/part-of"} {
		if exists.GetLabels()[label] != policy.GetLabels()[label] {
			return false
		}
	}
	return true
}

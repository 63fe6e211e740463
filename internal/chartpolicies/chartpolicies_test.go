package chartpolicies

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
)

const (
	namespace = "entente-system"
	manifest  = `
apiVersion: entente.dev/v1alpha1
kind: PeeringPolicy
metadata:
  name: entente-default
  labels: {app.kubernetes.io/managed-by: Helm, app.kubernetes.io/part-of: entente}
spec: {accept: AfterApproval, nodeSelectorKeys: []}
`
)

// installed is when the chart was.
var installed = metav1.NewTime(time.Unix(1_800_000_000, 0))

func configMap() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ConfigMap, CreationTimestamp: installed},
		Data:       map[string]string{"entente-default": manifest},
	}
}

// policy is one that exists, with labels of the chart's, and created so long after the install.
func policy(after time.Duration) *v1alpha1.PeeringPolicy {
	return &v1alpha1.PeeringPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Name: "entente-default", CreationTimestamp: metav1.NewTime(installed.Add(after)),
			Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/part-of": "entente"},
		},
		Spec: v1alpha1.PeeringPolicySpec{Accept: v1alpha1.AcceptNever},
	}
}

// accepts returns what the chart's policy accepts; "" if there is none.
func accepts(t *testing.T, c ctrlclient.Client) v1alpha1.Acceptance {
	t.Helper()
	var p v1alpha1.PeeringPolicy
	err := c.Get(t.Context(), ctrlclient.ObjectKey{Name: "entente-default"}, &p)
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return p.Spec.Accept
}

// What an administrator deletes or changes afterwards stays so.
func TestPoliciesAreWrittenOnce(t *testing.T) {
	t.Parallel()
	c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(configMap()).Build()
	for range 2 {
		if err := Write(t.Context(), c, namespace); err != nil {
			t.Fatal(err)
		}
		if got := accepts(t, c); got != v1alpha1.AcceptAfterApproval {
			t.Fatalf("the policy accepts %q, want what the ConfigMap says", got)
		}
	}
	if err := c.Delete(t.Context(), policy(0)); err != nil {
		t.Fatal(err)
	}
	if err := Write(t.Context(), c, namespace); err != nil {
		t.Fatal(err)
	}
	if got := accepts(t, c); got != "" {
		t.Errorf("the policy was deleted, and accepts %q", got)
	}
}

// One of an earlier install, whose definitions stayed, is as the values of this one say; one that an
// upgrade wrote, or somebody else, is left alone.
func TestOnlyPoliciesOfEarlierInstallsAreReplaced(t *testing.T) {
	t.Parallel()
	foreign := policy(-time.Hour)
	foreign.Labels = nil
	for name, tc := range map[string]struct {
		exists *v1alpha1.PeeringPolicy
		want   v1alpha1.Acceptance
	}{
		"of an earlier install": {policy(-time.Hour), v1alpha1.AcceptAfterApproval},
		"of an upgrade":         {policy(time.Second), v1alpha1.AcceptNever},
		"not the chart's":       {foreign, v1alpha1.AcceptNever},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(configMap(), tc.exists).Build()
			if err := Write(t.Context(), c, namespace); err != nil {
				t.Fatal(err)
			}
			if got := accepts(t, c); got != tc.want {
				t.Errorf("it accepts %q, want %q", got, tc.want)
			}
		})
	}
}

func TestWithoutPoliciesNothingIsWritten(t *testing.T) {
	t.Parallel()
	empty := configMap()
	empty.Data = nil
	for name, objects := range map[string][]ctrlclient.Object{"no ConfigMap": nil, "an empty one": {empty}} {
		c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).Build()
		if err := Write(t.Context(), c, namespace); err != nil || accepts(t, c) != "" {
			t.Errorf("%s: the policy accepts %q, %v", name, accepts(t, c), err)
		}
	}
}

// Whoever may write the ConfigMap has the agent write nothing but policies of these names.
func TestNothingButPoliciesIsWritten(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		strings.Replace(manifest, "PeeringPolicy", "Contract", 1), strings.Replace(manifest, "name: entente-default", "name: other", 1), "text", "",
	} {
		cm := configMap()
		cm.Data["entente-default"] = text
		c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(cm).Build()
		if err := Write(t.Context(), c, namespace); err == nil {
			t.Errorf("%q is written", text)
		}
	}
}

// The agent serves while the API server takes no policy, and writes it later.
func TestPoliciesThatFailAreTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		failing.Store(true)
		c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(configMap()).WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c ctrlclient.WithWatch, o ctrlclient.Object, opts ...ctrlclient.CreateOption) error {
				if failing.Load() {
					return errors.New("no matches for kind")
				}
				return c.Create(ctx, o, opts...)
			},
		}).Build()
		var log bytes.Buffer
		w := New(c, namespace, slog.New(slog.NewTextHandler(&log, nil)))
		ended := make(chan error, 1)
		go func() { ended <- w.Run(t.Context()) }()
		w.Tried(t.Context())
		synctest.Wait()
		if lines := slices.Collect(strings.Lines(log.String())); len(lines) != 1 || !strings.Contains(lines[0], "write PeeringPolicy entente-default") {
			t.Errorf("the log has %q", lines)
		}
		failing.Store(false)
		if err := <-ended; err != nil || accepts(t, c) != v1alpha1.AcceptAfterApproval {
			t.Errorf("it ended with %v, and the policy accepts %q", err, accepts(t, c))
		}
	})
}

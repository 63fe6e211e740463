package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

// Measured is how long two metrics-servers, one behind the other, may take to show what a pod
// uses: each compares two scrapes.
const Measured = 3 * time.Minute

// TestTopAndAutoscalingCountPodsAbroad runs metrics-server in both clusters, and at home a
// Deployment whose pods are abroad.
func TestTopAndAutoscalingCountPodsAbroad(t *testing.T) {
	only.Matrix(t, "metrics-server is built first, and takes its time to measure")
	ctx, w := theStage.On(t)
	node := peered(ctx, t, w)
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	measure(ctx, t, w)
	const millis, replicas = 100, 3
	busy, labels := spinning(shop, "busy", millis)
	OK(t, w.Home.Create(ctx, busy))
	begin := time.Now()

	top := func(s *Side, argv ...string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return spins(ctx, s, millis, argv...) }
	}
	OK(t, w.Until(ctx, Measured, "kubectl top pod at home to show what the pod abroad uses", top(w.Home, "pod", "-n", shop, "--containers")))
	t.Logf("after %.0f s kubectl top pod shows it", time.Since(begin).Seconds())
	remote, err := w.RemoteNamespace(ctx, shop)
	OK(t, err)
	OK(t, w.Until(ctx, Soon, "it to be what the provider's own shows", top(w.Abroad, "pod", "-n", remote, "--containers")))
	OK(t, w.Until(ctx, Soon, "kubectl top node to count it", top(w.Home, "node", node)))
	for _, args := range [][]string{{"top", "pod", "-n", shop, "--containers"}, {"top", "node"}} {
		out, err := w.Home.Kubectl(ctx, args...)
		OK(t, err)
		t.Logf("kubectl %s\n%s", strings.Join(args, " "), out)
	}
	for path, want := range map[string]string{
		"metrics/resource": `container_cpu_usage_seconds_total{container="spin",namespace="shop",pod="busy-`,
		"stats/summary":    `"nodeName":"` + node + `"`,
	} {
		out, err := w.Home.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/"+node+"/proxy/"+path)
		OK(t, err)
		if !strings.Contains(out, want) || strings.Contains(out, w.Abroad.Node()) {
			t.Errorf("%s of the virtual node is\n%s", path, out)
		}
	}

	half := int32(50)
	begin = time.Now()
	OK(t, w.Home.Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: busy.Name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: busy.Name},
			MaxReplicas:    replicas,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &half},
			}}},
		},
	}))
	pods, err := w.Home.PodsReady(ctx, Measured, shop, labels, replicas)
	if err != nil {
		out, _ := w.Home.Kubectl(ctx, "describe", "-n", shop, "hpa", busy.Name)
		t.Fatalf("%v\n%s", err, out)
	}
	if home, _ := Split(pods); len(home) > 0 {
		t.Errorf("%d of its pods run at home", len(home))
	}
	t.Logf("after %.0f s the HorizontalPodAutoscaler has %d pods abroad", time.Since(begin).Seconds(), replicas)
}

// measure runs metrics-server in both clusters.
func measure(ctx context.Context, t *testing.T, w *World) {
	t.Helper()
	archive, err := lab.MetricsServer(ctx, t.TempDir(), w.Waiting)
	OK(t, err)
	_, err = w.Lab.Load(ctx, archive)
	OK(t, err)
	manifests := filepath.Join(w.Root, "integration/e2e/testdata/metrics-server.yaml")
	t.Cleanup(func() {
		OK(t, w.Each(context.WithoutCancel(ctx), func(ctx context.Context, s *Side) error {
			_, err := s.Kubectl(ctx, "delete", "-f", manifests, "--ignore-not-found", "--wait=false")
			return err
		}))
	})
	OK(t, w.Each(ctx, func(ctx context.Context, s *Side) error {
		if _, err := s.Kubectl(ctx, "apply", "-f", manifests); err != nil {
			return err
		}
		_, err := s.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "deployment/metrics-server", "--timeout=120s")
		return err
	}))
}

// spinning is a Deployment of one pod that uses so many thousandths of a core, and requests as
// many.
func spinning(namespace, name string, millis int64) (*appsv1.Deployment, map[string]string) {
	d, _ := Web(namespace, name, 1, Away)
	c := &d.Spec.Template.Spec.Containers[0]
	c.Name, c.Args, c.ReadinessProbe = "spin", []string{"spin", fmt.Sprint(float64(millis) / 1000)}, nil
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(millis, resource.DecimalSI)}
	return d, d.Labels
}

// spins says whether kubectl top has one row, which says about as much CPU as is used, and
// memory.
func spins(ctx context.Context, s *Side, millis int64, argv ...string) (string, error) {
	out, err := s.Kubectl(ctx, slices.Concat([]string{"top"}, argv, []string{"--no-headers"})...)
	if err != nil {
		return err.Error(), nil //nolint:nilerr // there are no metrics yet
	}
	var amounts []resource.Quantity
	for field := range strings.FieldsSeq(out) {
		if q, err := resource.ParseQuantity(field); err == nil {
			amounts = append(amounts, q)
		}
	}
	if len(amounts) != 2 || amounts[0].MilliValue() < millis/2 || amounts[0].MilliValue() > 2*millis || amounts[1].Value() < 1 {
		return "it shows " + strings.TrimSpace(out), nil
	}
	return "", nil
}

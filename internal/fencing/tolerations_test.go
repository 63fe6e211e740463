package fencing

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/entente-dev/entente/peering"
)

// tolerated returns for how long Kubernetes leaves a pod on a node with a taint: as its taint
// eviction controller does, by the first toleration that matches. -1 is for ever.
func tolerated(pod []corev1.Toleration, key string) int64 {
	taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
	for _, t := range pod {
		if !t.ToleratesTaint(klog.Background(), &taint, false) {
			continue
		}
		if t.TolerationSeconds == nil {
			return -1
		}
		return *t.TolerationSeconds
	}
	return 0
}

func TestKubernetesEvictsAsTheNamespaceChose(t *testing.T) {
	t.Parallel()
	byDefault := []corev1.Toleration{
		{Key: "entente.dev/virtual-node", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
	}
	pods := map[string][]corev1.Toleration{
		"as the API server defaults them": byDefault,
		"none":                            nil,
		"all":                             {{Operator: corev1.TolerationOpExists}},
		"seconds of its own":              {{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(5)), Effect: corev1.TaintEffectNoExecute}},
	}
	for name, has := range pods {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := has
			// Each choice after each other one, on one pod.
			for _, loss := range []struct {
				peering.Loss
				want int64
			}{
				{peering.Loss{}, -1},
				{peering.Loss{Action: peering.LossEvict, After: time.Minute}, 60},
				{peering.Loss{Action: peering.LossKeep}, -1},
				{peering.Loss{Action: peering.LossEvict}, 300},
				{peering.Loss{Action: peering.LossFence, After: time.Minute}, -1},
				{peering.Loss{Action: peering.LossEvict}, 300},
				{peering.Loss{Action: peering.LossKeep, After: time.Minute}, -1},
			} {
				next, differ := Tolerations(now, loss.Loss)
				if !differ {
					t.Errorf("%+v changes nothing", loss.Loss)
				}
				for _, taint := range lost() {
					if got := tolerated(next, taint); got != loss.want {
						t.Errorf("with %+v a pod tolerates %s for %d s, want %d", loss.Loss, taint, got, loss.want)
					}
				}
				if _, again := Tolerations(next, loss.Loss); again {
					t.Errorf("%+v is not done once it is done", loss.Loss)
				}
				now = next
			}
			var left []corev1.Toleration
			for _, x := range now {
				if !IsOurs(x) {
					left = append(left, x)
				}
			}
			if diff := cmp.Diff(has, left); diff != "" {
				t.Errorf("its own tolerations changed:\n%s", diff)
			}
		})
	}
}

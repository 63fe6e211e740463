package fencing

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/entente-dev/entente/peering"
)

// lost returns the taints by which Kubernetes evicts pods from a node that is lost.
func lost() []string { return []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} }

// IsOurs reports whether a toleration is one of those that Tolerations adds. No other program writes these taints,
// which have no value, with the operator Equal.
func IsOurs(t corev1.Toleration) bool {
	return slices.Contains(lost(), t.Key) && t.Operator == corev1.TolerationOpEqual && t.Value == "" && t.Effect == corev1.TaintEffectNoExecute
}

// Tolerations returns the tolerations of a pod on a virtual node by which Kubernetes evicts it as its namespace
// asks, and whether they differ from those that it has. Of several that match a taint Kubernetes uses the first
// one, and it removes none from a pod, so ours come first: those that it had still decide how long it stays on a
// lost node of the provider.
func Tolerations(has []corev1.Toleration, loss peering.Loss) (want []corev1.Toleration, differ bool) {
	var seconds *int64
	if d, ever := loss.Tolerates(); !ever {
		seconds = new(int64(d / time.Second))
	}
	for _, taint := range lost() {
		want = append(want, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpEqual, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds,
		})
	}
	want = append(want, slices.DeleteFunc(slices.Clone(has), IsOurs)...)
	return want, !equality.Semantic.DeepEqual(want, has)
}

package leader

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestTheLeaderAloneIsLabelled(t *testing.T) {
	t.Parallel()
	pod := func(name string, labels map[string]string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	leads, spoilt := map[string]string{v1alpha1.LabelLeader: "true"}, map[string]string{v1alpha1.LabelLeader: ""}
	for name, row := range map[string]struct {
		pods []corev1.Pod
		want map[string]string
	}{
		"none had it":                    {[]corev1.Pod{pod("a", nil), pod("b", nil)}, map[string]string{"a": `"true"`}},
		"it is already":                  {[]corev1.Pod{pod("a", leads), pod("b", nil), pod("entente-fabric-x", nil)}, map[string]string{}},
		"the leader before it still is":  {[]corev1.Pod{pod("a", nil), pod("b", leads)}, map[string]string{"a": `"true"`, "b": "null"}},
		"another value selects nothing":  {[]corev1.Pod{pod("a", spoilt), pod("b", spoilt)}, map[string]string{"a": `"true"`, "b": "null"}},
		"it runs outside of the cluster": {[]corev1.Pod{pod("b", leads)}, map[string]string{"b": "null"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(row.want, relabel(row.pods, "a")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

package placement

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
)

func TestTheAdviceForAPodThatCannotCrossKeepsItAtHome(t *testing.T) {
	pod := func() *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}
	}
	_, refusal := podspec.Leave(pod())
	if refusal == nil {
		t.Fatal("a pod with hostNetwork crosses")
	}
	advice := regexp.MustCompile(`annotation (\S+): (\w+)`).FindStringSubmatch(refusal.Message)
	if advice == nil {
		t.Fatalf("%q names no annotation", refusal.Message)
	}
	for _, strategy := range []v1alpha1.PodStrategy{v1alpha1.StrategyRemote, v1alpha1.StrategyLocalAndRemote} {
		t.Run(string(strategy), func(t *testing.T) {
			p := pod()
			p.Annotations = map[string]string{advice[1]: advice[2]}
			patch, err := json.Marshal(Decide(p, &v1alpha1.NamespaceOffloading{Spec: v1alpha1.NamespaceOffloadingSpec{PodStrategy: strategy}}))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(patch); !strings.Contains(got, `{"key":"entente.dev/virtual-node","operator":"DoesNotExist"}`) || strings.Contains(got, `"In"`) {
				t.Errorf("patch %s, want nodes of home only", got)
			}
		})
	}
}

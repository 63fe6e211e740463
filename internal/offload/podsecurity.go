package offload

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psapi "k8s.io/pod-security-admission/api"
	pspolicy "k8s.io/pod-security-admission/policy"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// The levels of the Pod Security Standards.
const (
	privileged api.PodSecurityLevel = "privileged"
	baseline   api.PodSecurityLevel = "baseline"
	restricted api.PodSecurityLevel = "restricted"
)

// securityLevel returns a level that is one: what is not known is restricted.
func securityLevel(l api.PodSecurityLevel) api.PodSecurityLevel {
	if l == privileged || l == baseline {
		return l
	}
	return restricted
}

// looser returns of two levels the one that allows more.
func looser(a, b api.PodSecurityLevel) api.PodSecurityLevel {
	for _, level := range []api.PodSecurityLevel{privileged, baseline} {
		if a == level || b == level {
			return level
		}
	}
	return restricted
}

// podSecurity judges pods by the Pod Security Standards.
type podSecurity struct {
	evaluator pspolicy.Evaluator
}

func newPodSecurity() (*podSecurity, error) {
	e, err := pspolicy.NewEvaluator(pspolicy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("load Pod Security checks: %w", err)
	}
	return &podSecurity{evaluator: e}, nil
}

// check says whether a pod meets the level, and if not, what is wrong with it.
func (p *podSecurity) check(t *template, level api.PodSecurityLevel) *peering.Refusal {
	result := pspolicy.AggregateCheckResults(p.evaluator.EvaluatePod(
		psapi.LevelVersion{Level: psapi.Level(level), Version: psapi.LatestVersion()},
		&metav1.ObjectMeta{Labels: t.Metadata.Labels, Annotations: t.Metadata.Annotations}, &t.Spec))
	if result.Allowed {
		return nil
	}
	return &peering.Refusal{Reason: peering.RefusedPodSecurity, Message: fmt.Sprintf(
		"the contract runs pods of Pod Security level %s, and this one breaks it: %s; change the pod, or ask the provider for another level",
		level, strings.TrimSpace(result.ForbiddenDetail()))}
}

// Package podsecurity checks pods against the Pod Security Standards of Kubernetes.
package podsecurity

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	psapi "k8s.io/pod-security-admission/api"
	pspolicy "k8s.io/pod-security-admission/policy"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// Restricted is the strictest level of the Pod Security Standards.
const Restricted api.PodSecurityLevel = "restricted"

// Level parses a level; an unknown one means restricted.
func Level(l api.PodSecurityLevel) api.PodSecurityLevel {
	level, _ := psapi.ParseLevel(string(l)) // with an error it returns restricted
	return api.PodSecurityLevel(level)
}

// Looser returns the level that allows more.
func Looser(a, b api.PodSecurityLevel) api.PodSecurityLevel {
	a, b = Level(a), Level(b)
	if psapi.CompareLevels(psapi.Level(a), psapi.Level(b)) < 0 {
		return a
	}
	return b
}

// Checker checks pods against the Pod Security Standards.
type Checker struct {
	evaluator pspolicy.Evaluator
}

// New loads the checks of the newest standards.
func New() (*Checker, error) {
	e, err := pspolicy.NewEvaluator(pspolicy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("load Pod Security checks: %w", err)
	}
	return &Checker{evaluator: e}, nil
}

// Check returns what keeps a pod from the level, or nil.
func (p *Checker) Check(t *podspec.Template, level api.PodSecurityLevel) *peering.Refusal {
	result := pspolicy.AggregateCheckResults(p.evaluator.EvaluatePod(
		psapi.LevelVersion{Level: psapi.Level(level), Version: psapi.LatestVersion()},
		&metav1.ObjectMeta{Labels: t.Metadata.Labels, Annotations: t.Metadata.Annotations}, &t.Spec))
	if result.Allowed {
		return nil
	}
	return &peering.Refusal{Reason: peering.RefusedPodSecurity, Message: fmt.Sprintf(
		"the contract requires Pod Security level %s, which this pod violates: %s; change the pod, or ask the provider for another level",
		level, strings.TrimSpace(result.ForbiddenDetail()))}
}

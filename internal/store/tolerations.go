package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// annotationTolerations is the tolerations, as JSON, that the pool of a provider's contract had when that was
// signed. They are not part of the terms: the provider alone decides which taints its nodes have.
const annotationTolerations = "entente.dev/tolerations"

// ReadTolerations converts the tolerations of a pool to those of pods.
func ReadTolerations(spec []v1alpha1.PoolToleration) ([]corev1.Toleration, error) {
	if len(spec) > maxTolerations {
		return nil, fmt.Errorf("%d tolerations, more than %d", len(spec), maxTolerations)
	}
	var out []corev1.Toleration
	for _, t := range spec {
		got := corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: string(t.Value), Effect: t.Effect}
		got.Operator = cmp.Or(got.Operator, corev1.TolerationOpEqual)
		if err := checkToleration(&got); err != nil {
			return nil, fmt.Errorf("of %.64q: %w", t.Key, err)
		}
		out = append(out, got)
	}
	return out, nil
}

// checkToleration returns why pods of consumers may not have a toleration. The schema of the custom resource has
// the same rules.
func checkToleration(t *corev1.Toleration) error {
	domain, _, ok := strings.Cut(t.Key, "/")
	if !ok {
		domain = ""
	}
	switch {
	case t.Key == "":
		return errors.New("name the taint: a toleration without a key tolerates all taints, and pods would be passed on to another provider")
	case len(validation.IsQualifiedName(t.Key)) > 0:
		return errors.New("that is not the key of a taint")
	case domain == "entente.dev" || strings.HasSuffix(domain, ".entente.dev"):
		return errors.New("no pod of a consumer tolerates a taint of virtual nodes: it would be passed on to another provider")
	case domain == "node.kubernetes.io" || domain == "node.cloudprovider.kubernetes.io":
		return errors.New("no pod of a consumer tolerates a taint by which Kubernetes marks a node as unhealthy")
	case t.Operator != corev1.TolerationOpEqual && t.Operator != corev1.TolerationOpExists:
		return fmt.Errorf("the operator %.16q is neither Equal nor Exists", t.Operator)
	case t.Operator == corev1.TolerationOpExists && t.Value != "":
		return errors.New("with the operator Exists there is no value")
	case len(validation.IsValidLabelValue(t.Value)) > 0:
		return fmt.Errorf("%.64q is not the value of a taint", t.Value)
	case !slices.Contains([]corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}, t.Effect):
		return fmt.Errorf("unknown taint effect %.32q", t.Effect)
	case t.TolerationSeconds != nil:
		return errors.New("a toleration lasts as long as the pod runs: leave out tolerationSeconds")
	}
	return nil
}

// Tolerations returns what the pods of a provider's contract tolerate by the pool for which it was signed. It
// leaves out what a pool may not have, whoever wrote it.
func Tolerations(c *v1alpha1.Contract) []corev1.Toleration {
	text := c.Annotations[annotationTolerations]
	if text == "" {
		return nil
	}
	var out []corev1.Toleration
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil
	}
	return slices.DeleteFunc(out, func(t corev1.Toleration) bool { return checkToleration(&t) != nil })
}

// SetTolerations stores the tolerations of a contract for Tolerations.
func SetTolerations(c *v1alpha1.Contract, tolerations []corev1.Toleration) error {
	if len(tolerations) == 0 {
		delete(c.Annotations, annotationTolerations)
		return nil
	}
	text, err := json.Marshal(tolerations)
	if err != nil {
		return fmt.Errorf("contract %s: %w", c.Name, err)
	}
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotationTolerations, string(text))
	return nil
}

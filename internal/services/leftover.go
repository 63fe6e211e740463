package services

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// Leftover reports whether a Service was created for an earlier object of a kind, with the name of this one. It is
// collected after its owner, at some time: until then it must not count, as it has an address that will go.
func Leftover(s *corev1.Service, kind string, of metav1.Object) bool {
	owner := metav1.GetControllerOf(s)
	return s.Labels[api.LabelManaged] == api.Manager && owner != nil && owner.Kind == kind && owner.Name == of.GetName() && owner.UID != of.GetUID()
}

// DeleteLeftover deletes a Service in whose place another is created.
func DeleteLeftover(ctx context.Context, c client.Client, s *corev1.Service) error {
	if err := c.Delete(ctx, s, client.Preconditions{UID: &s.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("replace service %s: %w", s.Name, err)
	}
	return nil
}

package kube

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Bind grants the agent, a ServiceAccount, the rights of a ClusterRole in a namespace, by a RoleBinding of the same
// name, unless c's cache shows that it has them.
func Bind(ctx context.Context, c ctrlclient.Client, namespace, clusterRole string, agent ctrlclient.ObjectKey) error {
	err := c.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: clusterRole}, &rbacv1.RoleBinding{})
	if apierrors.IsNotFound(err) {
		err = c.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: clusterRole, Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: agent.Namespace, Name: agent.Name}},
		}, ctrlclient.FieldOwner(v1alpha1.Manager))
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("grant the agent its rights in namespace %s: %w", namespace, err)
	}
	return nil
}

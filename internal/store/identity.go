package store

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
)

// IdentitySecret is the Secret that holds the cluster's identity key. Who can
// read it is this cluster.
const IdentitySecret = "entente-identity"

const identityKey = "identity.pem"

// LoadIdentity returns the cluster's identity, making it at the first start. Of
// several that start at once one makes it and the others read that.
func LoadIdentity(ctx context.Context, c client.Client, namespace string, now time.Time) (*identity.Identity, error) {
	for {
		var secret corev1.Secret
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: IdentitySecret}, &secret)
		if err == nil {
			id, err := identity.Parse(secret.Data[identityKey])
			if err != nil {
				return nil, fmt.Errorf("identity in Secret %s/%s: %w; restore the Secret from a backup, or delete it to become another cluster, which ends all peerings", namespace, IdentitySecret, err)
			}
			return id, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read Secret %s/%s: %w", namespace, IdentitySecret, err)
		}
		id, err := identity.Generate(now)
		if err != nil {
			return nil, err
		}
		text, err := id.Marshal()
		if err != nil {
			return nil, err
		}
		err = c.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: IdentitySecret,
				Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager},
			},
			Data: map[string][]byte{identityKey: text},
		}, client.FieldOwner(v1alpha1.Manager))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("keep the identity in Secret %s/%s: %w", namespace, IdentitySecret, err)
		}
	}
}

package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// IdentitySecret is the Secret with the cluster's key and the data that ties it to the cluster's ID. A client that
// can read it can act as this cluster.
const IdentitySecret = "entente-identity"

const (
	identityKey = "identity.pem"
	// tunnelKey is a secret of 32 random bytes from which this cluster's shares of the tunnels' preshared keys are
	// derived. It is not the identity key, so that replacing that key does not change the tunnels' keys.
	tunnelKey    = "tunnel.key"
	tunnelKeyLen = 32
)

// LoadIdentity returns the cluster's identity, and creates it at the first start. If several agents start at once
// one creates it and the others read it. An agent that was waiting to lead has to load it again: the key may have
// been rolled over meanwhile.
func LoadIdentity(ctx context.Context, c client.Client, namespace string, now time.Time) (*identity.Identity, error) {
	for {
		_, id, err := readIdentity(ctx, c, namespace)
		if err == nil || !apierrors.IsNotFound(err) {
			return id, err
		}
		if id, err = identity.Generate(now); err != nil {
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
			Data: map[string][]byte{identityKey: text, tunnelKey: newTunnelKey()},
		}, client.FieldOwner(v1alpha1.Manager))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("store the identity in Secret %s/%s: %w", namespace, IdentitySecret, err)
		}
	}
}

// IdentityProblem says what the next start of an agent would find in place of the identity of cluster id, by which the
// agent runs, and what to do; empty if it would find that, or if that cannot be seen.
func IdentityProblem(ctx context.Context, c client.Client, namespace string, id peering.ClusterID) string {
	_, stored, err := readIdentity(ctx, c, namespace)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("Secret %s/%s is missing: the next start of the agent makes another cluster, which has no peers; restore the Secret from a backup before, or end the peerings while the agent runs",
			namespace, IdentitySecret)
	case err == nil && stored.ID() != id:
		return fmt.Sprintf("Secret %s/%s has the identity of cluster %s, which this cluster is at the next start of the agent, without the peers that it has now: restore the Secret from a backup before",
			namespace, IdentitySecret, stored.ID())
	}
	return ""
}

func newTunnelKey() []byte {
	key := make([]byte, tunnelKeyLen)
	_, _ = rand.Read(key) // never fails
	return key
}

// TunnelKey returns the secret, 32 bytes, from which shares of preshared keys are derived. The identity has to
// exist.
func TunnelKey(ctx context.Context, c client.Client, namespace string) ([]byte, error) {
	for {
		secret, _, err := readIdentity(ctx, c, namespace)
		if err != nil {
			return nil, err
		}
		if key := secret.Data[tunnelKey]; len(key) == tunnelKeyLen {
			return key, nil
		}
		secret.Data[tunnelKey] = newTunnelKey()
		if err := c.Update(ctx, secret, client.FieldOwner(v1alpha1.Manager)); err != nil && !apierrors.IsConflict(err) {
			return nil, fmt.Errorf("store the tunnels' key in Secret %s/%s: %w", namespace, IdentitySecret, err)
		}
	}
}

// RolloverIdentity replaces the cluster's key by identity.Identity.Rollover, and returns the new identity: the
// previous private key is gone. Of several rollovers at once one succeeds; the others find it done, which is an
// *identity.TooSoonError. The Secret has to exist.
func RolloverIdentity(ctx context.Context, c client.Client, namespace string, now time.Time, overlap time.Duration) (*identity.Identity, error) {
	for {
		secret, id, err := readIdentity(ctx, c, namespace)
		if err != nil {
			return nil, err
		}
		next, err := id.Rollover(now, overlap)
		if err != nil {
			return nil, err
		}
		text, err := next.Marshal()
		if err != nil {
			return nil, err
		}
		secret.Data[identityKey] = text
		// The update has the resourceVersion that was read, so it does not undo another write.
		err = c.Update(ctx, secret, client.FieldOwner(v1alpha1.Manager))
		if err == nil {
			return next, nil
		}
		if !apierrors.IsConflict(err) {
			return nil, fmt.Errorf("store the identity in Secret %s/%s: %w", namespace, IdentitySecret, err)
		}
	}
}

// readIdentity returns the Secret and the identity in it.
func readIdentity(ctx context.Context, c client.Client, namespace string) (*corev1.Secret, *identity.Identity, error) {
	var secret corev1.Secret
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: IdentitySecret}, &secret); err != nil {
		return nil, nil, fmt.Errorf("read Secret %s/%s: %w", namespace, IdentitySecret, err)
	}
	id, err := identity.Parse(secret.Data[identityKey])
	if err != nil {
		return nil, nil, fmt.Errorf("identity in Secret %s/%s: %w; restore the Secret from a backup, or delete it to become another cluster, which ends all peerings", namespace, IdentitySecret, err)
	}
	return &secret, id, nil
}

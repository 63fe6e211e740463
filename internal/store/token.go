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
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

const (
	// MaxTokens is how many tokens may be outstanding.
	MaxTokens = 64
	// MaxTokenTTL is how long a token can be redeemed at most.
	MaxTokenTTL = 15 * time.Minute

	tokenPrefix  = "entente-token-"
	tokenType    = corev1.SecretType("entente.dev/token")
	tokenHash    = "hash"
	tokenExpires = "expires"
	tokenUsedBy  = "redeemed-by"
)

// Tokens keeps the tokens that this cluster issued: of each the hash of its
// secret, never the secret.
type Tokens struct {
	Client    client.Client
	Namespace string
	Now       func() time.Time
}

// Mint makes a token that can be redeemed once within ttl. Errors are
// TOKENS_OUTSTANDING and NO_ENDPOINT.
func (t *Tokens) Mint(ctx context.Context, issuer peering.ClusterID, endpoints []string, ttl time.Duration) (peering.Token, error) {
	if ttl <= 0 || ttl > MaxTokenTTL {
		ttl = MaxTokenTTL
	}
	if len(endpoints) == 0 {
		return peering.Token{}, wire.Errorf(wire.ReasonNoEndpoint,
			"nothing says where this cluster can be dialled: set peer.endpoints, or a peer Service of type NodePort or LoadBalancer, in the chart; or let the other cluster make the token")
	}
	live, err := t.sweep(ctx)
	if err != nil {
		return peering.Token{}, err
	}
	if live >= MaxTokens {
		return peering.Token{}, wire.Errorf(wire.ReasonTokensOutstanding,
			"%d tokens are outstanding, and that is the most; wait until some expire", live)
	}
	token, err := peering.NewToken(rand.Reader, issuer, endpoints, t.Now().Add(ttl))
	if err != nil {
		return peering.Token{}, err
	}
	err = t.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.Namespace, Name: tokenPrefix + token.ID,
			Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager},
		},
		Type: tokenType,
		Data: map[string][]byte{
			tokenHash:    []byte(token.Secret.Hash().String()),
			tokenExpires: []byte(token.Expires.Format(time.RFC3339)),
		},
	}, client.FieldOwner(v1alpha1.Manager))
	if err != nil {
		return peering.Token{}, fmt.Errorf("keep token %s: %w", token.ID, err)
	}
	return token, nil
}

// Redeem uses a token up, for the cluster by. Of several redeemers at once
// exactly one succeeds: the Secret's resourceVersion decides. The same cluster
// may redeem it again, so that a lost answer locks nobody out. The error is
// TOKEN_INVALID, and says why only to who had the secret.
func (t *Tokens) Redeem(ctx context.Context, id string, secret peering.Secret, by peering.ClusterID) error {
	invalid := wire.Errorf(wire.ReasonTokenInvalid, "the token is unknown here, wrong, expired or used: ask for a new one")
	for {
		var stored corev1.Secret
		err := t.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: tokenPrefix + id}, &stored)
		if apierrors.IsNotFound(err) {
			return invalid
		}
		if err != nil {
			return fmt.Errorf("read token %s: %w", id, err)
		}
		hash, err := peering.ParseHash(string(stored.Data[tokenHash]))
		if err != nil || stored.Type != tokenType || !secret.Matches(hash) {
			return invalid
		}
		expires, err := time.Parse(time.RFC3339, string(stored.Data[tokenExpires]))
		if err != nil {
			return invalid
		}
		why := func(cause, format string, args ...any) error {
			e := wire.Errorf(wire.ReasonTokenInvalid, format, args...)
			e.Metadata = map[string]string{wire.TokenCause: cause, wire.TokenClock: t.Now().UTC().Format(time.RFC3339)}
			return e
		}
		switch used := peering.ClusterID(stored.Data[tokenUsedBy]); {
		case used == by:
			return nil
		case used != "":
			return why(wire.TokenCauseUsed, "the token was used by another cluster, %s: ask for a new one, and find out who that was", used.Short())
		case !t.Now().Before(expires):
			return why(wire.TokenCauseExpired, "the token expired at %s, and it is %s here: ask for a new one",
				expires.Format(time.RFC3339), t.Now().UTC().Format(time.RFC3339))
		}
		stored.Data[tokenUsedBy] = []byte(by)
		err = t.Client.Update(ctx, &stored, client.FieldOwner(v1alpha1.Manager))
		if apierrors.IsConflict(err) {
			continue // somebody else was faster; look who
		}
		if err != nil {
			return fmt.Errorf("redeem token %s: %w", id, err)
		}
		return nil
	}
}

// sweep removes tokens that expired and counts those that can still be redeemed.
// A used token stays until it expires, so that its redeemer may ask again.
func (t *Tokens) sweep(ctx context.Context) (int, error) {
	var list corev1.SecretList
	if err := t.Client.List(ctx, &list, client.InNamespace(t.Namespace),
		client.MatchingLabels{v1alpha1.LabelManaged: v1alpha1.Manager}); err != nil {
		return 0, fmt.Errorf("list tokens: %w", err)
	}
	live := 0
	for i := range list.Items {
		s := &list.Items[i]
		if s.Type != tokenType {
			continue
		}
		expires, err := time.Parse(time.RFC3339, string(s.Data[tokenExpires]))
		if err == nil && t.Now().Before(expires) {
			if len(s.Data[tokenUsedBy]) == 0 {
				live++
			}
			continue
		}
		if err := t.Client.Delete(ctx, s, client.Preconditions{UID: &s.UID}); client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("remove expired token: %w", err)
		}
	}
	return live, nil
}

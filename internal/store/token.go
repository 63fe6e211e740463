package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

const (
	tokenPrefix  = "entente-token-"
	tokenType    = corev1.SecretType("entente.dev/token")
	tokenHash    = "hash"
	tokenExpires = "expires"
	tokenUsedBy  = "redeemed-by"
)

// Tokens stores the tokens that this cluster issued: the hash of each secret, never the secret.
type Tokens struct {
	Client    client.Client
	Namespace string
	Now       func() time.Time
}

// Mint makes a token that can be redeemed once within ttl. Errors are
// TOKENS_OUTSTANDING and NO_ENDPOINT.
func (t *Tokens) Mint(ctx context.Context, issuer peering.ClusterID, endpoints []string, ttl time.Duration) (jointoken.Token, error) {
	if ttl <= 0 || ttl > MaxTokenTTL {
		ttl = MaxTokenTTL
	}
	if len(endpoints) == 0 {
		return jointoken.Token{}, peering.Errorf(peering.ReasonNoEndpoint,
			"this cluster has no endpoint that could be dialled: set peer.endpoints, or a peer Service of type NodePort or LoadBalancer, in the chart; or let the other cluster make the token")
	}
	live, err := t.sweep(ctx)
	if err != nil {
		return jointoken.Token{}, err
	}
	if live >= MaxTokens {
		return jointoken.Token{}, peering.Errorf(peering.ReasonTokensOutstanding,
			"%d tokens are outstanding, which is the limit; wait until some expire, or revoke some", live)
	}
	token, err := jointoken.New(rand.Reader, issuer, endpoints, t.Now().Add(ttl))
	if err != nil {
		return jointoken.Token{}, err
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
		return jointoken.Token{}, fmt.Errorf("store token %s: %w", token.ID, err)
	}
	return token, nil
}

// Redeem uses a token up, for the cluster by. Of several concurrent calls exactly one succeeds: the Secret's
// resourceVersion decides. The same cluster may redeem it again, so that a lost response locks no cluster out;
// again reports that. The error is TOKEN_INVALID, and gives the cause only to a caller that has the secret.
func (t *Tokens) Redeem(ctx context.Context, id string, secret jointoken.Secret, by peering.ClusterID) (again bool, err error) {
	invalid := peering.Errorf(peering.ReasonTokenInvalid, "the token is unknown here, wrong, expired, revoked or used: ask for a new one")
	for {
		var stored corev1.Secret
		err := t.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: tokenPrefix + id}, &stored)
		if apierrors.IsNotFound(err) {
			return false, invalid
		}
		if err != nil {
			return false, fmt.Errorf("read token %s: %w", id, err)
		}
		hash, err := peering.ParseHash(string(stored.Data[tokenHash]))
		if err != nil || stored.Type != tokenType || !secret.Matches(hash) {
			return false, invalid
		}
		expires, err := time.Parse(time.RFC3339, string(stored.Data[tokenExpires]))
		if err != nil {
			return false, invalid
		}
		why := func(cause, format string, args ...any) error {
			e := peering.Errorf(peering.ReasonTokenInvalid, format, args...)
			e.Metadata = map[string]string{peering.TokenCause: cause, peering.TokenClock: t.Now().UTC().Format(time.RFC3339)}
			return e
		}
		switch used := peering.ClusterID(stored.Data[tokenUsedBy]); {
		case used != "" && used != by:
			return false, why(peering.TokenCauseUsed, "the token was used by another cluster, %s: ask for a new one, and find out who that was", used.Short())
		case !t.Now().Before(expires):
			return false, why(peering.TokenCauseExpired, "the token expired at %s, and it is %s here: ask for a new one",
				expires.Format(time.RFC3339), t.Now().UTC().Format(time.RFC3339))
		case used == by:
			return true, nil
		}
		stored.Data[tokenUsedBy] = []byte(by)
		err = t.Client.Update(ctx, &stored, client.FieldOwner(v1alpha1.Manager))
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			continue // another caller was faster, or revoked it; read it again
		}
		if err != nil {
			return false, fmt.Errorf("redeem token %s: %w", id, err)
		}
		return false, nil
	}
}

// List returns the tokens that have not expired, by ID.
func (t *Tokens) List(ctx context.Context) ([]jointoken.Info, error) {
	stored, err := t.stored(ctx)
	if err != nil {
		return nil, err
	}
	var out []jointoken.Info
	for i := range stored {
		if token, live := t.info(&stored[i]); live {
			out = append(out, token)
		}
	}
	slices.SortFunc(out, func(a, b jointoken.Info) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// Revoke revokes a token. The error is TOKEN_UNKNOWN if there is no such token that could still be redeemed.
func (t *Tokens) Revoke(ctx context.Context, id string) error {
	var stored corev1.Secret
	err := t.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: tokenPrefix + id}, &stored)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read token %s: %w", id, err)
	}
	if _, live := t.info(&stored); err == nil && live && stored.Type == tokenType {
		err = t.Client.Delete(ctx, &stored, client.Preconditions{UID: &stored.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("revoke token %s: %w", id, err)
		}
		return nil
	}
	return peering.Errorf(peering.ReasonTokenUnknown, "there is no token %s that could be redeemed: it expired, was revoked before, or never was", peering.Text(id, jointoken.MaxIDLen))
}

// Forget revokes the tokens that a cluster redeemed: it is no longer trusted, and an old token must not change
// that.
func (t *Tokens) Forget(ctx context.Context, by peering.ClusterID) error {
	stored, err := t.stored(ctx)
	if err != nil {
		return err
	}
	for i := range stored {
		if token, _ := t.info(&stored[i]); token.RedeemedBy != by {
			continue
		}
		err := t.Client.Delete(ctx, &stored[i], client.Preconditions{UID: &stored[i].UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("forget a token of %s: %w", by, err)
		}
	}
	return nil
}

// info reads a token's Secret and reports whether it has not expired.
func (t *Tokens) info(s *corev1.Secret) (jointoken.Info, bool) {
	expires, err := time.Parse(time.RFC3339, string(s.Data[tokenExpires]))
	out := jointoken.Info{
		Created: s.CreationTimestamp.Time, Expires: expires, RedeemedBy: peering.ClusterID(s.Data[tokenUsedBy]),
	}
	if len(s.Name) > len(tokenPrefix) {
		out.ID = s.Name[len(tokenPrefix):]
	}
	return out, err == nil && t.Now().Before(expires)
}

// stored returns the Secrets of the tokens.
func (t *Tokens) stored(ctx context.Context) ([]corev1.Secret, error) {
	var list corev1.SecretList
	if err := t.Client.List(ctx, &list, client.InNamespace(t.Namespace),
		client.MatchingLabels{v1alpha1.LabelManaged: v1alpha1.Manager}); err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(s corev1.Secret) bool { return s.Type != tokenType }), nil
}

// sweep removes tokens that expired and counts those that can still be redeemed.
// A used token stays until it expires, so that its redeemer may ask again.
func (t *Tokens) sweep(ctx context.Context) (int, error) {
	stored, err := t.stored(ctx)
	if err != nil {
		return 0, err
	}
	live := 0
	for i := range stored {
		s := &stored[i]
		if token, ok := t.info(s); ok {
			if token.RedeemedBy == "" {
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

package store

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/internal/identity"
)

func TestRolloverReplacesTheKeyThatIsKept(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	first, err := LoadIdentity(t.Context(), c, "entente-system", start)
	if err != nil {
		t.Fatal(err)
	}
	next, err := RolloverIdentity(t.Context(), c, "entente-system", start, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.Supersedes(first.TrustBundle(), next.TrustBundle()); err != nil || next.ID() != first.ID() {
		t.Errorf("%s became %s: %v", first.ID(), next.ID(), err)
	}
	loaded, err := LoadIdentity(t.Context(), c, "entente-system", start)
	if err != nil || loaded.TrustBundle().PEM() != next.TrustBundle().PEM() {
		t.Errorf("another identity is kept than was returned: %v", err)
	}
	var secret corev1.Secret
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "entente-system", Name: IdentitySecret}, &secret); err != nil {
		t.Fatal(err)
	}
	old, err := first.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	key, _, _ := bytes.Cut(old, []byte("-----END PRIVATE KEY"))
	if bytes.Contains(secret.Data[identityKey], key) {
		t.Error("the old private key is kept")
	}
	var soon *identity.TooSoonError
	if _, err := RolloverIdentity(t.Context(), c, "entente-system", start.Add(time.Minute), time.Hour); !errors.As(err, &soon) {
		t.Errorf("in the overlap: %v", err)
	}
	if _, err := RolloverIdentity(t.Context(), c, "entente-system", start.Add(time.Hour), time.Hour); err != nil {
		t.Errorf("after the overlap: %v", err)
	}
}

func TestOfRolloversAtOnceOneSucceeds(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	if _, err := LoadIdentity(t.Context(), c, "entente-system", start); err != nil {
		t.Fatal(err)
	}
	results := make([]error, 16)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { _, results[i] = RolloverIdentity(t.Context(), c, "entente-system", start, time.Hour) })
	}
	wg.Wait()
	done := 0
	for _, err := range results {
		if err == nil {
			done++
		} else if _, soon := errors.AsType[*identity.TooSoonError](err); !soon {
			t.Error(err)
		}
	}
	if done != 1 {
		t.Errorf("%d rollovers succeeded", done)
	}
}

func TestRolloverNeedsAnIdentity(t *testing.T) {
	t.Parallel()
	if _, err := RolloverIdentity(t.Context(), newClient(t), "entente-system", start, time.Hour); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

func TestAnIdentityThatIsNoLongerStoredIsAProblem(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	id, err := LoadIdentity(t.Context(), c, "entente-system", start)
	if err != nil {
		t.Fatal(err)
	}
	if got := IdentityProblem(t.Context(), c, "entente-system", id.ID()); got != "" {
		t.Errorf("one that is stored: %q", got)
	}
	if got := IdentityProblem(t.Context(), c, "entente-system", "another"); !strings.Contains(got, "has the identity of cluster "+string(id.ID())) {
		t.Errorf("another one: %q", got)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: IdentitySecret}}
	if err := c.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if got := IdentityProblem(t.Context(), c, "entente-system", id.ID()); !strings.HasPrefix(got, "Secret entente-system/entente-identity is missing") {
		t.Errorf("one that was deleted: %q", got)
	}
}

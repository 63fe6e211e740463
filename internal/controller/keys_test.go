package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/presharedkeys"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// keysAPI counts what is done with the fabric's Secret, and takes its time.
type keysAPI struct {
	client.WithWatch
	mu            sync.Mutex
	reads, writes int
	// fail is the next writes' errors.
	fail []error
}

func newKeysAPI() *keysAPI {
	api := &keysAPI{}
	write := func(do func() error) error {
		time.Sleep(10 * time.Millisecond)
		api.mu.Lock()
		defer api.mu.Unlock()
		if len(api.fail) > 0 {
			err := api.fail[0]
			api.fail = api.fail[1:]
			return err
		}
		api.writes++
		return do()
	}
	api.WithWatch = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			api.mu.Lock()
			api.reads++
			api.mu.Unlock()
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return write(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return write(func() error { return c.Update(ctx, o, opts...) })
		},
	})
	return api
}

func keyOf(i int) (peering.ClusterID, []byte) {
	return peering.ClusterID(fmt.Sprintf("%032d", i)), bytes.Repeat([]byte{byte(i)}, 32)
}

func TestKeysOfManyTunnelsAreWrittenTogether(t *testing.T) {
	api := newKeysAPI()
	s := &States{Budget: &store.WriteBudget{Now: time.Now}, Client: api, Versions: api.WithWatch, Namespace: "entente-system"}
	const peers = 250
	keep := func() {
		t.Helper()
		var wg sync.WaitGroup
		for i := range peers {
			wg.Go(func() {
				id, key := keyOf(i)
				if err := s.storeKeys(t.Context(), id, presharedkeys.Ring{Current: key}); err != nil {
					t.Errorf("peer %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	}
	keep()
	// On a busy machine some come while a write is under way.
	if api.writes > peers/10 {
		t.Errorf("%d keys took %d writes", peers, api.writes)
	}
	var secret corev1.Secret
	at := client.ObjectKey{Namespace: "entente-system", Name: v1alpha1.FabricSecret}
	has := func() {
		t.Helper()
		if err := api.Get(t.Context(), at, &secret); err != nil {
			t.Fatal(err)
		}
		for i := range peers {
			if id, key := keyOf(i); !bytes.Equal(secret.Data[string(id)], key) {
				t.Errorf("peer %d: the Secret has %x", i, secret.Data[string(id)])
			}
		}
	}
	has()
	// What is there is not written again.
	before := api.writes
	keep()
	if api.writes != before {
		t.Errorf("the same keys took %d writes", api.writes-before)
	}
	// What was removed is.
	id, _ := keyOf(7)
	delete(secret.Data, string(id))
	if err := api.Update(t.Context(), &secret); err != nil {
		t.Fatal(err)
	}
	keep()
	has()
}

func TestStoredKeysAreNotReadAgain(t *testing.T) {
	api := newKeysAPI()
	s := &States{Budget: &store.WriteBudget{Now: time.Now}, Client: api, Namespace: "entente-system"}
	id, key := keyOf(1)
	for _, tc := range []struct {
		what     string
		versions client.Reader
		more     bool
	}{
		{"the first", nil, true},
		{"without a cache of versions", nil, true},
		{"with one", uncounted{api}, false},
	} {
		s.Versions = tc.versions
		before := api.reads
		if err := s.storeKeys(t.Context(), id, presharedkeys.Ring{Current: key}); err != nil {
			t.Fatal(err)
		}
		if more := api.reads > before; more != tc.more {
			t.Errorf("%s: the Secret was read is %t, want %t", tc.what, more, tc.more)
		}
	}
}

// uncounted reads without being counted, as from a cache.
type uncounted struct{ api *keysAPI }

func (u uncounted) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	defer func(before int) { u.api.reads = before }(u.api.reads)
	return u.api.Get(ctx, key, o, opts...)
}

func (u uncounted) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return u.api.List(ctx, l, opts...)
}

func TestKeyIsWrittenDespiteConflictsAndReturnsOtherErrors(t *testing.T) {
	api := newKeysAPI()
	s := &States{Budget: &store.WriteBudget{Now: time.Now}, Client: api, Namespace: "entente-system"}
	id, key := keyOf(1)
	if err := s.storeKeys(t.Context(), id, presharedkeys.Ring{Current: key}); err != nil {
		t.Fatal(err)
	}
	id, key = keyOf(2)
	api.fail = []error{apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, v1alpha1.FabricSecret, errors.New("another wrote"))}
	if err := s.storeKeys(t.Context(), id, presharedkeys.Ring{Current: key}); err != nil {
		t.Errorf("after a conflict: %v", err)
	}
	id, key = keyOf(3)
	api.fail = []error{errors.New("no disk")}
	if err := s.storeKeys(t.Context(), id, presharedkeys.Ring{Current: key}); err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("got %v", err)
	}
	if err := s.storeKeys(t.Context(), id, presharedkeys.Ring{Current: key}); err != nil {
		t.Errorf("after an error: %v", err)
	}
}

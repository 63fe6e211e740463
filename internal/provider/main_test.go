package provider

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
)

// now is when the tests begin.
var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // else it logs a stack that no logger is set
	os.Exit(m.Run())
}

// indexed builds a client with the indexes of the agent's cache.
func indexed(b *fake.ClientBuilder) client.WithWatch {
	for _, i := range store.Indexes() {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	return b.Build()
}

func testScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return scheme
}

func generated(t testing.TB) *identity.Identity {
	t.Helper()
	id, err := identity.Generate(now)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

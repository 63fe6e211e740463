package controller

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/internal/store"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // else it says, with a stack, that nobody did
	os.Exit(m.Run())
}

// indexed builds a client with the indexes of the agent's cache.
func indexed(b *fake.ClientBuilder) client.WithWatch {
	for _, i := range store.Indexes() {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	return b.Build()
}

package controller

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/internal/identity"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // else it says, with a stack, that nobody did
	os.Exit(m.Run())
}

func generated(t testing.TB) *identity.Identity {
	t.Helper()
	id, err := identity.Generate(now)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

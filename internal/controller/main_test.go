package controller

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/internal/identity"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // otherwise it logs a stack trace that no logger was set
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

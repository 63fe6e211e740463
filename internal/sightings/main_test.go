package sightings

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/internal/peertest"
)

var now = peertest.Now

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // without it, it prints a stack
	os.Exit(m.Run())
}

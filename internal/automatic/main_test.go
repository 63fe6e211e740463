package automatic

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/internal/peertest"
)

var now = peertest.Now

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // otherwise it logs a stack trace that no logger was set
	os.Exit(m.Run())
}

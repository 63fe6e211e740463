package e2e

import (
	"context"
	"os"
	"testing"
)

// The tests share one World. They run in the order of their files, t1 to t6, so
// that what one made the next can use; each makes what it needs if it is not
// there, so that any can be run alone. KEEP=1 leaves the clusters up afterwards,
// and finds them there the next time.

var theStage Installed // the one thing that the tests of this package share

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

// peered makes sure that home uses abroad, and returns the virtual node's name.
func peered(ctx context.Context, t *testing.T, w *World) string {
	t.Helper()
	node, err := w.Peer(ctx)
	OK(t, err)
	return node.Name
}

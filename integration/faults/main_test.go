package faults

import (
	"context"
	"os"
	"testing"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// shop is the namespace that is offloaded.
const shop = "shop"

// The tests share one World, in which each makes what it needs. Nothing is relayed in it: what
// keeps packets from a tunnel shall show.
var theStage = e2e.Installed{Config: e2e.Config{Lab: "faults", Values: []string{"network.relay.enabled=false"}}}

func TestMain(m *testing.M) {
	if only.InMatrix() {
		theStage.Patience = 2 * outage
	}
	os.Exit(theStage.Main(m))
}

// peered makes sure that home uses abroad, and returns the virtual node's name.
func peered(ctx context.Context, t *testing.T, w *e2e.World) string {
	t.Helper()
	node, err := w.Peer(ctx)
	e2e.OK(t, err)
	return node.Name
}

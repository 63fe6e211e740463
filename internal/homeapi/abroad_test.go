package homeapi

import (
	"testing"

	"github.com/entente-dev/entente/peering"
)

// A consumer with many pods leaves connections to others.
func TestAConsumerHasItsShareOfConnections(t *testing.T) {
	t.Parallel()
	a := &Abroad{of: make(map[peering.ClusterID]int)}
	var last func()
	for range maxConnectionsOfConsumer {
		release, ok := a.claim("greedy")
		if !ok {
			t.Fatal("refused within the share")
		}
		last = release
	}
	if _, ok := a.claim("greedy"); ok {
		t.Error("more than its share")
	}
	release, ok := a.claim("other")
	if !ok {
		t.Fatal("another consumer has none left")
	}
	release()
	last()
	if _, ok := a.claim("greedy"); !ok {
		t.Error("refused after one ended")
	}
	if len(a.of) != 1 {
		t.Errorf("what ended is remembered: %v", a.of)
	}
}

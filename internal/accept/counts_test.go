package accept

import (
	"errors"
	"net"
	"testing"
)

// Who has many leaves connections to others.
func TestEachHasItsShareOfConnections(t *testing.T) {
	t.Parallel()
	const share = 3
	counts := NewCounts[string](share+1, share)
	var last func()
	for range share {
		leave, ok := counts.Enter("greedy")
		if !ok {
			t.Fatal("refused within the share")
		}
		last = leave
	}
	if _, ok := counts.Enter("greedy"); ok {
		t.Error("more than its share")
	}
	leave, ok := counts.Enter("other")
	if !ok {
		t.Fatal("another one has none left")
	}
	if _, ok := counts.Enter("third"); ok {
		t.Error("more than there may be in all")
	}
	leave()
	last()
	if _, ok := counts.Enter("greedy"); !ok {
		t.Error("refused after one ended")
	}
	if left := counts.Now(); len(left) != 1 || left["greedy"] != share {
		t.Errorf("what ended is remembered: %v", left)
	}
}

func TestAHandedOverConnectionIsAccepted(t *testing.T) {
	t.Parallel()
	h := NewHandoff(Place{"test", "nowhere"})
	given, other := net.Pipe()
	defer other.Close()
	go h.Give(t.Context(), given)
	if c, err := h.Accept(); err != nil || c != given {
		t.Errorf("accepted %v, %v", c, err)
	}
	_ = h.Close()
	if _, err := h.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed one accepts: %v", err)
	}
	if h.Give(t.Context(), given) {
		t.Error("a closed one takes connections")
	}
	if got := From(given); got.IsValid() {
		t.Errorf("a pipe comes from %v", got)
	}
}

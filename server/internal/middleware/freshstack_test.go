package middleware

import (
	"errors"
	"testing"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestOnFreshStackReturnsErrorsAndPanics(t *testing.T) {
	if err := OnFreshStack("a test", func() error { return nil }); err != nil {
		t.Error(err)
	}
	boom := errors.New("boom")
	if err := OnFreshStack("a test", func() error { return boom }); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	// A panic ends the call, not the process.
	if err := OnFreshStack("a test", func() error { panic("boom") }); wire.ReasonOf(err) != peering.ReasonInternal {
		t.Errorf("a panic became %v", err)
	}
}

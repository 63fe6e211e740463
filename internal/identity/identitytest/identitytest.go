// Package identitytest makes identities for tests.
package identitytest

import (
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/identity"
)

// NewSource returns the source of a new identity.
func NewSource(t testing.TB) *identity.Source {
	t.Helper()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, err := identity.NewSource(identity.SourceConfig{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

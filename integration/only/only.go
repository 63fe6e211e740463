// Package only keeps tests that take long out of what runs with each change.
package only

import (
	"os"
	"testing"
)

// InMatrix says whether `make matrix` runs, in which tests may take their time.
func InMatrix() bool { return os.Getenv("ENTENTE_MATRIX") != "" }

// Matrix skips a test unless `make matrix` runs. The reason says what takes long, and
// what tries the same with each change.
func Matrix(t testing.TB, reason string) {
	t.Helper()
	if !InMatrix() {
		t.Skip(reason + ": `make matrix` runs it (ENTENTE_MATRIX=1)")
	}
}

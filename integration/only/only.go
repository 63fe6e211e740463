// Package only keeps tests that take long out of what runs with each change, and says how much of
// them runs.
package only

import (
	"os"
	"strconv"
	"testing"
)

// InMatrix reports whether `make matrix` runs, in which tests may take their time.
func InMatrix() bool { return os.Getenv("ENTENTE_MATRIX") != "" }

// Matrix skips a test unless `make matrix` runs. The reason says what takes long, and
// what tries the same with each change.
func Matrix(t testing.TB, reason string) {
	t.Helper()
	if !InMatrix() {
		t.Skip(reason + ": `make matrix` runs it (ENTENTE_MATRIX=1)")
	}
}

// Number reads from the environment how much of something a test does, or with which seed.
func Number(t testing.TB, variable string, preset int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return preset
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

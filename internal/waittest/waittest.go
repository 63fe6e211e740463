// Package waittest waits for what a test expects.
package waittest

import (
	"testing"
	"time"
)

// patience is for how long: on a busy machine of two cores, too.
const patience = 2 * time.Minute

// Eventually waits until ok, and fails the test if that is never so.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Soon(ok) {
		t.Fatalf("after %s still not so: %s", patience, what)
	}
}

// Soon waits until ok, and reports whether that became so.
func Soon(ok func() bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return ok()
}

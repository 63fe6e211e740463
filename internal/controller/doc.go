// Package controller makes the home cluster so as the contracts say. Each file
// has one reconciler: it looks at what is stored, asks a pure function what
// should be, and writes the difference. None asks which event woke it, and none
// keeps state that a restart would lose.
package controller

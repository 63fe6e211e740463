// Package exit is how commands fail: what an error says, what to do about it, and the exit code
// that it has.
package exit

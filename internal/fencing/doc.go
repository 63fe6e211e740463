// Package fencing is what becomes of pods whose provider does not answer, as their namespace
// chose it.
package fencing

// Package exit says how commands fail: the text of an error, what to do about it, and its exit
// code.
package exit

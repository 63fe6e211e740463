// Package progress tells of the steps of a command, and waits for what changes at a cluster.
package progress

// Package progress prints the steps of a command, and waits for changes at a cluster.
package progress

// Package storage handles volumes for the CLI: it lists those that providers keep for this
// cluster's claims and the pods that use a claim, and orders the deletion of a volume. It acts
// with the rights of the user who runs the command, at the cluster's API server.
package storage

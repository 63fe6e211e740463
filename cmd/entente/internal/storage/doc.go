// Package storage is what the CLI knows of volumes: those of this cluster's claims that providers
// hold, which pods use a claim, and the order by which a volume is deleted. It acts with the
// rights of whoever runs the command, at the cluster's API server.
package storage

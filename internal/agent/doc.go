// Package agent builds and runs all parts of the agent of a cluster, which components lists, and adapts the few
// types that differ. The other processes of a cluster are internal/fabric, internal/resolver and internal/cleanup.
package agent

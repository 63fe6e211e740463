// Package agent builds and runs all parts, and adapts the few types that differ. Run
// is the agent of a cluster, whose parts components lists; RunNode is the fabric of a
// node, RunDNS the resolver of consumers' names, and Cleanup what an uninstall runs.
package agent

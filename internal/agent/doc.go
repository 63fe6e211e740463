// Package agent is where all parts meet: it builds them from leaf to root, runs
// them, and fits the few shapes that differ. Run is the agent of a cluster,
// RunNode the fabric of a node.
package agent

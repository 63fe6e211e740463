// Package doctor finds what keeps a cluster from peering, from what its FabricNodes and
// ForeignClusters report, and what keeps its pods from running at peers.
package doctor

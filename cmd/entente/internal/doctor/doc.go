// Package doctor finds what keeps a cluster from peering, from what its FabricNodes and
// ForeignClusters report.
package doctor

// Package doctor finds what keeps a cluster from peering, by what its FabricNodes and
// ForeignClusters report.
package doctor

// Package clusterset is the Multi-Cluster Services API (KEP-1645) between pairs of clusters. A
// ServiceExport has a Service imported by the peers that share its namespace; a ServiceImport is
// what this cluster makes of all exports of one name that it knows, its own among them. No
// cluster decides for others: each merges what it knows by the same rules.
package clusterset

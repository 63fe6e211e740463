// Package clusterset implements the Multi-Cluster Services API (KEP-1645) between pairs of clusters. A
// ServiceExport lets the peers that share its namespace import a Service; a ServiceImport is what this cluster
// makes of all exports of one name that it knows, its own among them. No cluster decides for others: each merges
// what it knows by the same rules.
package clusterset

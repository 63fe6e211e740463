// Package sightings keeps what discovery finds: a ForeignCluster for each cluster, and a
// NodeDiscovery for the node that looks on LANs. What is found is a hint and makes no trust.
package sightings

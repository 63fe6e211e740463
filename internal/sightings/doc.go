// Package sightings keeps what discovery finds as a ForeignCluster for each cluster, and a
// NodeDiscovery for the node that browses LANs. What is found is a hint and makes no trust.
package sightings

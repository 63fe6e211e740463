// Package gateways chooses the nodes that hold tunnels to other clusters, and decides where
// other clusters are told to dial each: pure functions of Nodes, FabricNodes and Services, and
// one reconciler that writes what they say. By what the nodes say it also finds which of them carries
// the traffic of a peer, and whose pods do not reach that one.
package gateways

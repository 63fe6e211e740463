// Package gateways chooses the nodes that hold tunnels to other clusters, and decides where
// other clusters are told to dial each: pure functions of Nodes, FabricNodes and Services, and
// one reconciler that writes what they say.
package gateways

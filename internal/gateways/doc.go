// Package gateways chooses the nodes that have tunnels to other clusters, and the endpoints that are
// announced for each: pure functions of Nodes, FabricNodes and Services, and
// one reconciler that writes their results. By the status of the nodes it also finds which of them carries
// the traffic of a peer, and the nodes whose pods do not reach that one.
package gateways

package main

import (
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// condition waits until a condition is true.
func condition(kind, what string) func(*ententev1.Peer) (bool, string, error) {
	return func(peer *ententev1.Peer) (bool, string, error) {
		return isTrue(peer, kind), what + because(peer, kind), nil
	}
}

func conditionOf(peer *ententev1.Peer, kind string) *ententev1.Condition {
	for _, c := range peer.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

func isTrue(peer *ententev1.Peer, kind string) bool {
	return conditionOf(peer, kind).GetStatus() == "True"
}

func statusOf(p *ententev1.Peer, kind string) string {
	if c := conditionOf(p, kind); c != nil {
		return c.GetStatus()
	}
	return "Unknown"
}

// because tells why a condition of a peer is not true: ": message".
func because(peer *ententev1.Peer, kind string) string { return why(conditionOf(peer, kind)) }

// why tells for people why a condition is not true: ": message".
func why(c *ententev1.Condition) string {
	switch {
	case c.GetStatus() == "True":
		return ""
	case c.GetMessage() != "":
		return ": " + c.GetMessage()
	case c.GetReason() != "":
		return ": " + c.GetReason()
	}
	return ""
}

// openContracts is the contracts that are not over in which the cluster has a
// role; an empty role is either.
func openContracts(peer *ententev1.Peer, role string) []*ententev1.Contract {
	var open []*ententev1.Contract
	for _, c := range peer.GetContracts() {
		if (role == "" || c.GetRole() == role) && c.GetPhase() != "Closed" {
			open = append(open, c)
		}
	}
	return open
}

func nodesAndPods(contracts []*ententev1.Contract) (nodes []string, pods int) {
	for _, c := range contracts {
		pods += int(c.GetPods())
		if c.GetNode() != "" {
			nodes = append(nodes, c.GetNode())
		}
	}
	return nodes, pods
}

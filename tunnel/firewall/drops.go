package firewall

import "strings"

// Reason is why packets are dropped.
type Reason string

// The reasons.
const (
	// NotExposed: a peer, or a node of it, sends to what is not open to it, or a pod of this cluster
	// answers where nothing was asked.
	NotExposed Reason = "not exposed"
	// NotFromPod: what is sent to a peer comes from no pod of this cluster.
	NotFromPod Reason = "not from a pod"
	// NotOurs: a peer sends to an address that it was given no name of.
	NotOurs Reason = "to what is not ours"
	// NoAlias: the peer has no name for the pod that sends.
	NoAlias Reason = "no alias"
	// NotHere: a node of a peer sends directly to a pod that is not on this node.
	NotHere Reason = "not on this node"
	// InClear: what is for a peer would leave by another device than the tunnel's.
	InClear Reason = "in clear"
	// Transit: what a peer sends would be passed on to another.
	Transit Reason = "transit"
	// ToOverlay: something other than nodes sends to the nodes' addresses inside the tunnels.
	ToOverlay Reason = "to the overlay"
	// FromNetwork: an address inside the tunnels comes from outside of them.
	FromNetwork Reason = "to the overlay from outside"
	// ToRelay: another peer than one that is in-band sends to a relay of the peer API.
	ToRelay Reason = "to the relay"
)

// Drop is what packets are dropped for. Peer is the cluster ID of the peer that it is about;
// empty where rules do not tell peers apart.
type Drop struct {
	Reason Reason
	Peer   string
}

// String is the comment of the rule.
func (d Drop) String() string {
	if d.Peer == "" {
		return string(d.Reason)
	}
	return "peer " + d.Peer + ": " + string(d.Reason)
}

// parseDrop reads the comment of a rule; false if it is of no rule that drops.
func parseDrop(text string) (Drop, bool) {
	d := Drop{Reason: Reason(text)}
	if rest, ok := strings.CutPrefix(text, "peer "); ok {
		peer, reason, _ := strings.Cut(rest, ": ")
		d = Drop{Reason: Reason(reason), Peer: peer}
	}
	switch d.Reason {
	case NotExposed, NotFromPod, NotOurs, NoAlias, NotHere, InClear, Transit, ToOverlay, FromNetwork, ToRelay:
		return d, true
	}
	return Drop{}, false
}

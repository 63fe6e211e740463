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

// Count is packets, and their bytes without WireGuard.
type Count struct{ Packets, Bytes uint64 }

// Flow is what came from a peer and what went there.
type Flow struct{ Received, Sent Count }

// Totals is what the rules counted since they were written last. A node counts what it
// translates, and so each packet with a peer is counted on one node of the cluster.
type Totals struct {
	// Carried is what this node carried, Direct what passed between its pods and nodes of peers
	// past carriers, by the peer's cluster ID.
	Carried, Direct map[string]Flow
	Dropped         map[Drop]Count
}

// passage is which packets of a peer a rule counts that pass.
type passage string

const (
	received         passage = "received"
	sent             passage = "sent"
	receivedDirectly passage = "received directly"
	sentDirectly     passage = "sent directly"
)

// of is the comment of a rule that counts what passes.
func (p passage) of(peer string) string { return Drop{Reason(p), peer}.String() }

func newTotals() Totals {
	return Totals{Carried: map[string]Flow{}, Direct: map[string]Flow{}, Dropped: map[Drop]Count{}}
}

// add adds what a rule counted, by its comment.
func (c Totals) add(text string, n Count) {
	if d, ok := parseDrop(text); ok {
		c.Dropped[d] = c.Dropped[d].plus(n)
		return
	}
	about, _ := splitPeer(text)
	flows := c.Carried
	switch passage(about.Reason) {
	case receivedDirectly, sentDirectly:
		flows = c.Direct
	case received, sent:
	default:
		return
	}
	flow := flows[about.Peer]
	switch passage(about.Reason) {
	case received, receivedDirectly:
		flow.Received = flow.Received.plus(n)
	default:
		flow.Sent = flow.Sent.plus(n)
	}
	flows[about.Peer] = flow
}

func (c Count) plus(d Count) Count { return Count{c.Packets + d.Packets, c.Bytes + d.Bytes} }

// splitPeer reads what a comment says of a peer; false if it is about none.
func splitPeer(text string) (Drop, bool) {
	rest, ok := strings.CutPrefix(text, "peer ")
	if !ok {
		return Drop{}, false
	}
	peer, reason, _ := strings.Cut(rest, ": ")
	return Drop{Reason: Reason(reason), Peer: peer}, true
}

// parseDrop reads the comment of a rule; false if it is of no rule that drops.
func parseDrop(text string) (Drop, bool) {
	d, ok := splitPeer(text)
	if !ok {
		d = Drop{Reason: Reason(text)}
	}
	switch d.Reason {
	case NotExposed, NotFromPod, NotOurs, NoAlias, NotHere, InClear, Transit, ToOverlay, FromNetwork, ToRelay:
		return d, true
	}
	return Drop{}, false
}

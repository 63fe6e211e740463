package firewall

import "strings"

// Reason is why packets are dropped.
type Reason string

// The reasons.
const (
	// NotExposed: a peer, or a node of it, sends to a destination that is not open to it, or a pod of
	// this cluster answers a flow that was not opened.
	NotExposed Reason = "not exposed"
	// NotFromPod: a packet to a peer does not come from a pod of this cluster.
	NotFromPod Reason = "not from a pod"
	// NotOurs: a peer sends to an address that is not one of its aliases for this cluster.
	NotOurs Reason = "to what is not ours"
	// NoAlias: the peer has no alias for the pod that sends.
	NoAlias Reason = "no alias"
	// NotHere: a node of a peer sends directly to a pod that is not on this node.
	NotHere Reason = "not on this node"
	// InClear: a packet to a peer would leave by another device than the tunnel's.
	InClear Reason = "in clear"
	// Transit: a packet of a peer would be passed on to another peer.
	Transit Reason = "transit"
	// ToOverlay: something other than nodes sends to the nodes' addresses inside the tunnels.
	ToOverlay Reason = "to the overlay"
	// FromNetwork: an address inside the tunnels comes from outside of them.
	FromNetwork Reason = "to the overlay from outside"
	// Cipher: a peer sends from an address that is not one of its aliases. WireGuard drops the packet, not a rule.
	Cipher Reason = "cipher"
	// ToRelay: a peer that is not in-band sends to a relay of the peer API.
	ToRelay Reason = "to the relay"
)

// Drop is why packets are dropped, and the cluster ID of the peer that they come from or go to. Peer is
// empty where rules do not distinguish peers.
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

// Count is a number of packets, and of their bytes without those of WireGuard.
type Count struct{ Packets, Bytes uint64 }

// Flow is the traffic from and to a peer.
type Flow struct{ Received, Sent Count }

// Totals are the counters of the rules since they were last written. A node counts the packets that it
// translates, so each packet with a peer is counted on one node of the cluster.
type Totals struct {
	// Carried is the traffic that this node carried, Direct that between its pods and nodes of peers
	// past carriers, by the peer's cluster ID.
	Carried, Direct map[string]Flow
	Dropped         map[Drop]Count
}

// passage is the kind of packets of a peer that a rule counts and lets pass.
type passage string

const (
	received         passage = "received"
	sent             passage = "sent"
	receivedDirectly passage = "received directly"
	sentDirectly     passage = "sent directly"
)

// of returns the comment of a rule that counts packets which pass.
func (p passage) of(peer string) string { return Drop{Reason(p), peer}.String() }

func newTotals() Totals {
	return Totals{Carried: map[string]Flow{}, Direct: map[string]Flow{}, Dropped: map[Drop]Count{}}
}

// add adds the counter of a rule, by its comment.
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

// splitPeer reads the peer in a comment; it returns false if the comment names none.
func splitPeer(text string) (Drop, bool) {
	rest, ok := strings.CutPrefix(text, "peer ")
	if !ok {
		return Drop{}, false
	}
	peer, reason, _ := strings.Cut(rest, ": ")
	return Drop{Reason: Reason(reason), Peer: peer}, true
}

// parseDrop reads the comment of a rule; it returns false if the rule does not drop.
func parseDrop(text string) (Drop, bool) {
	d, ok := splitPeer(text)
	if !ok {
		d = Drop{Reason: Reason(text)}
	}
	switch d.Reason {
	case NotExposed, NotFromPod, NotOurs, NoAlias, NotHere, InClear, Transit, ToOverlay, FromNetwork, ToRelay:
		return d, true
	case Cipher: // no rule drops these
	}
	return Drop{}, false
}

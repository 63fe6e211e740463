package controller

import (
	"cmp"
	"encoding/base64"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// observedPause is the least time between two changes of where a peer sees this cluster: each change is sent to all
// peers.
const observedPause = 10 * time.Second

// place is an address at which a gateway may be seen from outside of an address translation.
type place struct {
	at netip.AddrPort
	// receiver: the peer that gets the list reported this place. seen: a gateway is seen there, and not only the
	// agent, whose address it may share.
	receiver, seen bool
	// peers is how many peers report it, since when the first of them does.
	peers int
	since time.Time
}

// class ranks a place: 0 is best.
func (p place) class() int {
	switch {
	case p.receiver && p.seen:
		return 0
	case p.receiver:
		return 1
	case p.seen:
		return 2
	}
	return 3
}

// observedAt returns, best first, the places where peers see a gateway of this cluster, as one of them, the
// receiver, is sent them. Each peer can name two places. A place that several peers report counts more than that of
// one, and of equals the older one; but what the receiver itself reported comes first.
func observedAt(n *v1alpha1.FabricNode, receiver string, peers []v1alpha1.ForeignCluster) []netip.AddrPort {
	places := map[netip.AddrPort]place{}
	count := func(at netip.AddrPort, own, seen bool, since time.Time) {
		if !at.IsValid() || !peering.Observable(at.Addr()) || slices.Contains(n.Spec.Endpoints, at.String()) {
			return
		}
		p := places[at]
		if p.peers == 0 || since.Before(p.since) {
			p.since = since
		}
		p.at, p.receiver, p.seen, p.peers = at, p.receiver || own, p.seen || seen, p.peers+1
		places[at] = p
	}
	for i := range peers {
		network, own := peers[i].Status.Network, peers[i].Spec.ClusterID == receiver
		if network == nil {
			continue
		}
		for _, o := range network.Observations {
			if at, err := netip.ParseAddrPort(o.Endpoint); err == nil && o.PublicKey == n.Status.PublicKey {
				count(at, own, true, o.Since.Time)
			}
		}
		if addr, err := netip.ParseAddr(network.OwnAddress); err == nil {
			count(netip.AddrPortFrom(addr, fabricPort(n)), own, false, time.Time{})
		}
	}
	var out []netip.AddrPort
	for _, p := range slices.SortedFunc(maps.Values(places), func(a, b place) int {
		return cmp.Or(
			cmp.Compare(a.class(), b.class()), cmp.Compare(b.peers, a.peers), a.since.Compare(b.since), a.at.Compare(b.at))
	}) {
		out = append(out, p.at)
	}
	return out[:min(len(out), peering.MaxObserved)]
}

// fabricPort is the port on which a node's WireGuard listens; 0 if it is not known.
func fabricPort(n *v1alpha1.FabricNode) uint16 {
	if len(n.Status.Endpoints) == 0 {
		return 0
	}
	_, text, err := net.SplitHostPort(n.Status.Endpoints[0])
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}

// observations returns where this cluster's gateways see those of a peer: each at the place at which most of them
// see it. left is how many do not fit into the message to the peer.
func observations(nodes []v1alpha1.FabricNode, peer string) (sent []peering.Observation, left int) {
	votes := map[peering.Observation]int{}
	for i := range nodes {
		for _, o := range nodes[i].Status.ObservedGateways {
			at, err := netip.ParseAddrPort(o.Endpoint)
			key, keyErr := base64.StdEncoding.DecodeString(o.PublicKey)
			if o.PeerID == peer && err == nil && keyErr == nil && len(key) == 32 && peering.Observable(at.Addr()) {
				votes[peering.Observation{PublicKey: [32]byte(key), Endpoint: at}]++
			}
		}
	}
	seen := map[[32]byte]bool{}
	var out []peering.Observation
	for _, o := range slices.SortedFunc(maps.Keys(votes), func(a, b peering.Observation) int {
		return cmp.Or(cmp.Compare(votes[b], votes[a]), a.Endpoint.Compare(b.Endpoint), slices.Compare(a.PublicKey[:], b.PublicKey[:]))
	}) {
		if !seen[o.PublicKey] {
			seen[o.PublicKey], out = true, append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b peering.Observation) int { return slices.Compare(a.PublicKey[:], b.PublicKey[:]) })
	sent = out[:min(len(out), peering.MaxObservations)]
	return sent, len(out) - len(sent)
}

// observationsFromWire reads where a peer sees gateways of this cluster. Observations that it repeats keep their
// time.
func observationsFromWire(reported []peering.Observation, before []v1alpha1.Observation, now time.Time) []v1alpha1.Observation {
	var out []v1alpha1.Observation
	for _, s := range reported {
		o := v1alpha1.Observation{
			PublicKey: base64.StdEncoding.EncodeToString(s.PublicKey[:]), Endpoint: s.Endpoint.String(), Since: metav1.NewTime(now.Truncate(time.Second)),
		}
		if slices.ContainsFunc(out, func(p v1alpha1.Observation) bool { return p.PublicKey == o.PublicKey }) {
			continue
		}
		if i := slices.IndexFunc(before, func(p v1alpha1.Observation) bool { return p.PublicKey == o.PublicKey && p.Endpoint == o.Endpoint }); i >= 0 {
			o.Since = before[i].Since
		}
		out = append(out, o)
	}
	return out
}

// paceObserved limits how often a peer changes where it sees this cluster: a change that comes too soon is undone
// in after, and the error says when it can be recorded. changed reports whether the record changes.
func (s *States) paceObserved(peer peering.ClusterID, before, after *v1alpha1.PeerNetwork) (changed bool, later error) {
	if after == nil {
		return false, nil
	}
	before = cmp.Or(before, &v1alpha1.PeerNetwork{})
	same := before.OwnAddress == after.OwnAddress && slices.Equal(before.Observations, after.Observations)
	now := s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.observed[peer]
	switch left := observedPause - now.Sub(last); {
	case same:
		return false, nil
	case known && left > 0:
		after.OwnAddress, after.Observations = before.OwnAddress, before.Observations
		return false, &store.LaterError{After: left}
	}
	if s.observed == nil {
		s.observed = map[peering.ClusterID]time.Time{}
	}
	maps.DeleteFunc(s.observed, func(_ peering.ClusterID, at time.Time) bool { return now.Sub(at) > observedPause })
	s.observed[peer] = now
	return true, nil
}

// dialable returns gateways of a peer without the observed places that this cluster must not dial.
func dialable(gateways []v1alpha1.Gateway, mayDial func(endpoint string) bool) []v1alpha1.Gateway {
	out := slices.Clone(gateways)
	for i := range out {
		out[i].ObservedEndpoints = slices.DeleteFunc(slices.Clone(out[i].ObservedEndpoints), func(e string) bool { return mayDial == nil || !mayDial(e) })
	}
	return out
}

package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/entente-dev/entente/internal/cidr"
)

// Exposure lets each of its sources open flows to each of its destinations.
type Exposure struct {
	// Name identifies an exposure of a peer. Required, unique.
	Name string
	// Third is the ID of the other peer whose addresses Destinations are, which have to be in
	// Transit; empty where they are this cluster's own. It must be empty with AnySource.
	Third string
	// AnySource makes every address of the peer's prefixes a source.
	AnySource bool
	// Sources are addresses of the peer, by the alias under which we know them.
	Sources []netip.Addr
	// Destinations are where the sources may open flows to.
	Destinations []Destination
}

// Destination is where a peer may open flows to: a port of one of our pods.
type Destination struct {
	// Addr is the pod's real address.
	Addr netip.Addr
	// Protocol is the IP protocol; zero means any protocol and any port.
	Protocol Protocol
	// Port is the destination port; zero together with Protocol.
	Port uint16
}

// Protocol is the number of an IP protocol that has ports.
type Protocol uint8

// The protocols.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Class identifies the sources that are in the same exposures, and so reach the same
// destinations. It depends on the peer's ID and on the names of exposures, so it
// stays when their sources and destinations change.
type Class [16]byte

// Inbound are the flows that peers may open, in the form in which packets are matched:
// the source gives a class, and class and destination together are listed or
// not. Its size is the sum of sources and destinations, not their product. All
// lists are sorted and without duplicates.
type Inbound struct {
	// Prefixes are aliases of peers of which every address has the class. They do
	// not overlap.
	Prefixes []PrefixClass
	// Sources are single addresses; each appears once. One that also lies in
	// Prefixes has both classes.
	Sources []SourceClass
	// Open are the destinations to which sources of a class may open flows.
	Open []Opening
}

// PrefixClass gives the addresses of a prefix a class.
type PrefixClass struct {
	Prefix netip.Prefix
	Class  Class
}

// SourceClass gives an address a class.
type SourceClass struct {
	Source netip.Addr
	Class  Class
}

// Opening lets sources of a class open flows to a destination.
type Opening struct {
	Class Class
	Destination
}

// classOf returns the class of sources that are in all of these exposures of a peer.
func classOf(peer, kind string, exposures []string) Class {
	h := sha256.New()
	for _, s := range append([]string{peer, kind}, exposures...) {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(s))))
		h.Write([]byte(s))
	}
	return Class(h.Sum(nil)[:16])
}

// checkExposures returns what is malformed in a peer's exposures.
func checkExposures(exposures []Exposure) error {
	seen := map[string]bool{}
	for _, e := range exposures {
		if e.Name == "" || seen[e.Name] {
			return fmt.Errorf("two exposures with the name %q, or one without", e.Name)
		}
		seen[e.Name] = true
		for _, d := range e.Destinations {
			if (d.Protocol == 0) != (d.Port == 0) {
				return fmt.Errorf("exposure %q opens protocol %d, port %d of %v: name both or none", e.Name, d.Protocol, d.Port, d.Addr)
			}
		}
	}
	return nil
}

// open adds the flows that a peer may open. Flows that do not fit the addresses of both
// sides, or exceed maxInbound, stay closed and are reported.
func (p *planner) open(q Peer, aliases []netip.Prefix) {
	if err := checkExposures(q.Inbound); err != nil {
		p.problem(q.ClusterID, "no flows are open to it: %v", err)
		return
	}
	b := opener{peer: q.ClusterID, room: maxInbound, classes: map[Class]bool{}}
	var anySource []Exposure
	known, theirs := reachable(q), cidr.Set(aliases)
	reasons := map[netip.Addr][]Exposure{} // the exposures that name each source
	for _, e := range q.Inbound {
		e.Destinations = b.fit(e.Destinations, func(d Destination) bool { return known[e.Third].Contains(d.Addr) })
		switch {
		case !e.AnySource:
		case e.Third != "":
			p.problem(q.ClusterID, "exposure %q stays closed: it opens cluster %s to all addresses of the peer", e.Name, e.Third)
		default:
			anySource = append(anySource, e)
		}
		for _, s := range e.Sources {
			if !theirs.Contains(s) {
				b.foreign = append(b.foreign, s)
				continue
			}
			if r := reasons[s]; len(r) == 0 || r[len(r)-1].Name != e.Name {
				reasons[s] = append(r, e)
			}
		}
	}
	if len(anySource) > 0 && len(aliases) > 0 {
		if c, ok := b.class("any", anySource); ok {
			for _, a := range aliases {
				b.out.Prefixes = append(b.out.Prefixes, PrefixClass{Prefix: a, Class: c})
			}
		}
	}
	// Addresses that one exposure names come before those that several name, since each
	// combination of exposures takes room of its own.
	sources := slices.SortedFunc(maps.Keys(reasons), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(len(reasons[a]), len(reasons[b])), a.Compare(b))
	})
	for _, s := range sources {
		if c, ok := b.class("source", reasons[s]); ok && b.take(1) {
			b.out.Sources = append(b.out.Sources, SourceClass{Source: s, Class: c})
		}
	}
	p.out.Inbound.Prefixes = append(p.out.Inbound.Prefixes, b.out.Prefixes...)
	p.out.Inbound.Sources = append(p.out.Inbound.Sources, b.out.Sources...)
	p.out.Inbound.Open = append(p.out.Inbound.Open, b.out.Open...)
	p.reportClosed(q, b)
}

// reachable returns the addresses for which a peer has aliases, by the ID of the other peer that has
// them; the empty ID is that of our own.
func reachable(q Peer) map[string]cidr.Set {
	prefixes := map[string][]netip.Prefix{}
	for _, m := range q.Local {
		prefixes[""] = append(prefixes[""], m.Real)
	}
	for _, t := range q.Transit {
		prefixes[t.Cluster] = append(prefixes[t.Cluster], t.Real)
	}
	out := map[string]cidr.Set{}
	for cluster, list := range prefixes {
		out[cluster] = cidr.Of(list...)
	}
	return out
}

// reportClosed reports the flows of a peer that stay closed, and why.
func (p *planner) reportClosed(q Peer, b opener) {
	if len(b.foreign) > 0 {
		p.problem(q.ClusterID, "%d flows stay closed: %v, among them, is not from an alias of this peer", len(b.foreign), b.foreign[0])
	}
	if len(b.beyond) > 0 {
		p.problem(q.ClusterID, "%d flows stay closed: %v, among them, is not in a prefix that the peer can reach", len(b.beyond), b.beyond[0].Addr)
	}
	if b.crowded {
		p.problem(q.ClusterID, "limit of %d different sets of source namespaces reached (maxClasses): the rest stays closed", maxClasses)
	}
	if b.full {
		p.problem(q.ClusterID, "limit of %d sources and destinations reached (maxInbound): the rest stays closed", maxInbound)
	}
}

// opener collects the flows that are open to one peer.
type opener struct {
	peer    string
	room    int  // of maxInbound
	full    bool // some flows found no room
	crowded bool // there were more classes than maxClasses
	classes map[Class]bool
	out     Inbound
	foreign []netip.Addr  // sources that are not the peer's
	beyond  []Destination // destinations for which the peer has no alias
}

// take reserves room for n entries, if there is enough.
func (b *opener) take(n int) bool {
	if n > b.room {
		b.full = true
		return false
	}
	b.room -= n
	return true
}

// fit returns the destinations that the peer can reach.
func (b *opener) fit(destinations []Destination, reachable func(Destination) bool) []Destination {
	var out []Destination
	for _, d := range destinations {
		if reachable(d) {
			out = append(out, d)
		} else {
			b.beyond = append(b.beyond, d)
		}
	}
	return out
}

// class returns the class of sources that these exposures name, and whether any
// destination is open to it.
func (b *opener) class(kind string, exposures []Exposure) (Class, bool) {
	var names []string
	for _, e := range exposures {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	c := classOf(b.peer, kind, names)
	if ok, known := b.classes[c]; known {
		return c, ok
	}
	var open []Opening
	for _, e := range exposures {
		for _, d := range e.Destinations {
			open = append(open, Opening{Class: c, Destination: d})
		}
	}
	slices.SortFunc(open, compareOpening)
	open = slices.Compact(open)
	if len(b.classes) >= maxClasses {
		b.crowded = true
		return c, false
	}
	b.classes[c] = len(open) > 0 && b.take(len(open))
	if b.classes[c] {
		b.out.Open = append(b.out.Open, open...)
	}
	return c, b.classes[c]
}

func compareOpening(a, b Opening) int {
	return cmp.Or(slices.Compare(a.Class[:], b.Class[:]), a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// sorted sorts all lists, so that equal input gives equal plans.
func (in Inbound) sorted() Inbound {
	slices.SortFunc(in.Prefixes, func(a, b PrefixClass) int { return a.Prefix.Compare(b.Prefix) })
	slices.SortFunc(in.Sources, func(a, b SourceClass) int { return a.Source.Compare(b.Source) })
	slices.SortFunc(in.Open, compareOpening)
	return in
}

// String is the protocol's name.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	default:
		return fmt.Sprintf("protocol %d", uint8(p))
	}
}

// ParseProtocol reads the form of String.
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range []Protocol{TCP, UDP, SCTP} {
		if strings.EqualFold(s, p.String()) {
			return p, nil
		}
	}
	return 0, fmt.Errorf("%q is not TCP, UDP or SCTP", s)
}

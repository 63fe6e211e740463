package matrix

import (
	"strings"

	"github.com/entente-dev/entente/integration/lab"
)

// Setup says what the networks of the clusters are like.
type Setup struct {
	CIDRs    lab.CIDRs
	Families lab.Families
	IPAM     lab.IPAM
	Proxy    lab.Proxy
}

// Sample is the setup that runs with every change: the one furthest from the defaults of Kubernetes.
var Sample = Setup{CIDRs: lab.SameCIDRs, Families: lab.DualStack, IPAM: lab.PoolIPAM, Proxy: lab.NFTablesProxy} //nolint:gochecknoglobals // a constant, if the type could be one

// Setups are all setups.
func Setups() []Setup {
	var all []Setup
	for _, prefixes := range []Setup{
		{CIDRs: lab.SameCIDRs, Families: lab.IPv4Only},
		{CIDRs: lab.DistinctCIDRs, Families: lab.IPv4Only},
		{CIDRs: lab.SameCIDRs, Families: lab.DualStack},
		{CIDRs: lab.SameCIDRs, Families: lab.IPv6Only},
	} {
		for _, ipam := range []lab.IPAM{lab.NodeIPAM, lab.PoolIPAM} {
			for _, proxy := range []lab.Proxy{lab.IPTablesProxy, lab.NFTablesProxy} {
				s := prefixes
				s.IPAM, s.Proxy = ipam, proxy
				all = append(all, s)
			}
		}
	}
	return all
}

// String names the setup.
func (s Setup) String() string {
	return strings.Join([]string{string(s.CIDRs), string(s.Families), string(s.IPAM), string(s.Proxy)}, "-")
}

// Family is the IP family of a connection.
type Family string

// The families.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// Over are the families over which each cell is tried in the setup.
func (s Setup) Over() []Family {
	switch s.Families {
	case lab.DualStack:
		return []Family{IPv4, IPv6}
	case lab.IPv6Only:
		return []Family{IPv6}
	case lab.IPv4Only:
	}
	return []Family{IPv4}
}

// Way is how two clusters peer.
type Way string

// The ways: the peer API outside the tunnel, or inside it.
const (
	OutOfBand Way = "out-of-band"
	InBand    Way = "in-band"
)

// Ways are those of the pairs of clusters of each setup: two of the clusters have peers of both
// kinds.
func Ways() []Way { return []Way{InBand, OutOfBand, OutOfBand} }

// Direction says from where to where a connection is opened.
type Direction string

// The directions: to pods that run abroad, and from them.
const (
	ToOffloaded   Direction = "from home to its pods abroad"
	FromOffloaded Direction = "from pods abroad to their home"
)

// Source is what opens a connection.
type Source string

// The sources.
const (
	Pod         Source = "pod"
	HostPod     Source = "host-network pod"
	NodeProcess Source = "process on the node"
)

// Destination is how the pod is addressed to which a connection is opened.
type Destination string

// The destinations. A Service has one pod, so that it is known which one has to respond.
const (
	PodAddress    Destination = "pod's address"
	ServiceVIP    Destination = "Service VIP"
	OwnNodePort   Destination = "NodePort of the source's node"
	OtherNodePort Destination = "NodePort of the other node"
	Headless      Destination = "headless name"
)

// Place says which of a cluster's two nodes a pod or process is on.
type Place string

// The places.
const (
	Gateway   Place = "gateway"
	OtherNode Place = "other"
)

func directions() []Direction { return []Direction{ToOffloaded, FromOffloaded} }
func sources() []Source       { return []Source{Pod, HostPod, NodeProcess} }
func places() []Place         { return []Place{Gateway, OtherNode} }
func destinations() []Destination {
	return []Destination{PodAddress, ServiceVIP, OwnNodePort, OtherNodePort, Headless}
}

// Cell is one question: does this reach that?
type Cell struct {
	Direction Direction
	Source    Source
	From      Place
	To        Destination
	At        Place
}

// Cells are all cells of a setup.
func Cells() []Cell {
	var all []Cell
	for _, direction := range directions() {
		for _, source := range sources() {
			for _, from := range places() {
				for _, to := range destinations() {
					for _, at := range places() {
						all = append(all, Cell{Direction: direction, Source: source, From: from, To: to, At: at})
					}
				}
			}
		}
	}
	return all
}

// Tried are the cells that a test tries: those that are to work.
func Tried() []Cell {
	var tried []Cell
	for _, c := range Cells() {
		if c.Impossible() == "" {
			tried = append(tried, c)
		}
	}
	return tried
}

// Impossible says why the cell cannot work by design; empty if it has to work.
func (c Cell) Impossible() string {
	switch {
	case c.Direction == FromOffloaded && c.Source == HostPod:
		return "A pod that uses its node's network is not offloaded."
	case c.Direction == FromOffloaded && c.Source == NodeProcess:
		return "The nodes are the provider's: no process there is the consumer's."
	case c.Direction == FromOffloaded && (c.To == OwnNodePort || c.To == OtherNodePort):
		return "A Service crosses without its NodePort, and nodes are not open to peers."
	case c.Source == NodeProcess && c.To == Headless:
		return "A node does not ask the DNS of its cluster. What a name resolves to is reached: see the pod's address."
	}
	return ""
}

// String names the cell.
func (c Cell) String() string {
	return string(c.Direction) + ": " + string(c.Source) + " on " + string(c.From) + " to " + string(c.To) + " on " + string(c.At)
}

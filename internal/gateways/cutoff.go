package gateways

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Nodes is a snapshot of the nodes of this cluster.
type Nodes struct {
	Fabric []v1alpha1.FabricNode
	// Health returns the state of a node in Kubernetes. Nil means that all are healthy.
	Health func(node string) Health
	Now    time.Time
}

func (n Nodes) health(node string) Health {
	if n.Health == nil {
		return Health{}
	}
	return n.Health(node)
}

// Gone reports whether the tunnels of a node ended with its fabric. Those in the kernel stay.
func (n Nodes) Gone(node *v1alpha1.FabricNode) bool {
	return n.health(node.Name).Absent && node.Status.Backend != "kernel"
}

// Cut is a node, or two of which one is meant, whose pods do not reach a peer.
type Cut struct {
	// Nodes is the name of the node, or the names of both.
	Nodes []string
	// Why is the reason, and what to do.
	Why string
	// grace is for how long it must have lasted, reported when each of the nodes last reported.
	grace    time.Duration
	reported time.Time
	// split says that the nodes have to report after it began: one of them may be dead.
	split bool
}

func (c Cut) key() string { return strings.Join(c.Nodes, " ") }

// carried returns the path by which a gateway carries a peer's traffic; nil if it does not carry it.
func carried(n *v1alpha1.FabricNode, peer string) *v1alpha1.FabricPath {
	for i := range n.Status.Paths {
		if p := &n.Status.Paths[i]; n.Spec.Gateway && p.PeerID == peer && !p.Standby && p.State == "Up" {
			return p
		}
	}
	return nil
}

// Carrier returns the gateway that carries a peer's traffic, and its path; nil if no node reports that
// it carries it. Of several it is the one that most other nodes reach, since the last report of a dead
// one may claim the same; of equals it is the same one in any order of the nodes. One whose Node is not
// Ready counts while its fabric reports, if no other carries the traffic: only its kubelet may have
// stopped, and packets pass. unreachable are the nodes whose probes to the carrier are lost, if these
// are most.
func (n Nodes) Carrier(peer string) (carrier *v1alpha1.FabricNode, path *v1alpha1.FabricPath, unreachable []string) {
	most := 0
	for i := range n.Fabric {
		g := &n.Fabric[i]
		p, is := carried(g, peer), n.health(g.Name)
		if p == nil || n.Gone(g) || Silent(g, n.Now) || is.NotReady && !is.Reports {
			continue
		}
		reached, lost := n.reach(g.Name)
		if carrier != nil && cmp.Or(compareBool(!is.NotReady, !n.health(carrier.Name).NotReady), cmp.Compare(reached, most), g.Status.ObservedAt.Compare(carrier.Status.ObservedAt.Time), cmp.Compare(carrier.Name, g.Name)) <= 0 {
			continue
		}
		carrier, path, most, unreachable = g, p, reached, nil
		if len(lost) > reached+1 { // its own report counts as one
			unreachable = lost
		}
	}
	return carrier, path, unreachable
}

// reach returns how many other nodes reach a gateway by their probes, and which do not.
func (n Nodes) reach(gateway string) (reached int, lost []string) {
	for i := range n.Fabric {
		node := &n.Fabric[i]
		if node.Name == gateway || Silent(node, n.Now) || n.Gone(node) || n.health(node.Name).NotReady {
			continue
		}
		switch p := ownPath(node, gateway); {
		case p == nil:
		case p.State == "Up":
			reached++
		case p.State == "Down":
			lost = append(lost, node.Name)
		}
	}
	return reached, lost
}

// ownPath returns the path of a node to a gateway of its own cluster; nil if it does not use that one.
func ownPath(n *v1alpha1.FabricNode, gateway string) *v1alpha1.FabricPath {
	for i := range n.Status.Paths {
		if p := &n.Status.Paths[i]; p.PeerID == n.Spec.ClusterID && p.Node == gateway {
			return p
		}
	}
	return nil
}

// Cuts returns the nodes whose pods do not reach a peer whose traffic a gateway carries. Nodes that
// are not Ready are left out: Kubernetes reports them.
func (n Nodes) Cuts(peer string, carrier *v1alpha1.FabricNode) []Cut {
	var out []Cut
	for i := range n.Fabric {
		node := &n.Fabric[i]
		is := n.health(node.Name)
		if node.Name == carrier.Name || is.NotReady {
			continue
		}
		cut := Cut{Nodes: []string{node.Name}, grace: cutLasts, reported: node.Status.ObservedAt.Time}
		switch {
		case is.Cordoned:
			cut.grace = cutCordoned
		case n.Gone(node):
			cut.grace = 0 // that has lasted
		}
		if carried(node, peer) != nil && !n.Gone(node) && !Silent(node, n.Now) && !StopsPods(node) {
			cut.split, cut.Nodes = true, slices.Sorted(slices.Values([]string{node.Name, carrier.Name}))
			if carrier.Status.ObservedAt.Time.Before(cut.reported) {
				cut.reported = carrier.Status.ObservedAt.Time
			}
			cut.Why = "each of the two carries the peer's traffic, since neither receives the claims of the other: see that UDP passes between the two"
		} else {
			cut.Why = n.why(node, carrier.Name)
		}
		if cut.Why != "" {
			out = append(out, cut)
		}
	}
	return out
}

// why returns why the pods of a node do not reach a gateway, and what to do; empty if no reason is
// known. Each further finding of a node about its pods' way is a case here.
func (n Nodes) why(node *v1alpha1.FabricNode, gateway string) string {
	const seePod = ": look at its pod of DaemonSet entente-fabric, or delete its FabricNode if none is to run there"
	path := ownPath(node, gateway)
	switch {
	case n.Gone(node):
		return "no pod of the fabric runs there" + seePod
	case Silent(node, n.Now):
		return "the fabric there was last heard of at " + node.Status.ObservedAt.UTC().Format(time.RFC3339) + seePod
	case StopsPods(node):
		return Blocks(node)
	case path == nil:
		text := fmt.Sprintf("the fabric there does not send to gateway node %s, which carries the peer's traffic", gateway)
		if len(node.Status.Problems) > 0 {
			return text + ": " + node.Status.Problems[0]
		}
		return text + ": see that UDP passes between the two"
	case path.State == "Down":
		return fmt.Sprintf("probes from there to gateway node %s are lost: see that UDP passes between the two", gateway)
	case path.State == "Unknown":
		return fmt.Sprintf("no probe from there to gateway node %s was answered yet: see that UDP passes between the two", gateway)
	case path.LargePacketsLost:
		return fmt.Sprintf("large packets are lost from there to gateway node %s: raise the MTU of the network between, or let fragments of UDP pass", gateway)
	}
	return ""
}

// CutsSince is since when nodes have been cut off.
type CutsSince map[string]time.Time

// Lasting returns the cuts that have outlasted their grace, since when each cut has lasted, and after how
// long the next may outlast its grace; zero if none is new. reported is since when the peer's status
// reports cuts, or zero. An agent that was just started, and so has seen none, counts from then.
func Lasting(cuts []Cut, was CutsSince, reported, now time.Time) (lasting []Cut, since CutsSince, again time.Duration) {
	since = CutsSince{}
	for _, c := range cuts {
		at, known := was[c.key()]
		switch {
		case known:
		case was == nil && !reported.IsZero():
			at = reported
		default:
			at = now
		}
		since[c.key()] = at
		switch left := c.grace - now.Sub(at); {
		case left > 0:
			if again == 0 || left < again {
				again = left
			}
		case c.split && !c.reported.After(at.Add(c.grace)):
			if again == 0 || again > splitRecheck { // reports of nodes do not enqueue peers
				again = splitRecheck
			}
		default:
			lasting = append(lasting, c)
		}
	}
	return lasting, since, again
}

// CutsMessage returns a text that names the nodes whose pods are cut off, and why.
func CutsMessage(cuts []Cut) string {
	byReason := map[string][]string{}
	for _, c := range cuts {
		name := c.key()
		if c.split {
			name = "one of " + strings.Join(c.Nodes, " and ")
		}
		byReason[c.Why] = append(byReason[c.Why], name)
	}
	var texts []string
	for _, why := range slices.Sorted(maps.Keys(byReason)) {
		texts = append(texts, fmt.Sprintf("pods on %s are cut off: %s", Some(byReason[why]), why))
	}
	if more := len(texts) - maxCuts; more > 0 {
		texts = append(texts[:maxCuts], fmt.Sprintf("and others for %d more reasons", more))
	}
	return strings.Join(texts, "; ")
}

// Some returns the names of the first nodes of a list, and how many more there are.
func Some(nodes []string) string {
	nodes = slices.Sorted(slices.Values(nodes))
	if len(nodes) <= maxNamed {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %d more nodes", strings.Join(nodes[:maxNamed], ", "), len(nodes)-maxNamed)
}

// blocking returns the findings by which no packets pass between a node's pods and the tunnel,
// though the node's own packets, such as probes, do. A test checks that each reason of preflight
// is classified.
func blocking() []string {
	return []string{"NFTablesUnavailable", "ForwardingDisabled", "ForwardDropped", "AliasesDiverted", "HostRoutingByEBPF"}
}

// StopsPods reports whether a node has one of the blocking findings.
func StopsPods(n *v1alpha1.FabricNode) bool {
	return slices.ContainsFunc(errorsOf(n), func(f v1alpha1.FabricFinding) bool { return slices.Contains(blocking(), f.Reason) })
}

// Blocks returns a text about the worst finding of a node's own check that keeps the packets of tunnels
// from passing; empty if there is none. Findings that stop its pods come first.
func Blocks(n *v1alpha1.FabricNode) string {
	found := errorsOf(n)
	if len(found) == 0 {
		return ""
	}
	f := found[max(0, slices.IndexFunc(found, func(f v1alpha1.FabricFinding) bool { return slices.Contains(blocking(), f.Reason) }))]
	return fmt.Sprintf("%s (%s): %s; see `entente doctor network`", f.Message, f.Reason, f.Remedy)
}

// errorsOf returns the findings of a node that keep packets from passing, worst first.
func errorsOf(n *v1alpha1.FabricNode) []v1alpha1.FabricFinding {
	if n.Status.Preflight == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(n.Status.Preflight.Findings), func(f v1alpha1.FabricFinding) bool { return f.Severity != "Error" })
}

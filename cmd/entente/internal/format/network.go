package format

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// KeyAge is the age of a node's key, and whether it is being replaced.
func KeyAge(now time.Time, n *ententev1.NetworkNode) string {
	if n.GetKeyFirstUseTime() == nil {
		return "-"
	}
	age := Since(now, n.GetKeyFirstUseTime())
	if n.GetKeyRotating() {
		age += ", being replaced"
	}
	return age
}

// Rotated says what became of a tunnel whose preshared key is younger than asked for; nil means that the tunnel
// ended meanwhile.
func Rotated(key *ententev1.PresharedKey) string {
	if key == nil {
		return "is gone"
	}
	return "has a new preshared key"
}

// PrintPlan prints what the network with a peer would be, in several tables.
func PrintPlan(table func() *printer.Table, p *ententev1.NetworkPlan) {
	t := table()
	t.Row("Peer", cmp.Or(Short(p.GetPeer()), "a cluster that is not known yet"))
	t.Row("Alias pool", strings.Join(p.GetAliasPool(), ", "))
	if p.GetMtu() > 0 {
		t.Row("MTU", fmt.Sprint(p.GetMtu()))
	}
	t.Flush()
	aliases := func(title, called string, list []*ententev1.PlannedAlias, none string) {
		t := table()
		for _, a := range list {
			now := "would be "
			if a.GetInUse() {
				now = "is "
			}
			text := now + a.GetAlias() + " " + called
			switch {
			case a.GetByAddress():
				text = fmt.Sprintf("has no alias %s; each address in use has one, %d now, and is reached through gateways only", called, a.GetAddresses())
			case a.GetAlias() == "":
				text = none
			}
			t.Row("  "+a.GetPrefix(), text)
		}
		t.FlushUnder(title)
	}
	aliases("Its prefixes", "here", p.GetRemote(), "gets no alias")
	aliases("Our prefixes", "there", p.GetLocal(), "has no alias from the peer yet")
	gateways := func(title string, list []*ententev1.PlannedGateway) {
		t := table()
		for _, g := range list {
			t.Row("  "+g.GetName(), cmp.Or(strings.Join(g.GetEndpoints(), ", "), "cannot be dialled: it dials"))
		}
		t.FlushUnder(title)
	}
	gateways("Our gateways, as sent to it", p.GetOwnGateways())
	gateways("Its gateways", p.GetGateways())
	printTransit(table, p.GetTransit())
	lines := func(title string, list []string) {
		t := table()
		for _, text := range list {
			t.Row("  " + text)
		}
		t.FlushUnder(title)
	}
	lines("Cannot work", p.GetErrors())
	lines("To know", p.GetWarnings())
}

// printTransit prints what passes between a peer and third clusters.
func printTransit(table func() *printer.Table, list []*ententev1.PlannedTransit) {
	for _, through := range []bool{false, true} {
		t, title := table(), "Reaches through this cluster"
		if through {
			title = "Reached through it"
		}
		for _, x := range list {
			if x.GetThroughPeer() != through {
				continue
			}
			text := fmt.Sprintf("passes: %d of %d addresses there have an alias", x.GetAliased(), x.GetAddresses())
			if x.GetMissing() != "" {
				text = "does not pass: " + x.GetMissing()
			}
			t.Row("  "+x.GetCluster(), text)
		}
		t.FlushUnder(title)
	}
}

// PrintPaths prints the paths by which nodes reach peers.
func PrintPaths(t *printer.Table, paths []*ententev1.NetworkPath) {
	for _, p := range paths {
		rtt, mtu, use := "-", "-", "carries"
		if p.GetRoundTrip() != nil {
			rtt = p.GetRoundTrip().AsDuration().String()
		}
		if p.GetMtu() > 0 {
			mtu = fmt.Sprint(p.GetMtu())
		}
		switch {
		case p.GetDirect() && p.GetStandby():
			use = "not used"
		case p.GetDirect():
			use = "direct"
		case p.GetStandby():
			use = "standby"
		}
		if p.GetInBand() {
			use += ", peer API"
		}
		connection := cmp.Or(p.GetConnectionType(), "-")
		if p.GetThrough() != "" {
			connection += " through " + p.GetThrough()
		}
		t.Row(cmp.Or(Short(p.GetPeer()), "-"), p.GetNode(), cmp.Or(p.GetGateway(), "-"), connection, cmp.Or(p.GetEndpoint(), "-"), p.GetState(), rtt, mtu, use, p.GetMessage())
	}
	t.Flush()
}

// Troubled reports whether something is wrong on nodes.
func Troubled(nodes []*ententev1.NetworkNode) bool {
	return slices.ContainsFunc(nodes, func(n *ententev1.NetworkNode) bool {
		return len(n.GetProblems())+len(n.GetFindings()) > 0 || n.GetKeyRotationMessage() != "" || lostEnd(n) != nil
	})
}

// OffloadsOf says which offloads of a node are missing; a dash means that it is not known.
func OffloadsOf(n *ententev1.NetworkNode) string {
	switch {
	case len(n.GetMissingOffloads()) > 0:
		return "no " + strings.Join(n.GetMissingOffloads(), ",")
	case len(n.GetOffloads()) > 0:
		return "all"
	}
	return "-"
}

// Hop says of a hop from a node, by the type of its condition, whether it works: ok, the reason why it does not, or a dash if
// there is no such hop.
func Hop(n *ententev1.NetworkNode, kind string) string {
	c := hopOf(n, kind)
	switch {
	case c == nil:
		return "-"
	case c.GetStatus() == "True":
		return "ok"
	}
	return c.GetReason()
}

func hopOf(n *ententev1.NetworkNode, kind string) *ententev1.Condition {
	i := slices.IndexFunc(n.GetConditions(), func(c *ententev1.Condition) bool { return c.GetType() == kind })
	if i < 0 {
		return nil
	}
	return n.GetConditions()[i]
}

// lostEnd is the condition of a node from which packets do not pass end to end; nil if they pass. Those of the other hops
// are among the paths.
func lostEnd(n *ententev1.NetworkNode) *ententev1.Condition {
	if c := hopOf(n, v1alpha1.ConditionEndToEnd); c.GetStatus() == "False" {
		return c
	}
	return nil
}

// PrintTroubles prints what is wrong on nodes.
func PrintTroubles(t *printer.Table, nodes []*ententev1.NetworkNode) {
	for _, n := range nodes {
		for _, p := range n.GetProblems() {
			t.Row("-", "Tunnel", n.GetName(), p)
		}
		if n.GetKeyRotationMessage() != "" {
			t.Row("-", "Key", n.GetName(), "its next WireGuard key waits: "+n.GetKeyRotationMessage())
		}
		if c := lostEnd(n); c != nil {
			t.Row("Error", c.GetReason(), n.GetName(), c.GetMessage())
		}
		for _, f := range n.GetFindings() {
			t.Row(f.GetSeverity(), f.GetReason(), n.GetName(), f.GetMessage()+". To do: "+f.GetRemedy())
		}
	}
	t.Flush()
}

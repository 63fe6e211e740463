package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Chain is a chain of a firewall, of nftables or of iptables.
type Chain struct {
	// Table is the table with its family, as "ip filter".
	Table, Name string
	// Four and Six say for which families it is.
	Four, Six bool
	// Base says that forwarded packets begin here; Drop, that packets at the end of the chain are
	// dropped.
	Base, Drop bool
	Rules      []FilterRule
}

// FilterRule is a rule: its verdict applies to packets that pass all of its tests.
type FilterRule struct {
	Tests   []Test
	Verdict Verdict
	// Target is the chain of a jump or goto.
	Target string
}

// Verdict is the action of a rule.
type Verdict int

// The verdicts. The zero value goes on with the next rule.
const (
	Continue Verdict = iota
	Accept
	Drop
	Jump
	Goto
	Return
	// Undecided may be any of Continue, Accept and Drop.
	Undecided
)

// Key is the field that a test compares.
type Key int

// The keys.
const (
	// Other is something that cannot be predicted.
	Other Key = iota
	// In and Out are the interfaces, by Test.Name.
	In
	Out
	// Source and Destination are addresses, by Test.Prefix.
	Source
	Destination
	// State is that of the connection, by Test.Bits.
	State
	// Protocol is that of layer 4, by Test.Bits.
	Protocol
	// Family is that of the addresses, by Test.Bits: 2 is IPv4, 10 is IPv6.
	Family
	// AnyOf is one of some tests, by Test.Any.
	AnyOf
	// Never is a test that the packets in question fail: they are not to the node's own
	// addresses, are not translated by a Service, and do not have kube-proxy's mark.
	Never
)

// States of connections, as the kernel numbers them.
const (
	stateEstablished uint32 = 2
	stateNew         uint32 = 8
)

// Test is a condition.
type Test struct {
	Key Key
	// Not inverts it.
	Not bool
	// Name is the name of an interface, or a prefix of names and *.
	Name   string
	Prefix netip.Prefix
	Bits   uint32
	Any    []Test
}

// flow is a flow of TCP that the firewall has to let pass.
type flow struct {
	// text describes it in messages.
	text string
	six  bool
	// in and out are interfaces; empty means unknown.
	in, out string
	// source and destination are the prefixes of its addresses; invalid means unknown.
	source, destination netip.Prefix
	state               uint32
}

// decision is whether a packet passes a test.
type decision int

const (
	no decision = iota
	maybe
	yes
)

func (t Test) passes(p flow) decision {
	var a decision
	switch t.Key {
	case In:
		a = nameMatches(t.Name, p.in)
	case Out:
		a = nameMatches(t.Name, p.out)
	case Source:
		a = prefixMatches(t.Prefix, p.source)
	case Destination:
		a = prefixMatches(t.Prefix, p.destination)
	case State:
		a = decided(t.Bits&p.state != 0)
	case Protocol:
		a = decided(t.Bits == protocolTCP)
	case Family:
		a = decided(p.six && t.Bits == familySix || !p.six && t.Bits == familyFour)
	case AnyOf:
		for _, one := range t.Any {
			a = max(a, one.passes(p))
		}
	case Never:
		a = no
	default:
		return maybe
	}
	if t.Not {
		return yes - a
	}
	return a
}

const (
	protocolTCP = 6
	// NFPROTO_IPV4 and NFPROTO_IPV6
	familyFour, familySix = 2, 10
)

func decided(is bool) decision {
	if is {
		return yes
	}
	return no
}

func nameMatches(pattern, name string) decision {
	if name == "" {
		return maybe
	}
	if start, ok := strings.CutSuffix(pattern, "*"); ok {
		return decided(strings.HasPrefix(name, start))
	}
	return decided(name == pattern)
}

func prefixMatches(test, where netip.Prefix) decision {
	switch {
	case !test.IsValid() || !where.IsValid():
		return maybe
	case covers(test, where):
		return yes
	case test.Overlaps(where):
		return maybe
	}
	return no
}

// outcomes is the set of possible outcomes of a packet.
type outcomes int

const (
	accepted outcomes = 1 << iota
	dropped
	goesOn
	anything = accepted | dropped | goesOn
)

// firewall are chains by table and name.
type firewall map[[2]string]Chain

// outcome returns the possible outcomes of a packet in a chain; goesOn is the end of the chain, or a
// return.
func (w firewall) outcome(table, name string, p flow, depth int) outcomes {
	c, known := w[[2]string{table, name}]
	if !known || depth > maxDepth {
		return anything
	}
	var out outcomes
	for _, rule := range c.Rules {
		all := yes
		for _, t := range rule.Tests {
			all = min(all, t.passes(p))
		}
		if all == no {
			continue
		}
		// ends are the outcomes of a packet to which the rule applies, unless it goes on with the next
		// rule.
		var ends outcomes
		asksNext := false
		switch rule.Verdict {
		case Accept:
			ends = accepted
		case Drop:
			ends = dropped
		case Return:
			ends = goesOn
		case Goto:
			ends = w.outcome(table, rule.Target, p, depth+1)
		case Jump:
			ends = w.outcome(table, rule.Target, p, depth+1)
			asksNext = ends&goesOn != 0
			ends &^= goesOn
		case Undecided:
			ends, asksNext = accepted|dropped, true
		case Continue:
			asksNext = true
		}
		out |= ends
		if all == yes && !asksNext {
			return out
		}
	}
	return out | goesOn
}

// drops reports whether a packet is certainly dropped in a base chain.
func (w firewall) drops(c Chain, p flow) bool {
	out := w.outcome(c.Table, c.Name, p, 0)
	if out&goesOn != 0 {
		out &^= goesOn
		if c.Drop {
			out |= dropped
		} else {
			out |= accepted
		}
	}
	return out == dropped
}

// flows returns the flows that have to pass this node: between pods and peers, opened by either.
func flows(f *Fabric, o *Observed) []flow {
	var out []flow
	for _, six := range []bool{false, true} {
		pod, link := podOf(f, o, six)
		reach := only(f.reach(), six)
		if !pod.IsValid() || len(reach) == 0 {
			continue
		}
		leave := flow{six: six, in: link, out: f.Device, source: pod, destination: reach[0]}
		enter := flow{six: six, in: f.Device, out: link, source: reach[0], destination: pod}
		for _, state := range []uint32{stateNew, stateEstablished} {
			leave.state, enter.state = state, state
			what := map[uint32]string{stateNew: "connections", stateEstablished: "answers"}[state]
			leave.text, enter.text = what+" from pods into the tunnel", what+" from the tunnel to pods"
			out = append(out, leave, enter)
		}
	}
	return out
}

// podOf returns a pod of this node, or the prefix of its pods, and the interface that leads there;
// invalid and empty if they are not known.
func podOf(f *Fabric, o *Observed, six bool) (where netip.Prefix, link string) {
	near := only(f.podPrefixes(), six)
	for _, a := range o.Pods {
		if a.Is6() == six {
			near = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
			break
		}
	}
	if len(near) == 0 {
		return netip.Prefix{}, ""
	}
	longest := -1
	for _, r := range o.Routes {
		leads := slices.ContainsFunc(near, func(p netip.Prefix) bool { return covers(p, r.Prefix) || p.IsSingleIP() && covers(r.Prefix, p) })
		if leads && r.Table == tableMain && !r.isDefault() && !r.Local && r.Device != "" && r.Prefix.Bits() > longest {
			link, longest = r.Device, r.Prefix.Bits()
		}
	}
	return near[0], link
}

func forward(f *Fabric, o *Observed) *Finding {
	all := firewall{}
	for _, c := range o.Chains {
		all[[2]string{c.Table, c.Name}] = c
	}
	var bad []string
	for _, c := range o.Chains {
		if !c.Base {
			continue
		}
		var lost []string
		for _, p := range flows(f, o) {
			if (p.six && c.Six || !p.six && c.Four) && all.drops(c, p) && !slices.Contains(lost, p.text) {
				lost = append(lost, p.text)
			}
		}
		if len(lost) > 0 {
			bad = append(bad, fmt.Sprintf("chain %s of table %s drops %s", c.Name, c.Table, strings.Join(lost, ", ")))
		}
	}
	if len(bad) == 0 && o.Legacy {
		return found(ForwardDropped, Info, "this node has rules of the older iptables, which cannot be read from here and may drop the tunnels' packets",
			fmt.Sprintf("see `iptables-legacy -S FORWARD` on the node; what passes %s has to be accepted there", f.Device))
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return found(ForwardDropped, Error, "this node's firewall does not let the tunnels' packets pass: "+some(bad),
		fmt.Sprintf("let them pass there, and have the firewall keep it so: with iptables `iptables -I FORWARD -i %[1]s -j ACCEPT` and `iptables -I FORWARD -o %[1]s -j ACCEPT`, and ip6tables likewise for pods with IPv6; "+
			"with firewalld `firewall-cmd --permanent --zone=trusted --add-interface=%[1]s` and the pods' prefixes as sources of that zone. What peers may reach the fabric's own rules decide", f.Device))
}

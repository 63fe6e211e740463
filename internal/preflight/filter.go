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
	// Four and Six say of which families packets come here.
	Four, Six bool
	// Base says that forwarded packets begin here; Drop, that what gets to the end of it is
	// dropped.
	Base, Drop bool
	Rules      []FilterRule
}

// FilterRule is what happens to packets that pass all of its tests.
type FilterRule struct {
	Tests   []Test
	Verdict Verdict
	// Target is the chain of a jump or goto.
	Target string
}

// Verdict is what becomes of a packet.
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

// Key is what a test looks at.
type Key int

// The keys.
const (
	// Other is something that cannot be told beforehand.
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
	// Never is what the packets in question do not have: they are not to the node's own
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
	// Name is an interface, or the beginning of some and *.
	Name   string
	Prefix netip.Prefix
	Bits   uint32
	Any    []Test
}

// flow is packets of which the firewall is asked whether they pass. They are TCP.
type flow struct {
	// text is what they are to people.
	text string
	six  bool
	// in and out are interfaces; empty is not known.
	in, out string
	// source and destination are where the addresses are; invalid is not known.
	source, destination netip.Prefix
	state               uint32
}

// answer is whether a packet passes a test.
type answer int

const (
	no answer = iota
	maybe
	yes
)

func (t Test) passes(p flow) answer {
	var a answer
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

func decided(is bool) answer {
	if is {
		return yes
	}
	return no
}

func nameMatches(pattern, name string) answer {
	if name == "" {
		return maybe
	}
	if start, ok := strings.CutSuffix(pattern, "*"); ok {
		return decided(strings.HasPrefix(name, start))
	}
	return decided(name == pattern)
}

func prefixMatches(test, where netip.Prefix) answer {
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

// outcomes is what may become of a packet, a set.
type outcomes int

const (
	accepted outcomes = 1 << iota
	dropped
	goesOn
	anything = accepted | dropped | goesOn
)

// firewall is chains by table and name.
type firewall map[[2]string]Chain

// outcome is what may become of a packet in a chain; goesOn is the end of it, or a return.
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
		// ends is what becomes of a packet to which the rule applies, unless the next rule
		// is asked.
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

// drops says whether a packet is certainly dropped in a chain where packets begin.
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

// flows is what has to pass this node: of pods to peers and back, begun by either.
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

// podOf is a pod of this node, or where its pods are, and the interface that leads there;
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

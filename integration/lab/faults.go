package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of faults.
const maxDelay = time.Minute

// Pair is two clusters, by name, the lesser name first.
type Pair struct {
	A string `json:"a"`
	B string `json:"b"`
}

// NewPair orders two clusters' names.
func NewPair(a, b string) Pair {
	if b < a {
		a, b = b, a
	}
	return Pair{A: a, B: b}
}

// PairFault is a fault of the internet between two clusters, both ways alike.
type PairFault struct {
	Pair
	// Cut loses all packets.
	Cut bool `json:"cut,omitempty"`
	// LossPercent of the packets are lost, 0 to 100, in steps of 0.01.
	LossPercent float64 `json:"lossPercent,omitempty"`
	// Delay is added to each packet's way; a round trip takes twice as long.
	Delay time.Duration `json:"delay,omitempty"`
}

// Faults are all faults of a lab's internet.
type Faults struct {
	Pairs []PairFault `json:"pairs,omitempty"`
	// NAT lists the clusters behind address translation: they can dial out, but not be dialled.
	NAT []string `json:"nat,omitempty"`
}

// FaultRequest is one change of the Faults. Kind is cut, heal, loss, delay,
// nat or nonat. Without A, heal is for all faults; with A alone, for all that
// A is part of.
type FaultRequest struct {
	Kind        string        `json:"kind"`
	A           string        `json:"a,omitempty"`
	B           string        `json:"b,omitempty"`
	LossPercent float64       `json:"lossPercent,omitempty"`
	Delay       time.Duration `json:"delay,omitempty"`
}

// with returns the faults after the change r. Cluster names are the plan's.
func (f Faults) with(p Plan, r FaultRequest) (Faults, error) {
	names, err := r.names(p)
	if err != nil {
		return f, err
	}
	if p.Options.LAN == SharedLAN && (r.Kind == "nat" || r.Kind == "delay") {
		return f, fmt.Errorf("%s: the clusters of lab %s share a LAN, where no router is between them that could do it; cut and loss work", r.Kind, p.Options.Name)
	}
	f = Faults{Pairs: slices.Clone(f.Pairs), NAT: slices.Clone(f.NAT)}
	switch r.Kind {
	case "heal":
		f.Pairs = slices.DeleteFunc(f.Pairs, func(x PairFault) bool {
			switch len(names) {
			case 0:
				return true
			case 1:
				return x.A == names[0] || x.B == names[0]
			}
			return x.Pair == NewPair(names[0], names[1])
		})
		if len(names) < 2 {
			f.NAT = slices.DeleteFunc(f.NAT, func(n string) bool { return len(names) == 0 || n == names[0] })
		}
	case "nat", "nonat":
		f.NAT = slices.DeleteFunc(f.NAT, func(n string) bool { return n == names[0] })
		if r.Kind == "nat" {
			f.NAT = append(f.NAT, names[0])
			slices.Sort(f.NAT)
		}
	case "cut":
		f.pair(names).Cut = true
	case "loss":
		if !(r.LossPercent >= 0 && r.LossPercent <= 100) {
			return f, fmt.Errorf("loss of %v percent: want 0 to 100", r.LossPercent)
		}
		f.pair(names).LossPercent = r.LossPercent
	case "delay":
		if r.Delay < 0 || r.Delay > maxDelay {
			return f, fmt.Errorf("delay of %v: want 0 to %v", r.Delay, maxDelay)
		}
		f.pair(names).Delay = r.Delay
	}
	f.Pairs = slices.DeleteFunc(f.Pairs, func(x PairFault) bool { return x == PairFault{Pair: x.Pair} })
	return f, nil
}

// names resolves the request's clusters and checks that their number fits.
func (r FaultRequest) names(p Plan) ([]string, error) {
	var names []string
	for _, n := range []string{r.A, r.B} {
		if n == "" {
			continue
		}
		c, err := p.Cluster(n)
		if err != nil {
			return nil, err
		}
		names = append(names, c.Name)
	}
	least, most := 2, 2
	switch r.Kind {
	case "heal":
		least = 0
	case "nat", "nonat":
		least, most = 1, 1
	case "cut", "loss", "delay":
	default:
		return nil, fmt.Errorf("unknown fault %q", r.Kind)
	}
	if len(names) < least || len(names) > most {
		return nil, fmt.Errorf("%s: want %d to %d clusters, have %d", r.Kind, least, most, len(names))
	}
	if len(names) == 2 && names[0] == names[1] {
		return nil, fmt.Errorf("%s: want two clusters, have %s twice", r.Kind, names[0])
	}
	return names, nil
}

// pair finds or makes the entry for two clusters.
func (f *Faults) pair(names []string) *PairFault {
	p := NewPair(names[0], names[1])
	for i := range f.Pairs {
		if f.Pairs[i].Pair == p {
			return &f.Pairs[i]
		}
	}
	f.Pairs = append(f.Pairs, PairFault{Pair: p})
	return &f.Pairs[len(f.Pairs)-1]
}

// String describes the fault, for people.
func (f PairFault) String() string {
	var what []string
	if f.Cut {
		what = append(what, "cut")
	}
	if f.LossPercent > 0 {
		what = append(what, fmt.Sprintf("loss %g%%", f.LossPercent))
	}
	if f.Delay > 0 {
		what = append(what, fmt.Sprintf("delay %v each way", f.Delay))
	}
	return f.A + " - " + f.B + ": " + strings.Join(what, ", ")
}

// routerRules renders the nftables rule set of the router: what is cut, what is lost, and which
// clusters are behind NAT. It replaces the previous rules in one step.
func routerRules(p Plan, f Faults) string {
	var b strings.Builder
	b.WriteString("table inet lab\ndelete table inet lab\ntable inet lab {\n")
	b.WriteString("  chain forward {\n    type filter hook forward priority filter; policy accept;\n")
	f.eachWay(p, func(x PairFault, from, to ClusterPlan) {
		match := fmt.Sprintf("iifname %s oifname %s", from.lanNames(), to.lanNames())
		if p.Options.LAN == SharedLAN { // after one of them moved
			match = fmt.Sprintf("ip saddr { %s } ip daddr { %s }", p.own4(from), p.own4(to))
		}
		x.drop(&b, match)
	})
	for _, n := range f.NAT {
		if c, err := p.Cluster(n); err == nil {
			fmt.Fprintf(&b, "    oifname %s iifname != %s ct state != { established, related } counter drop\n", c.lanNames(), c.lanNames())
		}
	}
	b.WriteString("  }\n  chain input {\n    type filter hook input priority filter; policy accept;\n")
	for _, n := range f.NAT {
		if c, err := p.Cluster(n); err == nil {
			fmt.Fprintf(&b, "    ip daddr %s counter drop\n", c.Public)
		}
	}
	b.WriteString("  }\n")
	if len(f.NAT) > 0 {
		b.WriteString("  chain postrouting {\n    type nat hook postrouting priority srcnat; policy accept;\n")
		for _, n := range f.NAT {
			if c, err := p.Cluster(n); err == nil {
				// Ports change too, as behind the worse kind of home router.
				// IPv6 has only the filter above, as behind most of them.
				for _, s := range c.lans() {
					if s.Prefix.IsValid() {
						fmt.Fprintf(&b, "    ip saddr %s oifname != %s snat ip to %s fully-random\n", s.Prefix, c.lanNames(), c.Public)
					}
				}
			}
		}
		b.WriteString("  }\n")
	}
	b.WriteString("}\n")
	if p.Options.LAN == SharedLAN {
		b.WriteString(bridgeRules(p, f))
	}
	return b.String()
}

// bridgeRules cut and lose packets between clusters on one LAN, multicast too.
func bridgeRules(p Plan, f Faults) string {
	var b strings.Builder
	b.WriteString("table bridge lab\ndelete table bridge lab\ntable bridge lab {\n")
	b.WriteString("  chain forward {\n    type filter hook forward priority filter; policy accept;\n")
	f.eachWay(p, func(x PairFault, from, to ClusterPlan) {
		x.drop(&b, fmt.Sprintf("iifname %q oifname %q", fmt.Sprintf("n%d-*", from.Index), fmt.Sprintf("n%d-*", to.Index)))
	})
	b.WriteString("  }\n}\n")
	return b.String()
}

// eachWay calls do for both ways of each pair of clusters that the plan has.
func (f Faults) eachWay(p Plan, do func(x PairFault, from, to ClusterPlan)) {
	for _, x := range f.Pairs {
		a, errA := p.Cluster(x.A)
		b, errB := p.Cluster(x.B)
		if errA == nil && errB == nil {
			do(x, a, b)
			do(x, b, a)
		}
	}
}

// drop writes the rule that loses what matches.
func (f PairFault) drop(b *strings.Builder, match string) {
	switch {
	case f.Cut:
		fmt.Fprintf(b, "    %s counter drop\n", match)
	case f.LossPercent > 0:
		fmt.Fprintf(b, "    %s numgen random mod 10000 < %d counter drop\n", match, int(f.LossPercent*100+0.5))
	}
}

// lanNames are the interfaces of the cluster's LANs for a rule.
func (c ClusterPlan) lanNames() string {
	lans := c.lans()
	if len(lans) == 1 {
		return fmt.Sprintf("%q", lans[0].Name)
	}
	var names []string
	for _, s := range lans {
		names = append(names, fmt.Sprintf("%q", s.Name))
	}
	return "{ " + strings.Join(names, ", ") + " }"
}

// own4 lists a cluster's own IPv4 prefixes for a rule.
func (p Plan) own4(c ClusterPlan) string {
	var all []string
	for _, o := range p.own(c) {
		if o.Addr().Is4() {
			all = append(all, o.String())
		}
	}
	return strings.Join(all, ", ")
}

// delayRules renders, for iptables-restore, the rules that hand delayed packets
// to this process. (Not nftables: kernels without its queue expression are
// common, and this one serves them all.) Should the process be gone, packets
// pass.
func delayRules(p Plan, f Faults) string {
	var b strings.Builder
	b.WriteString("*mangle\n:FORWARD ACCEPT [0:0]\n")
	f.eachWay(p, func(x PairFault, from, to ClusterPlan) {
		if x.Delay > 0 && !x.Cut {
			for _, in := range from.lans() {
				for _, out := range to.lans() {
					fmt.Fprintf(&b, "-A FORWARD -i %s -o %s -j NFQUEUE --queue-num %d --queue-bypass\n", in.Name, out.Name, queueNumber(from, to))
				}
			}
		}
	})
	b.WriteString("COMMIT\n")
	return b.String()
}

// queueNumber is the netfilter queue of the packets between two clusters.
func queueNumber(a, b ClusterPlan) uint16 {
	if a.Index > b.Index {
		a, b = b, a
	}
	return uint16(a.Index*(maxClusters+1) + b.Index)
}

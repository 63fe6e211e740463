package matrix

import (
	"fmt"
	"slices"
	"strings"

	"github.com/entente-dev/entente/integration/lab"
)

const intro = `# What reaches what

Generated from what the tests of ` + "`integration/matrix`" + ` try; ` + "`go test ./matrix -update`" + ` in ` + "`integration`" + ` writes it.

Three clusters of two nodes each peer with each other, two of them in-band, and each runs pods at the next. In each cluster one
node is a gateway, and the other is not. Each *yes* is a TCP connection on which the answer named the
pod that was meant. *gateway* and *other* are the node of the source (rows) and of the pod that answers
(columns).

Pods of one cluster in two others reach each other through their home, or directly where these two peer, if all three
agree: that is off by default, and not in these tables ([how](design/0039-pods-of-one-cluster-in-two-others.md)).
`

// Page is docs/reachability.md.
func Page() string {
	var b strings.Builder
	b.WriteString(intro)
	var reasons []string
	for _, direction := range directions() {
		fmt.Fprintf(&b, "\n## %s\n\n", strings.ToUpper(string(direction[:1]))+string(direction[1:]))
		reasons = table(&b, direction, reasons)
	}
	b.WriteString("\n## Why not\n\n")
	for i, reason := range reasons {
		fmt.Fprintf(&b, "%d. %s\n", i+1, reason)
	}
	b.WriteString("\n## Setups\n\nEach *yes* is tried in each of these setups, between all pairs of clusters and so both in-band and\nout-of-band, by `make matrix`. The sample runs with every change. No setup sets\n`cluster.podCIDRs`: the prefixes of pools are learnt from the ConfigMap `kubeadm-config`, which says `podSubnet`\n([how](design/0048-prefixes-that-nobody-names.md)).\n\n")
	b.WriteString("| prefixes of the clusters | IP families | addresses of pods | kube-proxy | sample |\n| --- | --- | --- | --- | --- |\n")
	for _, s := range Setups() {
		sample := ""
		if s == Sample {
			sample = "yes"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", s.CIDRs, familiesText(s), ipamText(s.IPAM), s.Proxy, sample)
	}
	b.WriteString("\nIn dual-stack clusters each cell is tried over IPv4 and over IPv6. The sample tries each cell between one of the three pairs of clusters.\n")
	return b.String()
}

func familiesText(s Setup) string {
	var over []string
	for _, f := range s.Over() {
		over = append(over, string(f))
	}
	return strings.Join(over, " and ")
}

func ipamText(ipam lab.IPAM) string {
	if ipam == lab.NodeIPAM {
		return "of the node's `spec.podCIDRs`"
	}
	return "of blocks of a pool; nodes have no `spec.podCIDRs`"
}

// table writes the table of a direction. It returns the reasons with those that it added.
func table(b *strings.Builder, direction Direction, reasons []string) []string {
	b.WriteString("| from |")
	for _, to := range destinations() {
		for _, at := range places() {
			fmt.Fprintf(b, " %s, %s |", to, at)
		}
	}
	b.WriteString("\n| ---" + strings.Repeat(" | ---", len(destinations())*len(places())) + " |")
	row := ""
	for _, c := range Cells() {
		if c.Direction != direction {
			continue
		}
		if now := fmt.Sprintf("%s, %s", c.Source, c.From); now != row {
			row = now
			fmt.Fprintf(b, "\n| %s |", row)
		}
		why := c.Impossible()
		if why == "" {
			b.WriteString(" yes |")
			continue
		}
		i := slices.Index(reasons, why)
		if i < 0 {
			i, reasons = len(reasons), append(reasons, why)
		}
		fmt.Fprintf(b, " no (%d) |", i+1)
	}
	b.WriteString("\n")
	return reasons
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) infoCommand() *cobra.Command {
	cmd := a.command(&cobra.Command{Use: "info", Short: "Show the state of this cluster and of its peerings"}, func(ctx context.Context, r *run) error {
		info, err := r.self(ctx)
		if err != nil {
			return err
		}
		peers, err := r.peers(ctx)
		if err != nil {
			return err
		}
		pending, err := r.requests(ctx, format.AnyPeer)
		if err != nil {
			return err
		}
		wrong := format.Problems(info, peers)
		if r.output.Structured() {
			v, err := format.InfoValue(info, peers, len(pending), wrong)
			if err != nil {
				return err
			}
			if err := r.writeValue(v); err != nil {
				return err
			}
		} else {
			a.printInfo(info, peers, len(pending))
		}
		return exit.Problems(wrong)
	}, printer.FormTable)
	cmd.AddCommand(a.infoPeerCommand())
	return cmd
}

func (a *app) printInfo(info *ententev1.GetInfoResponse, peers []*ententev1.Peer, pending int) {
	t := a.table()
	t.Row("Cluster", info.GetClusterName())
	t.Row("ID", info.GetClusterId())
	t.Row("Agent", info.GetVersion())
	t.Row("Reachable at", cmp.Or(strings.Join(info.GetEndpoints(), ", "), "nowhere: this cluster dials"))
	for _, p := range info.GetDnsPublications() {
		t.Row("Published in DNS", a.publicationText(p))
	}
	domains := info.GetDnsDomains()
	for _, d := range domains[:min(len(domains), infoDomains)] {
		t.Row("Looks into", a.domainText(d))
	}
	if n := len(domains) - infoDomains; n > 0 {
		t.Row("", fmt.Sprintf("%d more: see `entente info --get cluster.dnsDomains`", n))
	}
	if by := info.GetPlacement(); by != "" {
		t.Row("Pods placed by", placementText(by))
	}
	if len(info.GetPodPrefixes()) > 0 {
		t.Row("Pod prefixes", podPrefixText(info.GetPodPrefixes(), info.GetPodPrefixSources()))
	}
	if info.GetRootExpireTime() != nil {
		t.Row("Root valid until", format.Moment(info.GetRootExpireTime()))
	}
	known := slices.DeleteFunc(slices.Clone(peers), format.IsHint)
	t.Row("Peers", fmt.Sprint(len(known)))
	if n := len(peers) - len(known); n > 0 {
		t.Row("Discovered", fmt.Sprintf("%d more: see `entente discover`", n))
	}
	if pending > 0 {
		t.Row("To approve", fmt.Sprintf("requests: %d; see `entente requests`", pending))
	}
	t.Flush()
	if len(known) == 0 {
		return
	}
	peers = known
	_, _ = fmt.Fprintln(a.out)
	t = a.table("NAME", "ROLE", "TRUSTED", "CONNECTED", "NETWORK", "OFFLOADING", "PODS", "AGE")
	for _, p := range peers {
		_, pods := format.NodesAndPods(format.OpenContracts(p, ""))
		t.Row(format.ShortName(p), p.GetRole(), format.TrustStatus(p), format.StatusOf(p, v1alpha1.ConditionConnected), format.NetworkStatus(p), format.OffloadingStatus(p),
			fmt.Sprint(pods), a.since(p.GetCreateTime()))
	}
	t.Flush()
	for _, p := range peers {
		if format.TrustStatus(p) == "waiting" {
			a.next("\n%s waits for approval; see its code with:\n  entente info peer %s", format.ShortName(p), format.ShortName(p))
		}
	}
}

// placementText says what places pods of offloaded namespaces. What is wrong with it is among the problems.
func placementText(by string) string {
	if version, is := strings.CutPrefix(by, v1alpha1.PlacedByPolicy); is {
		return "a MutatingAdmissionPolicy (" + version + "), in the API server"
	}
	switch by {
	case v1alpha1.PlacedByWebhook:
		return "a webhook, the agent: this API server has no MutatingAdmissionPolicy, or the chart's placement.by chose it"
	case v1alpha1.PlacedByNothing:
		return "nothing: placement.enabled of the chart is false, and pods go abroad only if they tolerate virtual nodes themselves"
	}
	return by
}

// podPrefixText lists the prefixes of pods, and says from where they are known.
func podPrefixText(prefixes, sources []string) string {
	text := strings.Join(prefixes[:min(len(prefixes), infoPrefixes)], ", ")
	if n := len(prefixes) - infoPrefixes; n > 0 {
		text += fmt.Sprintf(" and %d more (`entente info --get cluster.podPrefixes`)", n)
	}
	if len(sources) > 0 {
		text += ", by " + strings.Join(sources, ", ")
	}
	return text
}

// publicationText says where and under which name a cluster is to be published in DNS, and
// whether it is.
func (a *app) publicationText(p *ententev1.DNSPublication) string {
	text := fmt.Sprintf("in %s as %q, never confirmed", p.GetDomain(), p.GetInstance())
	if at := p.GetLastConfirmedTime(); at != nil {
		text = fmt.Sprintf("in %s as %q, confirmed %s ago", p.GetDomain(), p.GetInstance(), a.since(at))
	}
	if p.GetRemoving() {
		text += ", to be removed"
	}
	if p.GetProblem() != "" {
		text += ": see what is wrong below"
	}
	return text
}

// domainText says what discovery finds in a domain, or why it finds nothing.
func (a *app) domainText(d *ententev1.DNSDomain) string {
	text := d.GetDomain() + ", never answered"
	if at := d.GetLastResponseTime(); at != nil {
		text = fmt.Sprintf("%s, answered %s ago, clusters: %d", d.GetDomain(), a.since(at), d.GetClusters())
	}
	if d.GetError() != "" {
		text += fmt.Sprintf("; has failed for %s: %s", a.since(d.GetErrorStartTime()), d.GetError())
	}
	if len(d.GetProblems()) > 0 || d.GetOmitted() > 0 {
		text += "; some records are unusable: see `entente info --get cluster.dnsDomains`"
	}
	return text
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) infoPeerCommand() *cobra.Command {
	return a.command(&cobra.Command{
		Use:   "peer [PEER...]",
		Short: "Show all about peers, by name or cluster ID",
		Long: `Show all about peers, by name or cluster ID; all of them if none is named: how each
hop of the peering is and why, the session, the tunnel, the contracts, what the peer
offers this cluster, and which of its Services this cluster may import. This
version only lists those; it makes no Service here that reaches them.

As JSON and YAML one named peer is an object, otherwise it is a list. --get prints
one field of that.`,
		Example: indent(`entente info peer
entente info peer office
entente info peer office --get tunnel.roundTrip
entente info peer office --get 'labels["topology.kubernetes.io/region"]'
entente info peer office lab -o json`),
	}, func(ctx context.Context, r *run) error {
		peers, err := named(r.argv, func(name string) (*ententev1.Peer, error) {
			resp, err := r.admin.GetPeer(ctx, &ententev1.GetPeerRequest{Name: peerName(name)})
			return resp.GetPeer(), r.call("get peer "+name, err)
		}, func() ([]*ententev1.Peer, error) { return r.peers(ctx) })
		if err != nil {
			return err
		}
		if r.output.Structured() && len(r.argv) == 1 {
			return r.write(peers[0])
		}
		none := "Make a token in one cluster and redeem it in the other:\n  entente token create\n  entente join <token>"
		if r.output.Structured() || len(peers) == 0 {
			return printList(r, peers, "No peers yet.", none, nil)
		}
		own, err := r.self(ctx)
		if err != nil {
			return err
		}
		for i, p := range peers {
			if i > 0 {
				_, _ = fmt.Fprintln(a.out)
			}
			a.printPeer(p, own.GetProtocol())
		}
		return nil
	}, printer.FormTable)
}

// printPeer prints a peer; own is the protocol revision of this cluster's agent.
func (a *app) printPeer(p *ententev1.Peer, own uint32) {
	t := a.table()
	t.Row("Name", format.ShortName(p))
	t.Row("Cluster ID", p.GetClusterId())
	t.Row("Role", p.GetRole())
	t.Row("Protocol", format.Protocols(p.GetProtocol(), own))
	at := "nowhere: it dials this cluster"
	if p.GetInBand() {
		at = "in-band: through the tunnel alone"
	}
	t.Row("Reachable at", cmp.Or(strings.Join(p.GetEndpoints(), ", "), at))
	t.Fact("Found by", format.FoundBy(p))
	for _, m := range p.GetSightings() {
		t.Row("Seen by discovery", format.FoundText(m), format.EndpointText(m))
	}
	if policy := p.GetLabels()["entente.dev/automatic"]; policy != "" {
		t.Row("Peered by", "the policy "+policy)
	}
	t.Fact("Decision", p.GetDecision())
	switch {
	case p.GetCode() == "" || format.IsTrue(p, "Trusted"):
	case p.GetDecision() == "":
		t.Row("Code", format.Code(p), "compare it with the other side's before you approve")
	case p.GetDecision() == "Approved":
		t.Row("Code", format.Code(p), "the other side compares it before it approves")
	}
	t.Fact("Labels", format.Pairs(p.GetLabels()))
	t.Row("Age", a.since(p.GetCreateTime()))
	t.Flush()
	for _, part := range []struct {
		name  string
		print func(*printer.Table, *ententev1.Peer)
	}{
		{"Conditions", printConditions},
		{"Session", a.printSession},
		{"Tunnel", a.printTunnel},
		{"Contracts", printContracts},
		{"Offer", printOffer},
		{"Services for import", printServices},
	} {
		t := a.table()
		part.print(t, p)
		t.FlushUnder(part.name)
	}
}

func printConditions(t *printer.Table, p *ententev1.Peer) {
	for _, c := range p.GetConditions() {
		t.Row("  "+c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage())
	}
}

func (a *app) printSession(t *printer.Table, p *ententev1.Peer) {
	s := p.GetSession()
	if s == nil {
		return
	}
	by := "the peer dialled"
	switch {
	case s.GetDialled() && (s.GetInBand() || s.GetThrough() != ""):
		by = "dialled"
	case s.GetDialled():
		by = "dialled " + s.GetEndpoint()
	}
	if s.GetInBand() {
		by += ", in-band: inside the tunnel"
	}
	if s.GetThrough() != "" {
		by += ", through peer " + s.GetThrough() + ", which sees what passes encrypted only"
	}
	t.Row("  Up", "for "+a.since(s.GetSince()), by)
	if s.GetRoundTrip() != nil {
		t.Row("  Round trip", s.GetRoundTrip().AsDuration().Round(10*time.Microsecond).String())
	}
	if skew := s.GetClockSkew().AsDuration(); skew != 0 {
		t.Row("  Clock", "the peer's is "+skew.String()+" ahead")
	}
	if s.GetCertificateExpireTime() != nil {
		t.Row("  Certificate", "holds until "+format.Moment(s.GetCertificateExpireTime()))
	}
}

func (a *app) printTunnel(t *printer.Table, p *ententev1.Peer) {
	tunnel := p.GetTunnel()
	if tunnel == nil {
		return
	}
	t.Row("  Up", format.YesNo(tunnel.GetUp()))
	t.Row("  Carried by", cmp.Or(tunnel.GetBackend(), "-"))
	t.Row("  Endpoint", cmp.Or(tunnel.GetEndpoint(), "-"))
	if tunnel.GetRoundTrip() != nil {
		t.Row("  Round trip", tunnel.GetRoundTrip().AsDuration().Round(10*time.Microsecond).String())
	}
	if k := tunnel.GetPresharedKey(); k != nil {
		t.Row("  Preshared key", fmt.Sprintf("no. %d, for %s", k.GetNumber()+1, a.since(k.GetUseTime())))
		t.Fact("  ", k.GetMessage())
	}
	for _, prefix := range slices.Sorted(maps.Keys(tunnel.GetRemotePrefixes())) {
		t.Row("  Its "+prefix, "is "+tunnel.GetRemotePrefixes()[prefix]+" here")
	}
	for _, prefix := range slices.Sorted(maps.Keys(tunnel.GetLocalPrefixes())) {
		t.Row("  Our "+prefix, "is "+tunnel.GetLocalPrefixes()[prefix]+" there")
	}
}

func printContracts(t *printer.Table, p *ententev1.Peer) {
	open := format.OpenContracts(p, "")
	for _, c := range open {
		t.Row("  "+c.GetContractId(), c.GetRole(), c.GetPhase(), format.Amounts(c.GetResources()), format.Cost(c),
			"used "+format.Amounts(c.GetUsed()), format.CountPods(int(c.GetPods())), format.NodeOf(c))
	}
	if over := len(p.GetContracts()) - len(open); over > 0 {
		t.Row(fmt.Sprintf("  and %d over; see `entente contract list --peer %s`", over, format.ShortName(p)))
	}
}

func printOffer(t *printer.Table, p *ententev1.Peer) {
	o := p.GetOffer()
	if o == nil {
		return
	}
	lent := format.LentBy(p)
	t.Fact("  Granted already", lent)
	switch {
	case !o.GetAvailable() && lent != "":
		t.Row("  Nothing more now", o.GetMessage())
		return
	case !o.GetAvailable():
		t.Row("  Nothing now", o.GetMessage())
		return
	}
	what := "  Resources"
	if lent != "" {
		what = "  More now"
	}
	t.Row(what, format.Amounts(o.GetResources()))
	t.Fact("  Note", o.GetMessage())
	t.Row("  Price", format.Prices(o.GetPrice()))
	t.Row("  Duration", "at most "+format.Span(o.GetDuration(), "as long as you like"))
	t.Fact("  Architectures", strings.Join(o.GetArchitectures(), ", "))
	t.Fact("  Storage classes", strings.Join(o.GetStorageClasses(), ", "))
	t.Fact("  Node labels", format.Pairs(o.GetNodeLabels()))
}

// printServices lists what the peer lets this cluster import, whether or not it
// lends anything now.
func printServices(t *printer.Table, p *ententev1.Peer) {
	for _, s := range p.GetOffer().GetServices() {
		var ports []string
		for _, port := range s.GetPorts() {
			text := fmt.Sprintf("%d/%s", port.GetPort(), port.GetProtocol())
			if port.GetName() != "" {
				text = port.GetName() + " " + text
			}
			if port.GetAppProtocol() != "" {
				text += " (" + port.GetAppProtocol() + ")"
			}
			ports = append(ports, text)
		}
		t.Row("  "+s.GetNamespace()+"/"+s.GetName(), s.GetType(), cmp.Or(strings.Join(ports, ", "), "no ports"))
	}
}

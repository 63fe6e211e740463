package format

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// PrintPeer prints a peer in several tables; own is the protocol revision of this cluster's agent.
func PrintPeer(table func() *printer.Table, now time.Time, p *ententev1.Peer, own uint32) {
	t := table()
	t.Row("Name", ShortName(p))
	t.Row("Cluster ID", p.GetClusterId())
	t.Row("Role", p.GetRole())
	t.Row("Protocol", protocols(p.GetProtocol(), own))
	at := "nowhere: it dials this cluster"
	if p.GetInBand() {
		at = "in-band: only through the tunnel"
	}
	t.Row("Reachable at", cmp.Or(strings.Join(p.GetEndpoints(), ", "), at))
	t.Fact("Found by", FoundBy(p))
	for _, m := range p.GetSightings() {
		t.Row("Seen by discovery", FoundText(m), EndpointText(m))
	}
	if policy := p.GetLabels()[v1alpha1.LabelAutomatic]; policy != "" {
		t.Row("Peered by", "the policy "+policy)
	}
	t.Fact("Decision", p.GetDecision())
	switch {
	case p.GetCode() == "" || IsTrue(p, v1alpha1.ConditionTrusted):
	case p.GetDecision() == "":
		t.Row("Code", Code(p), "compare it with the other side's before you approve")
	case p.GetDecision() == string(v1alpha1.DecisionApproved):
		t.Row("Code", Code(p), "the other side compares it before it approves")
	}
	t.Fact("Labels", Pairs(p.GetLabels()))
	t.Row("Age", Since(now, p.GetCreateTime()))
	t.Flush()
	for _, part := range []struct {
		name  string
		print func(*printer.Table, *ententev1.Peer)
	}{
		{"Conditions", printConditions},
		{"Session", func(t *printer.Table, p *ententev1.Peer) { printSession(t, now, p.GetSession()) }},
		{"Tunnel", func(t *printer.Table, p *ententev1.Peer) { printTunnel(t, now, p.GetTunnel()) }},
		{"Contracts", printContracts},
		{"Offered by " + ShortName(p), printOffer},
		{"Services for import", printServices},
	} {
		t := table()
		part.print(t, p)
		t.FlushUnder(part.name)
	}
}

func printConditions(t *printer.Table, p *ententev1.Peer) {
	for _, c := range p.GetConditions() {
		t.Row("  "+c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage())
	}
}

func printSession(t *printer.Table, now time.Time, s *ententev1.Session) {
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
		by += ", through peer " + s.GetThrough() + ", which sees only encrypted traffic"
	}
	t.Row("  Up", "for "+Since(now, s.GetSince()), by)
	if s.GetRoundTrip() != nil {
		t.Row("  Round trip", s.GetRoundTrip().AsDuration().Round(10*time.Microsecond).String())
	}
	if skew := s.GetClockSkew().AsDuration(); skew != 0 {
		t.Row("  Clock", "the peer's is "+skew.String()+" ahead")
	}
	if s.GetCertificateExpireTime() != nil {
		t.Row("  Certificate", "valid until "+Moment(s.GetCertificateExpireTime()))
	}
}

func printTunnel(t *printer.Table, now time.Time, tunnel *ententev1.Tunnel) {
	if tunnel == nil {
		return
	}
	t.Row("  Up", YesNo(tunnel.GetUp()))
	t.Row("  Carried by", cmp.Or(tunnel.GetBackend(), "-"))
	t.Row("  Endpoint", cmp.Or(tunnel.GetEndpoint(), "-"))
	if tunnel.GetRoundTrip() != nil {
		t.Row("  Round trip", tunnel.GetRoundTrip().AsDuration().Round(10*time.Microsecond).String())
	}
	if k := tunnel.GetPresharedKey(); k != nil {
		t.Row("  Preshared key", fmt.Sprintf("no. %d, for %s", k.GetNumber()+1, Since(now, k.GetFirstUseTime())))
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
	open := OpenContracts(p, "")
	for _, c := range open {
		t.Row("  "+c.GetContractId(), c.GetRole(), c.GetPhase(), OfPool(c.GetPool(), Amounts(c.GetResources())), Cost(c),
			"used "+Amounts(c.GetUsed()), Count(int(c.GetPods()), "pod"), nodeOf(c))
	}
	if over := len(p.GetContracts()) - len(open); over > 0 {
		t.Row(fmt.Sprintf("  and %d over; see `entente contract list --peer %s`", over, ShortName(p)))
	}
}

func printOffer(t *printer.Table, p *ententev1.Peer) {
	o := p.GetOffer()
	if o == nil {
		return
	}
	granted := grantedBy(p)
	t.Fact("  Granted already", granted)
	for _, pool := range o.GetPools() {
		if len(pool.GetResources().GetAmounts()) == 0 {
			t.Row("  Pool "+pool.GetName(), "nothing more now")
			continue
		}
		t.Row("  Pool "+pool.GetName(), Amounts(pool.GetResources()), Prices(pool.GetPrice()), Pairs(pool.GetNodeLabels()))
	}
	switch {
	case !o.GetAvailable() && len(o.GetPools()) > 0:
		t.Row("  Without a pool", o.GetMessage())
		return
	case !o.GetAvailable() && granted != "":
		t.Row("  Nothing more now", o.GetMessage())
		return
	case !o.GetAvailable():
		t.Row("  Nothing now", o.GetMessage())
		return
	}
	what := "  Resources"
	if granted != "" {
		what = "  More now"
	}
	t.Row(what, Amounts(o.GetResources()))
	t.Fact("  Note", o.GetMessage())
	t.Row("  Price", Prices(o.GetPrice()))
	t.Row("  Duration", "at most "+Span(o.GetDuration(), "as long as you like"))
	t.Fact("  Architectures", strings.Join(o.GetArchitectures(), ", "))
	t.Fact("  Storage classes", strings.Join(o.GetStorageClasses(), ", "))
	t.Fact("  Node labels", Pairs(o.GetNodeLabels()))
}

// printServices lists the Services that the peer lets this cluster import, whether or not it
// offers anything now.
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

// InfoValue is the state of this cluster and of its peers, with the problems, as values.
func InfoValue(info *ententev1.GetInfoResponse, peers []*ententev1.Peer, pending int, wrong []string) (any, error) {
	cluster, err := printer.PlainJSON(info)
	if err != nil {
		return nil, err
	}
	list, err := printer.PlainList(peers)
	if err != nil {
		return nil, err
	}
	lines := make([]any, 0, len(wrong))
	for _, problem := range wrong {
		lines = append(lines, problem)
	}
	return map[string]any{"cluster": cluster, "peers": list, "pendingRequests": pending, "healthy": len(wrong) == 0, "problems": lines}, nil
}

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func (a *app) infoCommand() *cobra.Command {
	output := outputFlags{table: true}
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Tell how this cluster and its peerings are",
		Long: `Tell how this cluster and its peerings are. It exits with 3 if something is
unhealthy, so that it can be used in scripts.`,
		Example: indent(`entente info
entente info -o json
entente info --get cluster.clusterId
entente info peer office`),
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			c, err := a.local(cmd.Context())
			if err != nil {
				return err
			}
			defer c.done()
			info, err := c.admin.GetInfo(cmd.Context(), &ententev1.GetInfoRequest{})
			if err != nil {
				return c.call("reach the agent", err)
			}
			peers, err := c.peers(cmd.Context())
			if err != nil {
				return err
			}
			if output.structured() {
				v, err := infoValue(info, peers)
				if err != nil {
					return err
				}
				if err := output.printValue(a.out, v); err != nil {
					return err
				}
			} else {
				a.printInfo(info, peers)
			}
			return unhealthy(peers)
		},
	}
	output.add(cmd)
	output.addGet(cmd)
	cmd.AddCommand(a.infoPeerCommand())
	return cmd
}

func (a *app) infoPeerCommand() *cobra.Command {
	output := outputFlags{table: true}
	cmd := &cobra.Command{
		Use:   "peer [NAME...]",
		Short: "Tell all about peers, by name or cluster ID",
		Long: `Tell all about peers, by name or cluster ID; all of them if none is named.

As JSON and YAML one named peer is an object, otherwise it is a list. --get prints
one field of that.`,
		Example: indent(`entente info peer
entente info peer office
entente info peer office --get tunnel.roundTrip
entente info peer office lab -o json`),
		Args: args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if err := output.check(); err != nil {
				return err
			}
			c, err := a.local(cmd.Context())
			if err != nil {
				return err
			}
			defer c.done()
			peers, err := c.named(cmd.Context(), argv)
			if err != nil {
				return err
			}
			if !output.structured() {
				for i, p := range peers {
					if i > 0 {
						_, _ = fmt.Fprintln(a.out)
					}
					a.printPeer(p)
				}
				if len(peers) == 0 {
					_, _ = fmt.Fprintln(a.errOut, "No peers yet. Make a token in one cluster and redeem it in the other:\n  entente token create\n  entente join <token>")
				}
				return nil
			}
			if len(argv) == 1 {
				return output.print(a.out, peers[0])
			}
			list, err := values(peers)
			if err != nil {
				return err
			}
			return output.printValue(a.out, list)
		},
	}
	output.add(cmd)
	output.addGet(cmd)
	return cmd
}

// peers returns all peers.
func (c *cluster) peers(ctx context.Context) ([]*ententev1.Peer, error) {
	var all []*ententev1.Peer
	token := ""
	for {
		resp, err := c.admin.ListPeers(ctx, &ententev1.ListPeersRequest{PageSize: 500, PageToken: token})
		if err != nil {
			return nil, c.call("list peers", err)
		}
		all = append(all, resp.GetPeers()...)
		if token = resp.GetNextPageToken(); token == "" {
			return all, nil
		}
	}
}

// named returns the peers of these names, or all for none.
func (c *cluster) named(ctx context.Context, names []string) ([]*ententev1.Peer, error) {
	if len(names) == 0 {
		return c.peers(ctx)
	}
	var out []*ententev1.Peer
	for _, name := range names {
		resp, err := c.admin.GetPeer(ctx, &ententev1.GetPeerRequest{Name: "peers/" + name})
		if err != nil {
			return nil, c.call("get peer "+name, err)
		}
		out = append(out, resp.GetPeer())
	}
	return out, nil
}

func values(peers []*ententev1.Peer) ([]any, error) {
	list := make([]any, 0, len(peers))
	for _, p := range peers {
		v, err := plainJSON(p)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func infoValue(info *ententev1.GetInfoResponse, peers []*ententev1.Peer) (any, error) {
	cluster, err := plainJSON(proto.Message(info))
	if err != nil {
		return nil, err
	}
	list, err := values(peers)
	if err != nil {
		return nil, err
	}
	wrong := []any{}
	for _, p := range peers {
		for _, problem := range problems(p) {
			wrong = append(wrong, problem)
		}
	}
	return map[string]any{"cluster": cluster, "peers": list, "healthy": len(wrong) == 0, "problems": wrong}, nil
}

// problems is what is wrong with a peering: each hop that should be up and is
// not. A cluster that is known and not joined is not wrong.
func problems(p *ententev1.Peer) []string {
	if !isTrue(p, "Trusted") && len(p.GetContracts()) == 0 {
		return nil
	}
	hops := []string{"Trusted", "Connected"}
	if open := len(openContracts(p, "Consumer")) + len(openContracts(p, "Provider")); open > 0 {
		if conditionOf(p, "Network").GetReason() != "NotWanted" {
			hops = append(hops, "Network")
		}
		hops = append(hops, "Offloading")
	}
	var out []string
	for _, hop := range hops {
		if !isTrue(p, hop) {
			out = append(out, fmt.Sprintf("peer %s: %s is %s%s", shortName(p), hop, statusOf(p, hop), because(p, hop)))
		}
	}
	return out
}

// unhealthy is the error of a cluster with problems.
func unhealthy(peers []*ententev1.Peer) error {
	var all []string
	for _, p := range peers {
		all = append(all, problems(p)...)
	}
	if len(all) == 0 {
		return nil
	}
	return &codeError{exitUnhealthy, fmt.Errorf("unhealthy: %s", strings.Join(all, "; "))}
}

func statusOf(p *ententev1.Peer, kind string) string {
	if c := conditionOf(p, kind); c != nil {
		return c.GetStatus()
	}
	return "Unknown"
}

func (a *app) printInfo(info *ententev1.GetInfoResponse, peers []*ententev1.Peer) {
	w := table(a.out)
	row(w, "Cluster", info.GetClusterName())
	row(w, "ID", info.GetClusterId())
	row(w, "Agent", info.GetVersion())
	row(w, "Reachable at", orNone(strings.Join(info.GetEndpoints(), ", "), "nowhere: this cluster dials"))
	row(w, "Peers", fmt.Sprint(len(peers)))
	_ = w.Flush()
	if len(peers) == 0 {
		return
	}
	_, _ = fmt.Fprintln(a.out)
	w = table(a.out)
	row(w, "NAME", "ROLE", "TRUSTED", "CONNECTED", "NETWORK", "OFFLOADING", "PODS", "AGE")
	for _, p := range peers {
		_, consumed := nodesAndPods(openContracts(p, "Consumer"))
		_, lent := nodesAndPods(openContracts(p, "Provider"))
		row(w, shortName(p), p.GetRole(), statusOf(p, "Trusted"), statusOf(p, "Connected"), networkStatus(p), statusOf(p, "Offloading"),
			fmt.Sprint(consumed+lent), a.age(p))
	}
	_ = w.Flush()
}

// networkStatus is the tunnel's state, or a dash where none is wanted.
func networkStatus(p *ententev1.Peer) string {
	if conditionOf(p, "Network").GetReason() == "NotWanted" {
		return "-"
	}
	return statusOf(p, "Network")
}

func (a *app) printPeer(p *ententev1.Peer) {
	w := table(a.out)
	row(w, "Name", shortName(p))
	row(w, "Cluster ID", p.GetClusterId())
	row(w, "Role", p.GetRole())
	row(w, "Reachable at", orNone(strings.Join(p.GetEndpoints(), ", "), "nowhere: it dials this cluster"))
	row(w, "Age", a.age(p))
	_ = w.Flush()
	if len(p.GetConditions()) > 0 {
		_, _ = fmt.Fprintln(a.out, "Conditions")
		w = table(a.out)
		for _, c := range p.GetConditions() {
			row(w, "  "+c.GetType(), c.GetStatus(), c.GetReason(), c.GetMessage())
		}
		_ = w.Flush()
	}
	if t := p.GetTunnel(); t != nil {
		_, _ = fmt.Fprintln(a.out, "Tunnel")
		w = table(a.out)
		row(w, "  Up", fmt.Sprint(t.GetUp()))
		row(w, "  Carried by", orNone(t.GetBackend(), "-"))
		row(w, "  Endpoint", orNone(t.GetEndpoint(), "-"))
		if t.GetRoundTrip() != nil {
			row(w, "  Round trip", t.GetRoundTrip().AsDuration().Round(10*time.Microsecond).String())
		}
		for _, prefix := range sortedKeys(t.GetRemotePrefixes()) {
			row(w, "  Its "+prefix, "is "+t.GetRemotePrefixes()[prefix]+" here")
		}
		for _, prefix := range sortedKeys(t.GetLocalPrefixes()) {
			row(w, "  Our "+prefix, "is "+t.GetLocalPrefixes()[prefix]+" there")
		}
		_ = w.Flush()
	}
	if len(p.GetContracts()) > 0 {
		_, _ = fmt.Fprintln(a.out, "Contracts")
		w = table(a.out)
		for _, c := range p.GetContracts() {
			row(w, "  "+c.GetContractId(), c.GetRole(), c.GetPhase(), amounts(c.GetResources()), "used "+amounts(c.GetUsed()), countPods(int(c.GetPods())), orNone(c.GetNode(), "-"))
		}
		_ = w.Flush()
	}
}

// age is how long ago trust was made, as kubectl writes it.
func (a *app) age(p *ententev1.Peer) string {
	if p.GetCreateTime() == nil {
		return "-"
	}
	return humanDuration(a.now().Sub(p.GetCreateTime().AsTime()))
}

func table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 3, ' ', 0) }

func row(w io.Writer, cells ...string) {
	for i, cell := range cells {
		// A tab or line break would move what follows to other columns.
		cells[i] = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, cell)
	}
	_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
}

func orNone(s, none string) string {
	if s == "" {
		return none
	}
	return s
}

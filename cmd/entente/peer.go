package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// peerFlags is what can be asked of a peer.
type peerFlags struct {
	remote                  remoteFlags
	name, cpu, memory, pods string
	resources               []string
	duration, timeout       time.Duration
	noNetwork               bool
}

func (a *app) peerCommand() *cobra.Command {
	var f peerFlags
	cmd := &cobra.Command{
		Use:   "peer [PEER]",
		Short: "Use resources of another cluster",
		Long: `Use resources of another cluster: this one becomes the consumer, the other the
provider.

With --remote-kubeconfig or --remote-context it does everything on both sides:
makes a token there, redeems it here, asks for resources, and waits until the
contract is signed, the tunnel carries traffic and the virtual node takes pods.

With PEER it does the same from a cluster that has joined already. Repeating it
is safe: what is done already is left as it is.

Nothing is asked for by amount unless flags say so; then the provider's policy
gives what it gives.`,
		Example: indent(`# Peer with access to both clusters
entente --kubeconfig consumer.yaml peer --remote-kubeconfig provider.yaml

# Both clusters in one kubeconfig
entente --context consumer peer --remote-context provider --cpu 8 --memory 16Gi

# A cluster that has joined already, with a GPU, for a day, without a tunnel
entente peer office --resource nvidia.com/gpu=1 --duration 24h --no-network`),
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) == 0 && !f.remote.given() {
				return usageError("name a peer, or the other cluster by --remote-kubeconfig or --remote-context; see `%s --help`", cmd.CommandPath())
			}
			if len(argv) == 1 && f.remote.given() {
				return usageError("%s is told by PEER or by --remote-kubeconfig, not both; to choose its name here use --name", "the peer")
			}
			ask, err := f.ask()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			local, err := a.local(ctx)
			if err != nil {
				return err
			}
			defer local.done()
			p := &peeringRun{app: a, progress: a.progress(), local: local, flags: f}
			if f.remote.given() {
				if p.remote, err = a.remote(ctx, f.remote); err != nil {
					return err
				}
				defer p.remote.done()
				if err := p.trust(ctx); err != nil {
					return err
				}
			} else {
				p.peer = argv[0]
			}
			return p.peering(ctx, ask)
		},
	}
	f.remote.add(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "What to call the peer here (default: the name that it gives itself)")
	cmd.Flags().StringVar(&f.cpu, "cpu", "", "How much CPU to ask for, as 4 or 500m")
	cmd.Flags().StringVar(&f.memory, "memory", "", "How much memory to ask for, as 8Gi")
	cmd.Flags().StringVar(&f.pods, "pods", "", "How many pods to ask for")
	cmd.Flags().StringArrayVar(&f.resources, "resource", nil, "Another resource to ask for, as nvidia.com/gpu=1; may be repeated")
	cmd.Flags().DurationVar(&f.duration, "duration", 0, "For how long to ask (default: as the provider's terms say)")
	cmd.Flags().BoolVar(&f.noNetwork, "no-network", false, "Do without the tunnel")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "How long to wait for everything together")
	return cmd
}

// ask is what the flags ask for, without the peer.
func (f *peerFlags) ask() (*ententev1.CreatePeeringRequest, error) {
	amounts := map[string]string{}
	for name, amount := range map[string]string{"cpu": f.cpu, "memory": f.memory, "pods": f.pods} {
		if amount != "" {
			amounts[name] = amount
		}
	}
	for _, r := range f.resources {
		name, amount, ok := strings.Cut(r, "=")
		if !ok || name == "" || amount == "" {
			return nil, usageError("--resource %q: want name=amount", r)
		}
		if _, twice := amounts[name]; twice {
			return nil, usageError("--resource %q: %s is asked for twice", r, name)
		}
		amounts[name] = amount
	}
	req := &ententev1.CreatePeeringRequest{NoNetwork: f.noNetwork}
	if len(amounts) > 0 {
		req.Resources = &ententev1.ResourceList{Amounts: amounts}
	}
	if f.duration < 0 {
		return nil, usageError("--duration %s: want a time to come", f.duration)
	}
	if f.duration > 0 {
		req.Duration = durationpb.New(f.duration)
	}
	if f.timeout <= 0 {
		return nil, usageError("--timeout %s: want more than nothing", f.timeout)
	}
	return req, nil
}

// peeringRun is one run of peer.
type peeringRun struct {
	app           *app
	progress      *progress
	local, remote *cluster
	flags         peerFlags
	// peer is the provider's name here, localID this cluster's ID.
	peer, localID string
	// asked says that this run wrote the ask, and so knows whether it wants a
	// tunnel.
	asked bool
}

// trust joins the two clusters where they have not joined yet.
func (p *peeringRun) trust(ctx context.Context) error {
	here, err := p.local.admin.GetInfo(ctx, &ententev1.GetInfoRequest{})
	if err != nil {
		return p.local.call("reach the agent", err)
	}
	p.progress.done("local", "Reached cluster %s (%s)", here.GetClusterName(), here.GetClusterId())
	there, err := p.remote.admin.GetInfo(ctx, &ententev1.GetInfoRequest{})
	if err != nil {
		return p.remote.call("reach the agent", err)
	}
	p.progress.done("remote", "Reached cluster %s (%s)", there.GetClusterName(), there.GetClusterId())
	if here.GetClusterId() == there.GetClusterId() {
		return usageError("both kubeconfigs lead to the same cluster, %s", here.GetClusterId())
	}
	p.localID = here.GetClusterId()
	known, err := p.local.find(ctx, there.GetClusterId())
	if err != nil {
		return err
	}
	back, err := p.remote.find(ctx, here.GetClusterId())
	if err != nil {
		return err
	}
	if isTrue(known, "Trusted") && isTrue(back, "Trusted") {
		p.peer = shortName(known)
		p.progress.done("local", "The two clusters have joined already; the peer is called %s here", p.peer)
		return nil
	}
	joined, err := p.join(ctx, p.remote, p.local, p.flags.name)
	if reason := client.ReasonOf(err); reason == "NO_ENDPOINT" || reason == "PEER_UNREACHABLE" {
		// One of the two has to be reachable, no matter which.
		p.progress.note("remote", "cannot be dialled from here (%s); trying the other way round", reason)
		var back error
		if _, back = p.join(ctx, p.local, p.remote, ""); back != nil {
			return fmt.Errorf("neither cluster can dial the other:\n  %w\n  %w", err, back)
		}
		if joined, err = p.local.find(ctx, there.GetClusterId()); err == nil && joined == nil {
			err = fmt.Errorf("(local) cluster %s joined, and is not known here", there.GetClusterId())
		}
	}
	if err != nil {
		return err
	}
	p.peer = shortName(joined)
	p.progress.done("local", "The peer is called %s here", p.peer)
	for _, side := range []struct {
		c    *cluster
		peer string
	}{{p.local, p.peer}, {p.remote, p.localID}} {
		err := p.await(ctx, side.c, side.peer, "", condition("Trusted", "trust in the other cluster"))
		if err != nil {
			return err
		}
		p.progress.done(side.c.label, "Trusts the other cluster")
	}
	return nil
}

// join makes a token in one cluster and redeems it in the other, where the issuer
// is called name if that is not empty.
func (p *peeringRun) join(ctx context.Context, issuer, redeemer *cluster, name string) (*ententev1.Peer, error) {
	token, err := issuer.admin.CreateToken(ctx, &ententev1.CreateTokenRequest{})
	if err != nil {
		return nil, issuer.call("make a token", err)
	}
	p.progress.done(issuer.label, "Made a one-time token")
	joined, err := redeemer.admin.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: token.GetToken(), Name: name})
	if err != nil {
		return nil, redeemer.call("join", err)
	}
	p.progress.done(redeemer.label, "Redeemed the token")
	return joined.GetPeer(), nil
}

// peering asks for resources and waits until they can be used.
func (p *peeringRun) peering(ctx context.Context, ask *ententev1.CreatePeeringRequest) error {
	ask.Peer = "peers/" + p.peer
	resp, err := p.local.admin.CreatePeering(ctx, ask)
	switch {
	case err == nil:
		p.asked = true
		p.progress.done("local", "Asked %s for resources (ResourceSlice %s)", p.peer, resp.GetResourceSlice())
	case client.ReasonOf(err) == "PEERING_EXISTS" && client.Facts(err)["ending"] == "" && p.same(ctx, client.Facts(err)["peer"]):
		p.progress.done("local", "Asks %s for resources already (ResourceSlice %s)", p.peer, client.Facts(err)["resourceSlice"])
		if len(ask.GetResources().GetAmounts()) > 0 || ask.GetDuration() != nil || ask.GetNoNetwork() {
			p.progress.note("local", "what the flags ask for was not applied: unpeer first, or edit the ResourceSlice")
		}
	default:
		return p.local.call("ask for resources", err)
	}
	if err := p.await(ctx, p.local, p.peer, hintConnected, condition("Connected", "a session with the peer's agent")); err != nil {
		return err
	}
	p.progress.done("local", "Connected to the peer's agent")
	var contract *ententev1.Contract
	err = p.await(ctx, p.local, p.peer, hintContract, func(peer *ententev1.Peer) (bool, string, error) {
		contract = activeContract(peer, "Consumer")
		if c := conditionOf(peer, "Offloading"); contract == nil && refused(c) {
			return false, "", fmt.Errorf("the provider refuses: %s: %s", c.GetReason(), c.GetMessage())
		}
		return contract != nil, "a contract" + because(peer, "Offloading"), nil
	})
	if err != nil {
		return err
	}
	p.progress.done("local", "Contract %s is signed by both: %s until %s", contract.GetContractId(),
		amounts(contract.GetResources()), contract.GetNotAfter().AsTime().Format("2006-01-02 15:04 MST"))
	if p.remote != nil {
		if err := p.await(ctx, p.remote, p.localID, hintContract, func(peer *ententev1.Peer) (bool, string, error) {
			return activeContract(peer, "Provider") != nil, "the contract" + because(peer, "Offloading"), nil
		}); err != nil {
			return err
		}
		p.progress.done("remote", "Contract %s is in force", contract.GetContractId())
	}
	if err := p.network(ctx); err != nil {
		return err
	}
	var node string
	err = p.await(ctx, p.local, p.peer, hintNode, func(peer *ententev1.Peer) (bool, string, error) {
		if c := activeContract(peer, "Consumer"); c != nil {
			node = c.GetNode()
		}
		ready := isTrue(peer, "Offloading") && conditionOf(peer, "Offloading").GetReason() != "Lending"
		return ready && node != "", "the virtual node" + because(peer, "Offloading"), nil
	})
	if err != nil {
		return err
	}
	p.progress.done("local", "Virtual node %s is Ready", node)
	_, _ = fmt.Fprintf(p.app.errOut, "Let the pods of a namespace run there with:\n  entente offload namespace NAMESPACE\n")
	return nil
}

// same says whether a name is that of the peer of this run.
func (p *peeringRun) same(ctx context.Context, name string) bool {
	if name == p.peer {
		return true
	}
	peer, err := p.local.find(ctx, p.peer)
	return err == nil && peer != nil && shortName(peer) == name
}

// network waits until traffic passes, where the contract wants a tunnel.
func (p *peeringRun) network(ctx context.Context) error {
	sides := []struct {
		c    *cluster
		peer string
	}{{p.local, p.peer}}
	if p.remote != nil {
		sides = append(sides, struct {
			c    *cluster
			peer string
		}{p.remote, p.localID})
	}
	for _, side := range sides {
		var tunnel *ententev1.Tunnel
		wanted, unwanted := true, 0
		err := p.await(ctx, side.c, side.peer, hintTunnel, func(peer *ententev1.Peer) (bool, string, error) {
			tunnel = peer.GetTunnel()
			if conditionOf(peer, "Network").GetReason() == "NotWanted" {
				// It may be the word of before the contract.
				unwanted++
				wanted = p.asked && !p.flags.noNetwork || !p.asked && unwanted < settledPolls
				return !wanted, "the tunnel to be made", nil
			}
			wanted = true
			return isTrue(peer, "Network"), "traffic through the tunnel" + because(peer, "Network"), nil
		})
		if err != nil {
			return err
		}
		if !wanted {
			p.progress.done(side.c.label, "No tunnel is wanted")
			continue
		}
		p.progress.done(side.c.label, "Traffic passes through the tunnel%s", tunnelFacts(tunnel))
	}
	return nil
}

// settledPolls is for how many polls a condition has to say the same to be taken
// for more than the word of before.
const settledPolls = 6

const (
	hintConnected = "one of the two clusters has to be reachable by the other (TCP 7443): see the endpoints in `entente info peer`"
	hintContract  = "see what became of the ask: kubectl get resourceslices -o wide; and, at the provider, its PeeringPolicies"
	hintTunnel    = "see each node's fabric: kubectl get fabricnodes -o yaml; one side has to be reachable by UDP 51820"
	hintNode      = "see the Contract's conditions: kubectl get contracts -o yaml"
)

// await polls a peer of a cluster.
func (p *peeringRun) await(ctx context.Context, c *cluster, name, hint string, check func(*ententev1.Peer) (bool, string, error)) error {
	return p.progress.poll(ctx, c, hint, func(ctx context.Context) (bool, string, error) {
		peer, err := c.find(ctx, name)
		if err != nil {
			return false, "", err
		}
		if peer == nil {
			return false, "the peer to be known", nil
		}
		return check(peer)
	})
}

// condition waits until a condition is true.
func condition(kind, what string) func(*ententev1.Peer) (bool, string, error) {
	return func(peer *ententev1.Peer) (bool, string, error) {
		return isTrue(peer, kind), what + because(peer, kind), nil
	}
}

func conditionOf(peer *ententev1.Peer, kind string) *ententev1.Condition {
	for _, c := range peer.GetConditions() {
		if c.GetType() == kind {
			return c
		}
	}
	return nil
}

func isTrue(peer *ententev1.Peer, kind string) bool {
	return conditionOf(peer, kind).GetStatus() == "True"
}

// because tells why a condition is not true: ": message".
func because(peer *ententev1.Peer, kind string) string {
	c := conditionOf(peer, kind)
	switch {
	case c.GetMessage() != "":
		return ": " + c.GetMessage()
	case c.GetReason() != "":
		return ": " + c.GetReason()
	}
	return ""
}

// refused says whether a condition tells of a no that waiting does not change.
func refused(c *ententev1.Condition) bool {
	return slices.Contains([]string{"PolicyRefused", "POLICY_REFUSED"}, c.GetReason())
}

// activeContract is the youngest contract in force in which this cluster has a
// role.
func activeContract(peer *ententev1.Peer, role string) *ententev1.Contract {
	var best *ententev1.Contract
	for _, c := range peer.GetContracts() {
		if c.GetPhase() == "Active" && c.GetRole() == role &&
			(best == nil || best.GetNotBefore().AsTime().Before(c.GetNotBefore().AsTime())) {
			best = c
		}
	}
	return best
}

// amounts lists resources by name, the usual ones first.
func amounts(r *ententev1.ResourceList) string {
	var parts []string
	for _, name := range resourceNames(r) {
		parts = append(parts, name+" "+r.GetAmounts()[name])
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func resourceNames(r *ententev1.ResourceList) []string {
	rank := map[string]int{"cpu": -3, "memory": -2, "pods": -1}
	names := make([]string, 0, len(r.GetAmounts()))
	for name := range r.GetAmounts() {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if rank[a] != rank[b] {
			return rank[a] - rank[b]
		}
		return strings.Compare(a, b)
	})
	return names
}

func tunnelFacts(t *ententev1.Tunnel) string {
	var facts []string
	if t.GetBackend() != "" {
		facts = append(facts, t.GetBackend()+" WireGuard")
	}
	if t.GetRoundTrip() != nil {
		facts = append(facts, "round trip "+t.GetRoundTrip().AsDuration().Round(10*time.Microsecond).String())
	}
	if len(facts) == 0 {
		return ""
	}
	return " (" + strings.Join(facts, ", ") + ")"
}

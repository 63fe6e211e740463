package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/amendment"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// peerFlags are the flags of peer.
type peerFlags struct {
	remote  remoteFlags
	whom    whomFlags
	ask     askFlags
	name    string
	inBand  bool
	dryRun  bool
	timeout flags.Timeout
}

func (a *app) peerCommand() *cobra.Command {
	var f peerFlags
	cmd := a.offline(&cobra.Command{Use: "peer [PEER]", Short: "Use resources of another cluster"}, func(ctx context.Context, r *run) error {
		peer, err := f.whomOf(r)
		if err != nil {
			return err
		}
		req := f.ask.request()
		req.PeerSelector = f.whom.selector
		return f.peer(ctx, r, peer, req)
	})
	f.add(cmd)
	return cmd
}

func (f *peerFlags) add(cmd *cobra.Command) {
	f.remote.add(cmd)
	f.whom.add(cmd)
	f.ask.add(cmd)
	f.ask.addRenewal(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "The peer's name here, if it joins now (default: its own name)")
	cmd.Flags().BoolVar(&f.inBand, "in-band", false, "With --remote-kubeconfig or --remote-context: run the peer API inside the tunnel")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "Only ask the provider what it would offer; change nothing")
	f.timeout.Add(cmd.Flags(), 2*time.Minute, "How long to wait for everything together")
}

// peer follows the flags, with a peer or on both sides.
func (f *peerFlags) peer(ctx context.Context, r *run, peer string, req *ententev1.CreatePeeringRequest) (err error) {
	ctx, cancel := f.timeout.Bound(ctx)
	defer cancel()
	p := &peeringRun{run: r, flags: f}
	if p.sides, err = r.sides(ctx, peer, f.remote); err != nil {
		return err
	}
	defer p.sides.hangUp()
	return r.suggest(ctx, p.do(ctx, req))
}

// whomOf checks that the arguments say in exactly one way whom to ask, and returns the
// name of the peer; it is empty if remote flags name the other cluster.
func (f *peerFlags) whomOf(r *run) (string, error) {
	ways := count(len(r.argv) == 1, f.remote.given(), f.whom.given())
	switch {
	case f.inBand && !f.remote.given():
		return "", exit.Usagef("--in-band sets up both ends: it needs --remote-kubeconfig or --remote-context; with access to this cluster alone see `entente network connect --in-band`")
	case ways == 0:
		return "", exit.Usagef("name a peer, or the other cluster with --remote-kubeconfig or --remote-context, or use --any; see `%s --help`", r.path)
	case ways > 1:
		return "", exit.Usagef("say whom to ask with only one of PEER, --remote-kubeconfig and --any; to choose the peer's name here use --name")
	case f.whom.given():
		return format.AnyPeer, nil
	}
	return r.first(), nil
}

// peeringRun is one run of peer.
type peeringRun struct {
	*run
	*sides
	flags *peerFlags
	// request is the name of the PeeringRequest, and asked means that this run wrote it, and so
	// knows whether it wants a tunnel.
	request string
	asked   bool
}

func (p *peeringRun) do(ctx context.Context, req *ententev1.CreatePeeringRequest) error {
	if p.remote != nil {
		if err := p.trust(ctx); err != nil {
			return err
		}
	}
	local := &p.local
	if p.remote == nil && local.peer != format.AnyPeer {
		if err := p.mayAsk(ctx); err != nil {
			return err
		}
	}
	req.Peer = peerName(local.peer)
	if p.flags.dryRun {
		err := p.dryRun(ctx, req)
		if client.Facts(err)["ending"] != "" || !p.exists(ctx, req, err) {
			return err
		}
		return p.result(&ententev1.CreatePeeringResponse{PeeringRequest: p.request})
	}
	if local.peer == format.AnyPeer {
		// A request to any peer has no name by which to find it again.
		if err := sameAgain(req); err != nil {
			return err
		}
	}
	if err := p.ask(ctx, req); err != nil {
		return err
	}
	return p.remaining(p.await(ctx))
}

// remaining adds to the error of a wait that ended too early what remains, and how to end it.
func (p *peeringRun) remaining(err error) error {
	return exit.Remaining(err, fmt.Sprintf("PeeringRequest %s stays, and the agents continue with it; to end it: entente unpeer --peering %s", p.request, p.request))
}

// await waits until the requested resources can be used.
func (p *peeringRun) await(ctx context.Context) error {
	local := &p.local
	if local.peer != format.AnyPeer {
		if err := p.awaitPeer(ctx, *local, exit.HintTrusted, condition(v1alpha1.ConditionTrusted, "trust between the two clusters")); err != nil {
			return err
		}
		if err := p.awaitPeer(ctx, *local, hintConnected, condition(v1alpha1.ConditionConnected, "a session with the peer's agent")); err != nil {
			return err
		}
		p.done("Connected to the peer's agent")
	}
	peering, err := p.contract(ctx)
	if err != nil {
		return err
	}
	if err := p.network(ctx); err != nil {
		return err
	}
	if err := p.node(ctx, peering); err != nil {
		return err
	}
	if p.output.Structured() {
		peering, err := p.peering(ctx, p.request)
		if err != nil {
			return err
		}
		return p.write(peering)
	}
	p.next("Let the pods of a namespace run there with:\n  entente offload namespace NAMESPACE")
	return nil
}

func (r *run) dryRun(ctx context.Context, req *ententev1.CreatePeeringRequest) error {
	req.ValidateOnly = true
	resp, err := r.admin.CreatePeering(ctx, req)
	if err != nil {
		return r.call("ask for an offer", err)
	}
	if r.output.Structured() {
		return r.write(resp)
	}
	provider := printer.Clean(cmp.Or(format.Short(resp.GetProvider()), "the provider"))
	if req.GetPeer() == peerName(format.AnyPeer) {
		_, _ = fmt.Fprintf(r.out, "Of all that fit, %s is the cheapest and would offer:\n", provider)
	}
	r.printPreview(provider, resp.GetAdvertisement())
	return nil
}

// printPreview prints what a provider offers, and what is needed besides
// asking.
func (a *app) printPreview(provider string, ad *ententev1.Advertisement) {
	if !ad.GetNeedsApproval() {
		a.showAdvertisement(ad)
		return
	}
	_, _ = fmt.Fprintf(a.out, "Once an administrator of %s has approved the request, it would offer:\n", provider)
	a.showAdvertisement(ad)
	a.next("Ask for it, and get it approved there with:\n  entente requests\n  entente approve request REQUEST")
}

// ask writes the PeeringRequest, unless it exists already.
func (p *peeringRun) ask(ctx context.Context, req *ententev1.CreatePeeringRequest) error {
	resp, err := p.create(ctx, req)
	switch {
	case err == nil:
		p.request, p.asked = resp.GetPeeringRequest(), true
		p.done("Asked %s for resources (PeeringRequest %s)", p.whom(), p.request)
	case !p.exists(ctx, req, err):
		return err
	}
	return nil
}

// whom is who is asked, for people.
func (p *peeringRun) whom() string {
	if p.local.peer == format.AnyPeer {
		return "all peers that fit"
	}
	return p.local.peer
}

// exists reports whether a call failed because this peer is asked already, and prints that.
func (p *peeringRun) exists(ctx context.Context, req *ententev1.CreatePeeringRequest, failed error) bool {
	facts := client.Facts(failed)
	if client.ReasonOf(failed) != peering.ReasonPeeringExists || !p.same(ctx, facts["peer"]) {
		return false
	}
	p.request = facts["peeringRequest"]
	p.done("Asks %s for resources already (PeeringRequest %s)", p.whom(), p.request)
	is, err := p.peering(ctx, p.request)
	over := format.Over(is.GetAccepted())
	switch {
	case err != nil || !amendment.Differs(req, is): // an error is that of the wait, too
	case over && p.flags.dryRun:
		p.note("what the flags ask for would not be applied; %s", amendment.AskAgain(is))
	case over: // the wait ends with what to do
	case p.flags.dryRun:
		p.note("what the flags ask for would not be applied; see what would be offered for a change with: entente amend %s --dry-run", p.request)
	default:
		p.note("what the flags ask for was not applied; change the request with: entente amend %s", p.request)
	}
	return true
}

// create writes the PeeringRequest, once one of the same name that is being deleted is
// gone.
func (p *peeringRun) create(ctx context.Context, req *ententev1.CreatePeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	local := p.local
	var resp *ententev1.CreatePeeringResponse
	var failed error
	err := p.poll(ctx, local.cluster, hintEnding, func(ctx context.Context) (bool, string, error) {
		resp, failed = local.admin.CreatePeering(ctx, req)
		if client.ReasonOf(failed) == peering.ReasonPeeringExists && client.Facts(failed)["ending"] != "" {
			return false, "PeeringRequest " + client.Facts(failed)["peeringRequest"] + " to go, which is being deleted", nil
		}
		return true, "", nil
	})
	if err != nil {
		return nil, err
	}
	return resp, local.call("ask for resources", failed)
}

// sameAgain derives the ID of a request from its contents, so that repeating the
// command finds the first one instead of asking twice.
func sameAgain(req *ententev1.CreatePeeringRequest) error {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return fmt.Errorf("write request: %w", err)
	}
	sum := sha256.Sum256(b)
	req.RequestId = hex.EncodeToString(sum[:16])
	return nil
}

// same reports whether a name is that of the peer of this run; it is empty if any
// peer is asked.
func (p *peeringRun) same(ctx context.Context, name string) bool {
	local := p.local
	if local.peer == format.AnyPeer || name == "" {
		return name == "" && local.peer == format.AnyPeer
	}
	if name == local.peer {
		return true
	}
	peer, err := local.find(ctx, local.peer)
	return err == nil && peer != nil && format.ShortName(peer) == name
}

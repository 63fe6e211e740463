package main

import (
	"fmt"
	"strings"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/peering"
)

// problem is an error as people see it: what the agent said of it, and the reason
// in brackets, for searching. Errors repeat what was given, so a token in a wrong place is
// taken out here.
func (a *app) problem(err error) string {
	return printer.Paint(a.colourErr, printer.Bad, "Error:") + " " + peering.WithoutTokens(err.Error())
}

// safe is a line about what a command does: it drives no terminal, and has no token that
// somebody gave for a name.
func safe(s string) string { return peering.WithoutTokens(printer.Clean(s)) }

// callError is a call to an agent that failed.
type callError struct {
	// cluster is local or remote, and doing what was tried.
	cluster, doing string
	err            error
	// near is the peers that may be meant by one that is not known.
	near []string
}

func (e *callError) Error() string {
	reason := client.ReasonOf(e.err)
	msg := fmt.Sprintf("(%s) %s: %s [%s]", e.cluster, e.doing, printer.Clean(client.Explain(e.err)), reason)
	hint := hintFor(reason)
	if len(e.near) > 0 {
		hint = "did you mean " + strings.Join(e.near, " or ") + "? If not, " + hint
	}
	if hint != "" {
		msg += "\n  next: " + hint
	}
	return msg
}

func (e *callError) Unwrap() error { return e.err }

// hintFor is what to do about a reason; empty if its message says it all.
func hintFor(r client.Reason) string {
	for _, h := range hints() {
		if h.reason == r {
			return h.next
		}
	}
	return ""
}

// hint is what to do about a reason.
type hint struct {
	reason client.Reason
	next   string
}

// hints is what to do about errors whose message cannot say it. docs/cli.md has
// it as a table.
func hints() []hint {
	return []hint{
		{"CALLER_UNKNOWN", "check that this kubeconfig works with kubectl, and log in again if it uses a plugin"},
		{"CALLER_NOT_ALLOWED", "have an administrator bind a role of Entente: ClusterRole entente-view to look, entente-admin to change, entente-offload for one namespace, and Role entente-cli in entente-system to reach the agent"},
		{"UNAVAILABLE", "see whether the agent runs: kubectl -n entente-system get pods"},
		{"DEADLINE_EXCEEDED", "see the agent's log: kubectl -n entente-system logs deploy/entente-agent"},
		{"INTERNAL", "see the agent's log: kubectl -n entente-system logs deploy/entente-agent"},
		{"UNIMPLEMENTED", "the agent is older than this command: compare with `entente version`, and upgrade the agent"},
		{"KUBERNETES_UNAVAILABLE", "the cluster's API server is not well; try again"},

		{"NO_ENDPOINT", "set where other clusters can reach this one: Helm value peer.endpoints, or the Service entente-peer; or make the token in the other cluster"},
		{"TOKENS_OUTSTANDING", "see them with `entente token list`, and revoke those that are not needed: entente token revoke TOKEN"},
		{"TOKEN_UNKNOWN", "it was redeemed, revoked or has expired; see those that are left: entente token list"},
		{"TOKEN_MALFORMED", "copy the whole line that begins with ent1.; to join without a token give HOST:PORT or ID@HOST:PORT"},
		{"TOKEN_EXPIRED", "ask for a new one, which the other side makes with `entente token create`"},
		{"TOKEN_INVALID", "ask for a new one, which the other side makes with `entente token create`"},

		{"PEER_UNKNOWN", "list the peers: entente info peer"},
		{"PEER_NOT_TRUSTED", hintTrusted},
		{"PEER_UNREACHABLE", "one of the two clusters has to reach the other at its endpoints (entente info there says which): check address and firewall, or let the other side dial"},
		{"PEER_IDENTITY_MISMATCH", "another cluster answers at that address: check both with the person who gave them to you"},
		{"PEER_NAME_TAKEN", "choose another name for it here: --name"},
		{"TRUST_DENIED", "an administrator there said no; they can change that: entente approve, or a new token"},
		{"TRUST_FORGOTTEN", "an administrator there forgot this cluster, or a policy there ended: join with a new token of either side, or meet again (entente join HOST:PORT); or forget it here too: entente unpeer PEER --forget"},
		{"INTRODUCTIONS_PENDING", "too many clusters wait there for approval; wait, or ask for a token"},
		{"INTRODUCTION_UNKNOWN", "introduce the two for a code to compare: entente join HOST:PORT (entente discover shows where it is); or join with a token"},
		{"CODE_MISMATCH", "introduce the two again (entente join HOST:PORT) and compare once more; while the codes differ do not approve"},

		{"PEERING_UNKNOWN", "list what this cluster asks for: entente peerings"},
		{"PEERING_EXISTS", "change it with `entente amend`, or ask for more under another name: entente create peeringrequest NAME"},
		{"REQUEST_UNKNOWN", "list what waits for approval: entente requests"},
		{"POLICY_REFUSED", "the provider's PeeringPolicy decides; its administrator sees why with `entente policy test`"},
		{"POLICY_PENDING", "an administrator of the provider has to let it through: entente requests, entente approve request"},
		{"PRICE_ABOVE_CEILING", "raise --price-ceiling, or ask for less; see the prices with `entente info peer`"},
		{"CAPACITY_EXHAUSTED", "ask for less, or later; see its offer with `entente info peer`"},
		{"CONTRACT_UNKNOWN", "list the contracts: entente contract list"},
		{"PODS_RUNNING", "let them move away first, or end it all the same"},
		{"ROLLOVER_TOO_SOON", "wait until the overlap of the one before is over; then every peer knows the newer key"},
	}
}

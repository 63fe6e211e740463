package exit

import (
	"fmt"
	"strings"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
)

// CallError is a call to an agent that failed.
type CallError struct {
	// Cluster is local or remote, and Doing what was tried.
	Cluster, Doing string
	Err            error
	// Near is the peers that may be meant by one that is not known.
	Near []string
}

func (e *CallError) Error() string {
	reason := client.ReasonOf(e.Err)
	msg := fmt.Sprintf("(%s) %s: %s [%s]", e.Cluster, e.Doing, printer.Clean(client.Explain(e.Err)), reason)
	hint := HintFor(reason)
	if len(e.Near) > 0 {
		hint = "did you mean " + strings.Join(e.Near, " or ") + "? If not, " + hint
	}
	if hint != "" {
		msg += "\n  next: " + hint
	}
	return msg
}

func (e *CallError) Unwrap() error { return e.Err }

// HintTrusted is what to do about a peer that is not trusted.
const HintTrusted = "join the two: entente join, with a token of either side, or with HOST:PORT and approval by code on both sides; see `entente info peer`"

// HintFor is what to do about a reason; empty if its message says it all.
func HintFor(r client.Reason) string {
	for _, h := range Hints() {
		if h.Reason == r {
			return h.Next
		}
	}
	return ""
}

// Hint is what to do about a reason.
type Hint struct {
	Reason client.Reason
	Next   string
}

// Hints returns what to do about errors whose message cannot say it. docs/cli.md has
// it as a table.
func Hints() []Hint {
	return []Hint{
		{"CALLER_UNKNOWN", "check that this kubeconfig works with kubectl, and log in again if it uses a plugin"},
		{"CALLER_NOT_ALLOWED", "have an administrator bind a role of Entente: ClusterRole entente-view to look, entente-admin to change, entente-offload for one namespace, and Role entente-cli in entente-system to reach the agent"},
		{"UNAVAILABLE", "see whether the agent runs: kubectl -n entente-system get pods"},
		{"DEADLINE_EXCEEDED", "see the agent's log: kubectl -n entente-system logs svc/entente-agent"},
		{"INTERNAL", "see the agent's log: kubectl -n entente-system logs svc/entente-agent"},
		{"UNIMPLEMENTED", "the agent is older than this command: compare with `entente version`, and upgrade the agent"},
		{"KUBERNETES_UNAVAILABLE", "the cluster's API server is not well; try again"},

		{"NO_ENDPOINT", "set where other clusters can reach this one: Helm value peer.endpoints, or the Service entente-peer; or make the token in the other cluster"},
		{"TOKENS_OUTSTANDING", "see them with `entente token list`, and revoke those that are not needed: entente token revoke TOKEN"},
		{"TOKEN_UNKNOWN", "it was redeemed, revoked or has expired; see those that are left: entente token list"},
		{"TOKEN_MALFORMED", "copy the whole line that begins with ent1.; to join without a token give HOST:PORT or ID@HOST:PORT"},
		{"TOKEN_EXPIRED", "ask for a new one, which the other side makes with `entente token create`"},
		{"TOKEN_INVALID", "ask for a new one, which the other side makes with `entente token create`"},

		{"PEER_UNKNOWN", "list the peers: entente info peer"},
		{"PEER_NOT_TRUSTED", HintTrusted},
		{"PEER_UNREACHABLE", "one of the two clusters has to reach the other at its endpoints (entente info there says which): check address and firewall, or let the other side dial"},
		{"PEER_IDENTITY_MISMATCH", "another cluster answers at that address: check both with the person who gave them to you"},
		{"PEER_IS_SELF", "do it with what the other cluster's administrator gave: this is this cluster's own"},
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

package exit

import (
	"fmt"
	"strings"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/peering"
)

// CallError is a call to an agent that failed.
type CallError struct {
	// Cluster is local or remote, and Doing what was attempted.
	Cluster, Doing string
	Err            error
	// Near are the known peers with a name like the unknown one.
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

// HintTrusted says what to do about a peer that is not trusted.
const HintTrusted = "join the two: entente join, with a token of either side, or with HOST:PORT and approval by code on both sides; see `entente info peer`"

// HintFor says what to do about a reason; empty if its message says it already.
func HintFor(r client.Reason) string {
	for _, h := range Hints() {
		if h.Reason == r {
			return h.Next
		}
	}
	return ""
}

// Hint says what to do about a reason.
type Hint struct {
	Reason client.Reason
	Next   string
}

// Hints returns what to do about errors whose message cannot say it. docs/cli.md has
// it as a table.
func Hints() []Hint {
	return []Hint{
		{peering.ReasonCallerUnknown, "check that this kubeconfig works with kubectl, and log in again if it uses a plugin"},
		{peering.ReasonCallerNotAllowed, "ask an administrator to bind a role of Entente: ClusterRole entente-view to read, entente-admin to change, entente-offload for one namespace, and Role entente-cli in entente-system to reach the agent"},
		{peering.ReasonUnavailable, "see whether the agent runs: kubectl -n entente-system get pods"},
		{peering.ReasonDeadlineExceeded, "see the agent's log: kubectl -n entente-system logs svc/entente-agent"},
		{peering.ReasonInternal, "see the agent's log: kubectl -n entente-system logs svc/entente-agent"},
		{peering.ReasonUnimplemented, "the agent is older than this command: compare with `entente version`, and upgrade the agent"},
		{peering.ReasonKubernetes, "the cluster's API server has a problem; try again"},

		{peering.ReasonNoEndpoint, "set where other clusters can reach this one: Helm value peer.endpoints, or the Service entente-peer; or make the token in the other cluster"},
		{peering.ReasonTokensOutstanding, "see them with `entente token list`, and revoke those that are not needed: entente token revoke TOKEN"},
		{peering.ReasonTokenUnknown, "it was redeemed, revoked or has expired; see those that are left: entente token list"},
		{peering.ReasonTokenMalformed, "copy the whole line that begins with ent1.; to join without a token give HOST:PORT or ID@HOST:PORT"},
		{peering.ReasonTokenExpired, "ask for a new one, which the other side makes with `entente token create`"},
		{peering.ReasonTokenInvalid, "ask for a new one, which the other side makes with `entente token create`"},

		{peering.ReasonPeerUnknown, "list the peers: entente info peer"},
		{peering.ReasonPeerNotTrusted, HintTrusted},
		{peering.ReasonPeerUnreachable, "one of the two clusters has to reach the other at its endpoints (entente info there says which): check address and firewall, or let the other side dial"},
		{peering.ReasonPeerIdentity, "another cluster responds at that address: check address and ID with the person who gave them to you"},
		{peering.ReasonPeerIsSelf, "use what the other cluster's administrator gave you: this is this cluster's own"},
		{peering.ReasonPeerNameTaken, "choose another name for it here: --name"},
		{peering.ReasonTrustDenied, "an administrator of the side that denied, which the message names, can change that: entente approve, or a new token"},
		{peering.ReasonTrustForgotten, "an administrator there forgot this cluster, or a policy there ended: join with a new token of either side, or introduce the two again (entente join HOST:PORT); or forget it here too: entente unpeer PEER --forget"},
		{peering.ReasonIntroductionsPending, "too many clusters wait there for approval, or began introductions and did not complete them; wait, or ask for a token"},
		{peering.ReasonIntroductionUnknown, "introduce the two to get a code to compare: entente join HOST:PORT (entente discover shows where it is); or join with a token"},
		{peering.ReasonCodeMismatch, "introduce the two again (entente join HOST:PORT) and compare once more; while the codes differ do not approve"},

		{peering.ReasonPeeringUnknown, "list what this cluster asks for: entente peerings"},
		{peering.ReasonPeeringExists, "change it with `entente amend`, or ask for more under another name: entente create peeringrequest NAME"},
		{peering.ReasonRequestUnknown, "list what waits for approval: entente requests"},
		{peering.ReasonPolicyRefused, "the provider's PeeringPolicy decides; its administrator sees why with `entente policy test`"},
		{peering.ReasonPolicyPending, "an administrator of the provider has to approve it: entente requests, entente approve request"},
		{peering.ReasonPriceAboveCeiling, "raise --price-ceiling, or ask for less; see the prices with `entente info peer`"},
		{peering.ReasonCapacityExhausted, "ask for less, or later; see its offer with `entente info peer`"},
		{peering.ReasonContractUnknown, "list the contracts: entente contract list"},
		{peering.ReasonNamespaceUnknown, "list the namespaces: kubectl get namespaces; or create it: kubectl create namespace NAME"},
		{peering.ReasonMappingFixed, "its pods abroad have to end before it gets another name there: entente unoffload namespace NAME, then offload it again"},
		{peering.ReasonPodsRunning, "let them end or move away first"},
		{peering.ReasonRolloverTooSoon, "wait until the overlap of the previous rollover is over; then every peer knows the newer key"},
	}
}

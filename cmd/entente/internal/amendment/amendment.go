// Package amendment decides whether both sides have signed what a changed request asks for, and
// says what remains if not.
package amendment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Amendment is a changed request whose outcome a command waits for.
type Amendment struct {
	// Label is where the request is.
	Label string
	// Before and After are the request before and after the change.
	Before, After *ententev1.Peering
	// Signed is the contract before the change, and Now what it is; nil means none.
	Signed, Now *ententev1.Contract
}

// Check reports whether both sides have signed what the request asks for, or else what that waits
// for. A revision that an earlier request asked for may be signed meanwhile.
func (a *Amendment) Check(p *ententev1.Peering) (done bool, waiting string, err error) {
	waiting = "a contract"
	if a.Signed != nil {
		waiting = "the next revision of the contract"
	}
	wanted := a.After.GetGeneration()
	switch {
	case p.GetGeneration() > wanted:
		return false, "", fmt.Errorf("(%s) the request was changed again meanwhile, and asks for %s now\n  next: see its outcome: entente peerings %s",
			a.Label, format.Asked(p.GetResources()), format.Short(p.GetName()))
	case p.GetAcceptedGeneration() < wanted:
		return false, waiting, nil
	case format.Refused(p):
		return false, "", Refused(a.Label, p, a.Stays())
	}
	signed := p.GetAccepted().GetStatus() == "True" && p.GetContractGeneration() >= wanted
	return signed && a.isNew(), waiting + format.Why(p.GetAccepted()), nil
}

// isNew reports whether the contract may be what the request asks for: a changed request has a
// revision, which the agent may show a moment later than it says that it was signed.
func (a *Amendment) isNew() bool {
	unchanged := a.After.GetGeneration() == a.Before.GetGeneration()
	return a.Now != nil && (unchanged || a.Now.GetContractId() != a.Signed.GetContractId() || a.Now.GetRevision() > a.Signed.GetRevision())
}

// Stays says what is in force until the provider accepts the request, that the request stays, and
// how to go back.
func (a *Amendment) Stays() string {
	if a.Now == nil || a.Now.GetPhase() == "Closed" {
		return ChangeOrEnd(format.Short(a.After.GetName()))
	}
	signed, asking, back := "", "", ""
	if a.Now.GetRevision() > a.Signed.GetRevision() {
		signed = ", which was signed meanwhile,"
	}
	asks, undo := a.changes()
	if asks != "" {
		asking = ", and goes on asking for " + asks
	}
	if undo != "" {
		back = ", or go back: " + undo
	}
	return fmt.Sprintf("revision %d of the contract%s stays in force: %s; the request stays%s\n  next: amend it to what the provider grants%s",
		a.Now.GetRevision(), signed, format.Amounts(a.Now.GetResources()), asking, back)
}

// changes returns what the request asks for that is not in force, and the command after which it
// asks for what the contract has, and for the rest as before; empty if there is none.
func (a *Amendment) changes() (asks, undo string) {
	was, is := a.Before, a.After
	if was.GetNoNetwork() != is.GetNoNetwork() {
		peer := format.Short(cmp.Or(is.GetProvider(), is.GetPeer()))
		if is.GetNoNetwork() {
			return "no tunnel", "entente network connect " + peer
		}
		return "a tunnel", "entente network disconnect " + peer
	}
	var all, flags []string
	change := func(what, flag string) {
		all = append(all, what)
		if flag != "" {
			flags = append(flags, flag)
		}
	}
	if granted := a.granted(); granted != "" {
		change(format.Asked(is.GetResources()), "--resources "+granted)
	}
	if d, before := is.GetDuration().AsDuration(), was.GetDuration().AsDuration(); d != before {
		flag := ""
		if before > 0 {
			flag = "--duration " + before.String()
		}
		change("a duration of "+format.Span(is.GetDuration(), ""), flag)
	}
	if ceiling, before := format.Money(is.GetPriceCeiling(), "any"), format.Money(was.GetPriceCeiling(), "any"); ceiling != before {
		change("a price ceiling of "+ceiling, fmt.Sprintf("--price-ceiling %q", before))
	}
	if len(flags) > 0 {
		undo = strings.Join(append([]string{"entente amend", format.Short(is.GetName())}, flags...), " ")
	}
	return strings.Join(all, " and "), undo
}

// granted is the value of --resources that asks for what the contract has; empty if the request
// asks for that. What the contract does not have is 0, since an amount that is not named stays.
func (a *Amendment) granted() string {
	amounts, same := maps.Clone(a.Now.GetResources().GetAmounts()), true
	for name, amount := range a.After.GetResources().GetAmounts() {
		if _, has := amounts[name]; !has {
			amounts[name] = "0"
		}
		same = same && format.SameAmount(amounts[name], amount)
	}
	if same {
		return ""
	}
	pairs := make([]string, 0, len(amounts))
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		pairs = append(pairs, name+"="+amounts[name])
	}
	return strings.Join(pairs, ",")
}

// Refused is the error that what a peering asks for is refused. next is what to do, unless it is over.
func Refused(label string, p *ententev1.Peering, next string) error {
	if format.Over(p.GetAccepted()) {
		next = "next: " + AskAgain(p)
	}
	return &exit.Error{Code: exit.Refused, Err: fmt.Errorf("(%s) %s\n  %s", label, printer.Clean(format.Refusal(p.GetAccepted())), next)}
}

// ChangeOrEnd says what to do about a request that has no contract.
func ChangeOrEnd(request string) string {
	return fmt.Sprintf("next: the request stays; change it with `entente amend %s`, or end it: entente unpeer --peering %s", request, request)
}

// AskAgain says what to do about a request that is over.
func AskAgain(p *ententev1.Peering) string {
	request, peer := format.Short(p.GetName()), format.Short(p.GetPeer())
	if peer == format.AnyPeer {
		peer = "--any"
	}
	again := fmt.Sprintf("end the request: entente unpeer --peering %s, and ask again: entente peer %s", request, peer)
	if p.GetAccepted().GetReason() == "Expired" { // which is so only without renewal
		again += fmt.Sprintf("; or let it ask again and be renewed: entente amend %s --renewal", request)
	}
	return again
}

// Overlay returns the amounts of an amended request: the named ones, and the others from
// the previous request or, if that left them to the provider, from the contract: a request
// for more CPU keeps the memory.
// An amount of 0 has to be named, as a contract keeps what its request does not name.
func Overlay(named, before, signed *ententev1.ResourceList) *ententev1.ResourceList {
	base := before.GetAmounts()
	if len(base) == 0 {
		base = signed.GetAmounts()
	}
	all := maps.Clone(base)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, named.GetAmounts())
	return &ententev1.ResourceList{Amounts: all}
}

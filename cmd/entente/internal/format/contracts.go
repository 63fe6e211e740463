package format

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// WhyEnding says why and when a contract ends or ended; empty while it is in force.
func WhyEnding(k *ententev1.Contract) string {
	switch k.GetPhase() {
	case "Closed":
		text := cmp.Or(k.GetMessage(), "closed")
		if k.GetCloseTime() != nil {
			text += " at " + Moment(k.GetCloseTime())
		}
		return text
	case "Draining":
		text := cmp.Or(k.GetMessage(), "draining")
		if k.GetDrainUntil() != nil {
			text += "; drains until " + Moment(k.GetDrainUntil())
		}
		return text
	}
	return ""
}

// AsksAgain says that a consumer whose contract was ended gets another one as soon as it asks, and how to
// prevent that, by a test of the policies for it; empty if none gives it one without approval.
func AsksAgain(tests []*ententev1.PolicyTest) string {
	if len(tests) != 1 || tests[0].GetAdvertisement() == nil || tests[0].GetReason() != "" {
		return ""
	}
	peer := Short(tests[0].GetPeer())
	return fmt.Sprintf("policy %s gives %s another contract as soon as it asks; to prevent that: entente deny %s", tests[0].GetPolicy(), peer, peer)
}

// LessThanUsed says which of the amounts that a request asks for are less than what is used of its contract;
// empty if none is.
func LessThanUsed(asked, used *ententev1.ResourceList) string {
	over := map[string]string{}
	for name, amount := range asked.GetAmounts() {
		want, err := peering.ParseQuantity(amount)
		uses, usesErr := peering.ParseQuantity(used.GetAmounts()[name])
		if err == nil && usesErr == nil && uses.Cmp(want) > 0 {
			over[name] = used.GetAmounts()[name]
		}
	}
	if len(over) == 0 {
		return ""
	}
	return fmt.Sprintf("less than what is used now (%s): pods that run stay, new ones wait until there is room", Listed(over))
}

// Cost is the price of all of a contract's resources, for people.
func Cost(k *ententev1.Contract) string {
	list, err := wire.PriceListFrom("price", k.GetPrice())
	if err != nil {
		return Prices(k.GetPrice())
	}
	resources, err := wire.ResourcesFrom("resources", k.GetResources())
	if err != nil {
		return Prices(k.GetPrice())
	}
	m, err := list.Hourly(resources)
	switch {
	case err != nil:
		return err.Error()
	case list.IsFree():
		return "free"
	}
	return m.String() + " an hour"
}

// ProviderOf is the provider, or the peer that is asked.
func ProviderOf(p *ententev1.Peering) string {
	switch {
	case p.GetProvider() != "" && Short(p.GetPeer()) == AnyPeer:
		return Short(p.GetProvider()) + " (of any)"
	case Short(p.GetPeer()) == AnyPeer:
		return "any"
	}
	return Short(p.GetPeer())
}

// Asked lists the requested amounts; none means all that the policy gives.
func Asked(r *ententev1.ResourceList) string {
	if len(r.GetAmounts()) == 0 {
		return "what the policy gives"
	}
	return Amounts(r)
}

// AskedBriefly is Asked in the form of Briefly.
func AskedBriefly(r *ententev1.ResourceList) string {
	if len(r.GetAmounts()) == 0 {
		return Asked(r)
	}
	return Briefly(r)
}

// AskedTerms returns what a request asks for besides amounts, price and time: an
// approval covers this as well.
func AskedTerms(r *ententev1.PendingRequest) string {
	var parts []string
	if r.GetPool() != "" {
		parts = append(parts, "pool "+r.GetPool())
	}
	for _, key := range slices.Sorted(maps.Keys(r.GetNodeSelector())) {
		parts = append(parts, "nodes "+key+"="+r.GetNodeSelector()[key])
	}
	if classes := r.GetRuntimeClasses(); len(classes) > 0 {
		parts = append(parts, "runtime class "+strings.Join(classes, " or "))
	}
	if classes := r.GetStorageClasses(); len(classes) > 0 {
		parts = append(parts, "storage class "+strings.Join(classes, " or "))
	}
	if r.GetNoNetwork() {
		parts = append(parts, "no tunnel")
	}
	return strings.Join(parts, ", ")
}

// UsageState is the state of a period: stated, counted or running. It also understands an
// agent that is too old to send it.
func UsageState(u *ententev1.Usage) string {
	switch {
	case u.GetState() != "":
		return strings.ToLower(u.GetState())
	case u.GetSequence() == 0:
		return "running"
	case len(u.GetStated()) > 0 || u.GetAmount() != nil:
		return "stated"
	}
	return "counted"
}

// Totals sums up what is owed, one sum per currency.
func Totals(usage []*ententev1.Usage) string {
	sums := map[string]map[string]peering.Decimal{"Consumer": {}, "Provider": {}}
	for _, u := range usage {
		m, err := wire.MoneyFrom("amount", u.GetAmount())
		if err != nil || m.IsNone() || sums[u.GetRole()] == nil {
			continue
		}
		sum, err := sums[u.GetRole()][m.Currency].Add(m.Amount)
		if err != nil {
			return "the sum is too large to show"
		}
		sums[u.GetRole()][m.Currency] = sum
	}
	var parts []string
	for _, side := range []struct{ role, verb string }{{"Consumer", "this cluster owes"}, {"Provider", "this cluster is owed"}} {
		var amounts []string
		for _, currency := range slices.Sorted(maps.Keys(sums[side.role])) {
			amounts = append(amounts, peering.Money{Currency: currency, Amount: sums[side.role][currency]}.String())
		}
		if len(amounts) > 0 {
			parts = append(parts, side.verb+" "+strings.Join(amounts, " and "))
		}
	}
	return strings.Join(parts, "; ")
}

// IDs names contracts.
func IDs(contracts []*ententev1.Contract) string {
	list := make([]string, 0, len(contracts))
	for _, c := range contracts {
		list = append(list, c.GetContractId())
	}
	if len(list) == 1 {
		return "Contract " + list[0]
	}
	return "Contracts " + strings.Join(list, ", ")
}

// AnyPeer asks the peer that fits best.
const AnyPeer = "-"

// PrintState prints the current state of a contract.
func PrintState(t *printer.Table, now time.Time, k *ententev1.Contract) {
	t.Row("Phase", k.GetPhase(), WhyEnding(k))
	t.Row("This cluster is", strings.ToLower(k.GetRole()), "the other is peer "+Short(k.GetPeer()))
	t.Row("In use", Amounts(k.GetUsed()), "by "+Count(int(k.GetPods()), "pod"))
	if k.GetNode() != "" {
		t.Row("Virtual node", k.GetNode())
	}
	if k.GetDrainUntil() != nil {
		t.Row("Drains", Until(now, k.GetDrainUntil())+" yet")
	}
}

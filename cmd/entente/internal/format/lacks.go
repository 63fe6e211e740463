package format

import (
	"fmt"
	"strings"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// Lacks says which of the usual resources a contract has none of, and how its request asks for some; empty
// if it has all of them, or is for a tunnel alone. A request that names one amount gets no other but pods.
func Lacks(request string, k *ententev1.Contract) string {
	amounts := k.GetResources().GetAmounts()
	if _, pods := amounts[peering.Pods]; len(amounts) == 0 || len(amounts) == 1 && pods {
		return ""
	}
	var names, flags []string
	which := " that requests any"
	for _, usual := range []struct{ name, value string }{{"cpu", "AMOUNT"}, {"memory", "AMOUNT"}, {peering.Pods, "NUMBER"}} {
		if q, err := peering.ParseQuantity(amounts[usual.name]); err == nil && !q.IsZero() {
			continue
		}
		names, flags = append(names, usual.name), append(flags, "--"+usual.name+" "+usual.value)
		if usual.name == peering.Pods {
			which = ""
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("the contract has no %s: no pod%s can run under it; to ask for more: entente amend %s %s",
		strings.Join(names, " and no "), which, request, strings.Join(flags, " "))
}

package format

import (
	"fmt"
	"strings"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// Lacks says which of the usual resources a contract has none of, and how its request asks for some; empty
// if it has all of them, or is for a tunnel alone. A request that names one amount gets no other but pods.
// ephemeral-storage is usual where the provider offers some: many charts request it, and a node without it takes no
// pod that does.
func Lacks(request string, k *ententev1.Contract, offer *ententev1.Offer) string {
	amounts := k.GetResources().GetAmounts()
	if _, pods := amounts[peering.Pods]; len(amounts) == 0 || len(amounts) == 1 && pods {
		return ""
	}
	var names, flags []string
	which := " that requests any"
	for _, usual := range []struct {
		name, flag string
		is         bool
	}{
		{"cpu", "--cpu AMOUNT", true},
		{"memory", "--memory AMOUNT", true},
		{ephemeralStorage, "--resources " + ephemeralStorage + "=AMOUNT", has(offered(offer, k.GetPool()), ephemeralStorage)},
		{peering.Pods, "--pods NUMBER", true},
	} {
		if !usual.is || has(amounts, usual.name) {
			continue
		}
		names, flags = append(names, usual.name), append(flags, usual.flag)
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

const ephemeralStorage = "ephemeral-storage"

// offered is the amounts that a provider offers of a pool, or without one.
func offered(o *ententev1.Offer, pool string) map[string]string {
	for _, p := range o.GetPools() {
		if pool != "" && p.GetName() == pool {
			return p.GetResources().GetAmounts()
		}
	}
	return o.GetResources().GetAmounts()
}

func has(amounts map[string]string, name string) bool {
	q, err := peering.ParseQuantity(amounts[name])
	return err == nil && !q.IsZero()
}

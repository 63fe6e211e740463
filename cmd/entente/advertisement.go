package main

import (
	"maps"
	"slices"
	"strings"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// printAdvertisement prints what a provider would lend, and on what terms. Nothing
// is held back for who only asks.
func (a *app) printAdvertisement(ad *ententev1.Advertisement) {
	t := a.table()
	t.row("Resources", amounts(ad.GetResources()))
	t.row("Price", prices(ad.GetPrice()))
	t.row("All of it", perHour(ad.GetHourly()))
	t.row("Duration", span(ad.GetDuration(), "-"))
	t.row("Renewable", yesNo(ad.GetRenewable()))
	t.row("Notice", span(ad.GetNotice(), "none"))
	t.row("Statements", every(span(ad.GetStatementPeriod(), "")))
	t.row("Network", network(ad.GetNetwork(), ad.GetExposure()))
	t.row("Pod security", orNone(ad.GetPodSecurity(), "-"))
	t.fact("Node labels", pairs(ad.GetNodeLabels()))
	t.fact("On nodes with", pairs(ad.GetNodeSelector()))
	t.fact("Runtime classes", strings.Join(ad.GetRuntimeClasses(), ", "))
	t.fact("Storage classes", strings.Join(ad.GetStorageClasses(), ", "))
	t.flush()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func every(period string) string {
	if period == "" {
		return "none"
	}
	return "every " + period
}

// network is what a contract says of the tunnel.
func network(tunnel bool, exposure string) string {
	switch {
	case !tunnel:
		return "none"
	case exposure == "":
		return "tunnel"
	case exposure == "Offloaded":
		return "tunnel; reachable are offloaded pods and the services of their namespaces"
	}
	return "tunnel; exposure " + exposure
}

// pairs writes labels as selectors are written.
func pairs(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, ",")
}

package main

import (
	"cmp"
	"strings"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// printAdvertisement prints what a provider would lend, and on what terms. Nothing
// is held back for who only asks.
func (a *app) printAdvertisement(ad *ententev1.Advertisement) {
	t := a.table()
	t.Row("Resources", format.Amounts(ad.GetResources()))
	t.Row("Price", format.Prices(ad.GetPrice()))
	t.Row("All of it", format.PerHour(ad.GetHourly()))
	t.Row("Duration", format.Span(ad.GetDuration(), "-"))
	t.Row("Renewable", format.YesNo(ad.GetRenewable()))
	t.Row("Notice", format.Span(ad.GetNotice(), "none"))
	t.Row("Statements", format.Every(format.Span(ad.GetStatementPeriod(), "")))
	t.Row("Network", format.Network(ad.GetNetwork(), ad.GetExposure()))
	t.Row("Pod security", cmp.Or(ad.GetPodSecurity(), "-"))
	t.Fact("Node labels", format.Pairs(ad.GetNodeLabels()))
	t.Fact("On nodes with", format.Pairs(ad.GetNodeSelector()))
	t.Fact("Runtime classes", strings.Join(ad.GetRuntimeClasses(), ", "))
	t.Fact("Storage classes", strings.Join(ad.GetStorageClasses(), ", "))
	t.Flush()
}

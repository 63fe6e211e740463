package format

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// PrintTerms prints the terms that two clusters agreed, after they were verified.
func PrintTerms(t *printer.Table, now time.Time, e peering.Envelope, terms peering.Terms) {
	t.Row("Contract", terms.ContractID)
	t.Row("Revision", fmt.Sprint(terms.Revision))
	t.Row("Consumer", string(terms.Consumer.ID), "signed", keyNote(terms.Consumer))
	t.Row("Provider", string(terms.Provider.ID), "signed", keyNote(terms.Provider))
	ad := wire.AdvertisementTo(peering.Advertisement{Grant: peering.Grant{Clauses: terms.Clauses}})
	printPrice(t, ad)
	t.Row("From", terms.NotBefore.Format(time.RFC3339))
	t.Row("Until", terms.NotAfter.Format(time.RFC3339), validity(terms, now))
	printClauses(t, ad)
	t.Row("Payload", "sha256:"+e.Hash().String())
}

// PrintAdvertisement prints what a provider offers, and on what terms. Asking reserves
// nothing.
func PrintAdvertisement(t *printer.Table, ad *ententev1.Advertisement) {
	printPrice(t, ad)
	t.Row("Duration", Span(ad.GetDuration(), "-"))
	printClauses(t, ad)
}

func printPrice(t *printer.Table, ad *ententev1.Advertisement) {
	t.Row("Resources", Amounts(ad.GetResources()))
	t.Row("Price", Prices(ad.GetPrice()))
	t.Row("All of it", PerHour(ad.GetHourlyPrice()))
}

func printClauses(t *printer.Table, ad *ententev1.Advertisement) {
	every := "none"
	if ad.GetStatementPeriod() != nil {
		every = "every " + Span(ad.GetStatementPeriod(), "")
	}
	t.Row("Renewable", YesNo(ad.GetRenewable()))
	t.Row("Notice", Span(ad.GetNotice(), "none"))
	t.Row("Statements", every)
	t.Row("Network", network(ad.GetNetwork(), ad.GetExposure()))
	t.Row("Pod security", cmp.Or(ad.GetPodSecurity(), "-"))
	printLimitRange(t, ad.GetLimitRange())
	t.Fact("Node labels", Pairs(ad.GetNodeLabels()))
	t.Fact("Pool", ad.GetPool())
	t.Fact("On nodes with", Pairs(ad.GetNodeSelector()))
	t.Fact("Runtime classes", strings.Join(ad.GetRuntimeClasses(), ", "))
	t.Fact("Storage classes", strings.Join(ad.GetStorageClasses(), ", "))
}

// printLimitRange prints the defaults and the bounds of containers.
func printLimitRange(t *printer.Table, l *ententev1.LimitRange) {
	for _, row := range []struct {
		name    string
		amounts *ententev1.ResourceList
	}{
		{"Default requests", l.GetDefaultRequest()},
		{"Default limits", l.GetDefaultLimit()},
		{"A container at least", l.GetMin()},
		{"A container at most", l.GetMax()},
		{"A pod at least", l.GetPodMin()},
		{"A pod at most", l.GetPodMax()},
	} {
		if len(row.amounts.GetAmounts()) > 0 {
			t.Row(row.name, Amounts(row.amounts))
		}
	}
}

// network is what a contract says about the tunnel.
func network(tunnel bool, exposure string) string {
	switch {
	case !tunnel:
		return "none"
	case exposure == "":
		return "tunnel"
	case exposure == peering.ExposureOffloaded:
		return "tunnel; reachable are offloaded pods and the services of their namespaces"
	}
	if exposure == peering.ExposureExported {
		return "tunnel; reachable are offloaded pods, the services of their namespaces, and those that the provider exports"
	}
	return "tunnel; exposure " + exposure
}

// keyNote says with which of its keys a party signed, if it had several.
func keyNote(p peering.Party) string {
	if n := len(p.Succession); n > 0 {
		return fmt.Sprintf("with its key number %d, which succeeds the one from which its ID is derived", n+1)
	}
	return ""
}

// validity says whether the terms are in force at a time.
func validity(t peering.Terms, now time.Time) string {
	switch {
	case now.Before(t.NotBefore):
		return "not in force yet"
	case now.After(t.NotAfter):
		return "over"
	}
	return Until(now, timestamppb.New(t.NotAfter)) + " left, unless it was ended"
}

// PolicyAnswer is what a peer would get by a policy; of a policy by itself whether something is wrong with it.
func PolicyAnswer(t *ententev1.PolicyTest) string {
	switch refused := t.GetReason() != ""; {
	case t.GetPeer() == "" && refused:
		return "invalid"
	case t.GetPeer() == "":
		return "valid"
	case t.GetAdvertisement() == nil:
		return "refused"
	case refused:
		return "after approval"
	}
	return "granted"
}

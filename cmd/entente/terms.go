package main

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/cmd/entente/internal/printer"
	"github.com/entente-dev/entente/peering"
)

// printTerms prints what two clusters agreed, after it was verified.
func (a *app) printTerms(t *printer.Table, e peering.Envelope, terms peering.Terms) {
	t.Row("Contract", terms.ContractID)
	t.Row("Revision", fmt.Sprint(terms.Revision))
	t.Row("Consumer", string(terms.Consumer.ID), "signed", keyNote(terms.Consumer))
	t.Row("Provider", string(terms.Provider.ID), "signed", keyNote(terms.Provider))
	t.Row("Resources", terms.Resources.String())
	t.Row("Price", format.PriceText(terms.Price))
	t.Row("All of it", hourly(terms.Price, terms.Resources))
	t.Row("From", terms.NotBefore.Format(time.RFC3339))
	t.Row("Until", terms.NotAfter.Format(time.RFC3339), a.validity(terms))
	t.Row("Renewable", format.YesNo(terms.Renewable))
	t.Row("Notice", format.NoneOr(terms.Notice))
	t.Row("Statements", format.Every(strings.TrimPrefix(format.NoneOr(terms.StatementPeriod), "none")))
	t.Row("Network", format.Network(terms.Network, terms.Exposure))
	t.Row("Pod security", string(terms.PodSecurity))
	t.Fact("Node labels", format.Pairs(terms.NodeLabels))
	t.Fact("On nodes with", format.Pairs(terms.NodeSelector))
	t.Fact("Runtime classes", strings.Join(terms.RuntimeClasses, ", "))
	t.Row("Payload", "sha256:"+e.Hash().String())
}

// keyNote says which of its keys a party signed with, if it had several.
func keyNote(p peering.Party) string {
	if n := len(p.Succession); n > 0 {
		return fmt.Sprintf("with its key number %d, which follows from the one behind its ID", n+1)
	}
	return ""
}

// validity says how the terms stand in time.
func (a *app) validity(t peering.Terms) string {
	now := a.now()
	switch {
	case now.Before(t.NotBefore):
		return "not in force yet"
	case now.After(t.NotAfter):
		return "over"
	}
	return a.until(timestamppb.New(t.NotAfter)) + " left, unless it was ended"
}

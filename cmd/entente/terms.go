package main

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/peering"
)

// printTerms prints what two clusters agreed, after it was verified.
func (a *app) printTerms(t *table, e peering.Envelope, terms peering.Terms) {
	t.row("Contract", terms.ContractID)
	t.row("Revision", fmt.Sprint(terms.Revision))
	t.row("Consumer", string(terms.Consumer.ID), "signed", keyNote(terms.Consumer))
	t.row("Provider", string(terms.Provider.ID), "signed", keyNote(terms.Provider))
	t.row("Resources", terms.Resources.String())
	t.row("Price", priceText(terms.Price))
	t.row("All of it", hourly(terms.Price, terms.Resources))
	t.row("From", terms.NotBefore.Format(time.RFC3339))
	t.row("Until", terms.NotAfter.Format(time.RFC3339), a.validity(terms))
	t.row("Renewable", yesNo(terms.Renewable))
	t.row("Notice", noneOr(terms.Notice))
	t.row("Statements", every(strings.TrimPrefix(noneOr(terms.StatementPeriod), "none")))
	t.row("Network", network(terms.Network, terms.Exposure))
	t.row("Pod security", string(terms.PodSecurity))
	t.fact("Node labels", pairs(terms.NodeLabels))
	t.fact("On nodes with", pairs(terms.NodeSelector))
	t.fact("Runtime classes", strings.Join(terms.RuntimeClasses, ", "))
	t.row("Payload", "sha256:"+e.Hash().String())
}

// keyNote says which of its keys a party signed with, if it had several.
func keyNote(p peering.Party) string {
	if n := len(p.Succession); n > 0 {
		return fmt.Sprintf("with its key number %d, which follows from the one behind its ID", n+1)
	}
	return ""
}

func noneOr(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return spanOf(d)
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

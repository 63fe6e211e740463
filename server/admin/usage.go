package admin

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

func (s *service) ListUsage(ctx context.Context, req *ententev1.ListUsageRequest) (*ententev1.ListUsageResponse, error) {
	var contracts v1alpha1.ContractList
	if req.GetContract() == "" {
		if err := s.cfg.Client.List(ctx, &contracts); err != nil {
			return nil, fmt.Errorf("list contracts: %w", err)
		}
	} else {
		name, ok := strings.CutPrefix(req.GetContract(), "contracts/")
		if !ok || peering.CheckContractID(name) != nil {
			return nil, middleware.BadField("contract", "want contracts/ID")
		}
		c, err := s.contract(ctx, req.GetContract())
		if err != nil {
			return nil, err
		}
		contracts.Items = []v1alpha1.Contract{*c}
	}
	var rows []usageRow
	for i := range contracts.Items {
		rows = append(rows, usageOf(&contracts.Items[i])...)
	}
	part, next, err := pageOf(req, "usage of "+req.GetContract(), rows, (*usageRow).key, (*usageRow).message)
	return &ententev1.ListUsageResponse{Usage: part, NextPageToken: next}, err
}

// usageRow is what was used of a contract in one period, by both counts.
type usageRow struct {
	contract *v1alpha1.Contract
	// sequence is the period's number, 0 for the one that has not ended.
	sequence uint64
	from, to time.Time
	// stated is the provider's signed statement, if there is one.
	stated *peering.Statement
	// counted is this cluster's own count, if it has one.
	counted peering.Usage
}

// key orders rows by contract and time.
func (r *usageRow) key() string {
	at := r.sequence
	if at == 0 {
		at = math.MaxUint64 // it comes last
	}
	return fmt.Sprintf("%s/%020d", r.contract.Name, at)
}

// usageOf returns the rows of a contract: the periods with a statement or a count, and the
// current one. Malformed entries are left out: the agent verified statements before it kept them,
// and counts are its own.
func usageOf(c *v1alpha1.Contract) []usageRow {
	rows := map[uint64]*usageRow{}
	at := func(sequence uint64) *usageRow {
		if rows[sequence] == nil {
			rows[sequence] = &usageRow{contract: c, sequence: sequence}
		}
		return rows[sequence]
	}
	for _, s := range c.Status.Statements {
		envelope, err := peering.ParseEnvelope([]byte(s.Envelope))
		if err != nil {
			continue
		}
		statement, err := peering.ParseStatement(envelope.Payload)
		if err != nil || statement.ContractID != c.Name {
			continue
		}
		row := at(statement.Sequence)
		row.stated, row.from, row.to = &statement, statement.From, statement.To
		if c.Spec.Role == v1alpha1.ContractProvider {
			row.counted = statement.Used // this cluster made the statement by its own count
		}
	}
	if u := c.Status.Usage; u != nil {
		for i, p := range u.Periods {
			sequence := u.Sequence - int64(len(u.Periods)-1-i)
			counted, err := peering.ParseUsage(p.UnitSeconds)
			if err != nil || sequence < 1 {
				continue
			}
			row := at(uint64(sequence))
			// A count with another begin or end is not of this period.
			if s := row.stated; s == nil || s.From.Equal(p.Since.Time) && s.To.Equal(p.Until.Time) {
				row.counted, row.from, row.to = counted, p.Since.Time, p.Until.Time
			}
		}
		// A closed contract has no current period.
		if counted, err := peering.ParseUsage(u.UnitSeconds); err == nil && !closed(c) {
			row := at(0)
			row.counted, row.from, row.to = counted, u.Since.Time, u.Until.Time
		}
	}
	out := make([]usageRow, 0, len(rows))
	for _, row := range rows {
		out = append(out, *row)
	}
	return out
}

// state is which counts of a period there are, and whether they agree.
func (r *usageRow) state() string {
	switch {
	case r.stated != nil:
		return "Stated"
	case r.sequence == 0:
		return "Running"
	}
	return "Counted"
}

func (r *usageRow) message() *ententev1.Usage {
	m := &ententev1.Usage{
		Contract: "contracts/" + r.contract.Name, Peer: "peers/" + r.contract.Spec.ForeignCluster, Role: string(r.contract.Spec.Role),
		Sequence: r.sequence, StartTime: timeMessage(r.from), EndTime: timeMessage(r.to),
		State: r.state(), Phase: r.contract.Status.Phase,
	}
	price, err := wire.PriceListFrom("price", priceMessage(r.contract.Spec.Price))
	if r.stated != nil {
		m.Stated, m.Amount = r.stated.Used.Hours(), wire.MoneyTo(r.stated.Amount)
		// A later revision may have other prices.
		price, err = r.stated.Price, nil
	}
	if r.counted == nil {
		return m
	}
	m.Counted = r.counted.Hours()
	if err != nil {
		return m
	}
	cost, err := price.Cost(r.counted)
	if err != nil {
		return m // the amount is out of range
	}
	m.CountedAmount = wire.MoneyTo(cost)
	if r.stated != nil {
		m.DifferencePercent = peering.Difference(r.stated.Amount, cost)
	}
	return m
}

package usage

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
)

// Link is the newest statement of a contract, to which the next one is chained.
type Link struct {
	Sequence uint64
	Hash     peering.Hash
	// Statement is zero without a statement.
	Statement peering.Statement
}

// Last returns the newest stored statement.
func Last(stored *v1alpha1.Contract) Link {
	n := len(stored.Status.Statements)
	if n == 0 {
		return Link{}
	}
	last := stored.Status.Statements[n-1]
	out := Link{Sequence: uint64(max(last.Sequence, 0))}
	if e, err := peering.ParseEnvelope([]byte(last.Envelope)); err == nil {
		out.Hash = e.Hash()
		if s, err := peering.ParseStatement(e.Payload); err == nil {
			out.Statement = s
		}
	}
	return out
}

// Newest returns the newest statements, as many as a Contract may have.
func Newest(statements []v1alpha1.Statement) []v1alpha1.Statement {
	bytes := 0
	for i, s := range slices.Backward(statements) {
		if bytes += len(s.Envelope); len(statements)-i > MaxKept || bytes > maxKeptBytes {
			return statements[i+1:]
		}
	}
	return statements
}

// NewStatement returns the unsigned statement for a period. Its prices are those of the
// revision in force when it is made.
func NewStatement(terms peering.Terms, p meter.Period, previous peering.Hash) (peering.Envelope, error) {
	amount, err := terms.Price.Cost(p.Used)
	if err != nil {
		return peering.Envelope{}, err
	}
	return peering.NewStatementEnvelope(peering.Statement{
		ContractID: terms.ContractID, Revision: terms.Revision, Consumer: terms.Consumer.ID, Provider: terms.Provider.ID,
		Sequence: p.Sequence, Previous: previous, From: p.From, To: p.To, Used: p.Used, Price: terms.Price, Amount: amount,
	})
}

// StatementError is why a statement is not accepted.
type StatementError struct{ Reason, Message string }

func (e *StatementError) Error() string { return e.Message }

// Check is what a provider's next statement is checked against.
type Check struct {
	Provider peering.Party
	// Revisions are the terms that this cluster has: the newest, then the one before.
	Revisions []peering.Terms
	// Last is the previous statement.
	Last Link
	// Over says that the contract is ending or over: its last period may be short.
	Over bool
	Now  time.Time
}

// Next returns a statement if it is the provider's and valid, else a
// *StatementError. Whether it follows the one before, Follows reports.
func (v Check) Next(e peering.Envelope) (peering.Statement, error) {
	no := func(reason, format string, args ...any) error {
		return &StatementError{Reason: reason, Message: fmt.Sprintf("statement after number %d: ", v.Last.Sequence) + fmt.Sprintf(format, args...)}
	}
	s, err := e.VerifyStatement(v.Provider)
	if err != nil {
		return s, no("SignatureInvalid", "%s", err)
	}
	terms := v.revision(s.Revision)
	switch current := v.Revisions[0]; {
	case s.ContractID != current.ContractID || s.Consumer != current.Consumer.ID || s.Provider != current.Provider.ID:
		return s, no("ContractMismatch", "it is of contract %s between %s and %s", s.ContractID, s.Consumer, s.Provider)
	case s.Sequence <= v.Last.Sequence:
		return s, no("SequenceMismatch", "it has number %d", s.Sequence)
	case s.Sequence == v.Last.Sequence+1 && v.Last.Sequence > 0 && !s.From.Equal(v.Last.Statement.To):
		return s, no("PeriodMismatch", "it begins at %s, and the one before ended at %s", s.From.Format(time.RFC3339), v.Last.Statement.To.Format(time.RFC3339))
	case terms == nil:
		return s, no("RevisionMismatch", "it has the prices of revision %d, and this cluster has revision %d", s.Revision, current.Revision)
	case !s.Price.Equal(terms.Price):
		return s, no("PriceMismatch", "its prices are not those of revision %d", s.Revision)
	case s.Sequence == 1 && s.Revision == 1 && !s.From.Equal(terms.NotBefore):
		return s, no("PeriodMismatch", "it begins at %s, and the contract at %s", s.From.Format(time.RFC3339), terms.NotBefore.Format(time.RFC3339))
	}
	switch length := s.To.Sub(s.From); {
	case length > terms.StatementPeriod, length < terms.StatementPeriod && !v.Over:
		return s, no("PeriodMismatch", "it covers %s, and the contract says %s", length, terms.StatementPeriod)
	case s.To.Sub(v.Now) > market.StartSkew:
		return s, no("PeriodMismatch", "it covers time until %s, which is not over", s.To.Format(time.RFC3339))
	}
	// ParseStatement checked that the amount follows from use and prices.
	return s, nil
}

// Follows reports whether a statement has the hash of the one before it. A provider that was restored from a
// backup states again what it stated since: its next statement follows one that this cluster does not have.
func (v Check) Follows(s peering.Statement) bool {
	return s.Sequence != v.Last.Sequence+1 || s.Previous == v.Last.Hash
}

func (v Check) revision(n uint64) *peering.Terms {
	if i := slices.IndexFunc(v.Revisions, func(t peering.Terms) bool { return t.Revision == n }); i >= 0 {
		return &v.Revisions[i]
	}
	return nil
}

// Agreement compares the newest statement with this cluster's own count of the
// same period. known is false while there is no such pair.
func Agreement(terms peering.Terms, stored *v1alpha1.Contract) (agreed bool, reason, message string, known bool) {
	last := Last(stored)
	own, ok := ownPeriod(stored.Status.Usage, last.Sequence)
	if last.Statement.Sequence == 0 || !ok || !own.Since.Time.Equal(last.Statement.From) {
		return false, "", "", false
	}
	counted, err := peering.ParseUsage(own.UnitSeconds)
	if err != nil {
		return false, "", "", false
	}
	s := last.Statement
	price := s.Price
	if price.IsFree() {
		price = weights(s.Used, counted)
	}
	stated, err1 := price.Cost(s.Used)
	mine, err2 := price.Cost(counted)
	slack, err3 := price.Cost(useFor(terms.Resources, agreeSlack))
	percent, err4 := peering.ParseDecimal(peering.Difference(stated, mine))
	limit, err5 := peering.ParseDecimal(fmt.Sprint(agreeWithin))
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return false, "Incomparable", fmt.Sprintf("statement %d: %s", s.Sequence, err), true
	}
	if percent.Cmp(limit) > 0 && apart(stated.Amount, mine.Amount, slack.Amount) {
		owed, _ := s.Price.Cost(counted) // mine, or zero if free of charge
		return false, "Differs", fmt.Sprintf("statement %d, of %s to %s, differs by %s%% from what this cluster counted: the provider counted %s, this cluster %s",
			s.Sequence, s.From.Format(time.RFC3339), s.To.Format(time.RFC3339), percent, usageText(s.Used, s.Amount), usageText(counted, owed)), true
	}
	return true, "Agrees", fmt.Sprintf("statement %d is within %d%% of what this cluster counted", s.Sequence, agreeWithin), true
}

// usageText returns usage and cost as text.
func usageText(used peering.Usage, amount peering.Money) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(used)) {
		parts = append(parts, name+" "+used.Hours()[name])
	}
	text := "nothing"
	if len(parts) > 0 {
		text = strings.Join(parts, ", ") + " unit-hours"
	}
	if !amount.Amount.IsZero() {
		text += " for " + amount.String()
	}
	return text
}

// apart reports whether two amounts differ by more than slack.
func apart(a, b, slack peering.Decimal) bool {
	if a.Cmp(b) > 0 {
		a, b = b, a
	}
	most, err := a.Add(slack)
	return err == nil && b.Cmp(most) > 0
}

// weights returns prices to compare use that is free of charge: every unit counts the same.
func weights(uses ...peering.Usage) peering.PriceList {
	one, err := peering.ParseDecimal("1")
	if err != nil {
		return peering.PriceList{}
	}
	// XXX means no currency (ISO 4217).
	p := peering.PriceList{Currency: "XXX", PerHour: map[string]peering.Decimal{}}
	for _, u := range uses {
		for name := range u {
			p.PerHour[name] = one
		}
	}
	return p
}

// useFor returns the usage of r for a duration.
func useFor(r peering.Resources, d time.Duration) peering.Usage {
	m := meter.New(time.Unix(0, 0), peering.MaxStatementPeriod)
	m, _ = m.Observe(m.Since, r)
	m, _ = m.Observe(m.Since.Add(d), r)
	return m.Used
}

// ownPeriod returns this cluster's own count of a period.
func ownPeriod(usage *v1alpha1.Usage, sequence uint64) (v1alpha1.UsagePeriod, bool) {
	if usage == nil {
		return v1alpha1.UsagePeriod{}, false
	}
	i := int64(len(usage.Periods)) - 1 - (usage.Sequence - int64(sequence))
	if i < 0 || i >= int64(len(usage.Periods)) {
		return v1alpha1.UsagePeriod{}, false
	}
	return usage.Periods[i], true
}

// Owed sums up the amounts of a contract's statements, in the contract's currency.
func Owed(c *v1alpha1.Contract) peering.Decimal {
	var sum peering.Decimal
	for _, statement := range c.Status.Statements {
		e, err := peering.ParseEnvelope([]byte(statement.Envelope))
		if err != nil {
			continue
		}
		s, err := peering.ParseStatement(e.Payload)
		if err != nil {
			continue
		}
		if total, err := sum.Add(s.Amount.Amount); err == nil {
			sum = total
		}
	}
	return sum
}

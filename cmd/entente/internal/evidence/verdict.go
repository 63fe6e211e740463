package evidence

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// Verdict is evidence that was verified.
type Verdict struct {
	Contracts  []provenContract
	Statements []provenStatement
}

type provenContract struct {
	Envelope peering.Envelope
	Terms    peering.Terms
}

type provenStatement struct {
	Envelope  peering.Envelope
	Statement peering.Statement
	// Note says what could not be checked, and what is missing for that.
	Note string
}

// Expected is what is known without the evidence: the parties, if not empty, and
// the provider's trust bundle (PEM), which has the keys that succeeded its key after the
// contract was signed.
type Expected struct {
	Consumer, Provider string
	Bundle             []byte
}

// Judge verifies evidence: that each contract is signed by both parties with the
// keys behind their IDs, that revisions follow each other, that statements are
// the provider's, about these contracts, at their prices, and follow each other.
func Judge(ev Envelopes, want Expected) (Verdict, error) {
	var v Verdict
	for _, e := range ev.contracts {
		terms, err := e.Verify()
		if err != nil {
			return Verdict{}, notValid("contract: %w", err)
		}
		if err := want.check(terms); err != nil {
			return Verdict{}, err
		}
		v.Contracts = append(v.Contracts, provenContract{e, terms})
	}
	slices.SortStableFunc(v.Contracts, func(a, b provenContract) int {
		return cmp.Or(cmp.Compare(a.Terms.ContractID, b.Terms.ContractID), cmp.Compare(a.Terms.Revision, b.Terms.Revision))
	})
	if err := v.checkRevisions(); err != nil {
		return Verdict{}, err
	}
	for _, e := range ev.statements {
		s, err := v.statement(e, want)
		if err != nil {
			return Verdict{}, err
		}
		v.Statements = append(v.Statements, s)
	}
	slices.SortStableFunc(v.Statements, func(a, b provenStatement) int {
		return cmp.Or(cmp.Compare(a.Statement.ContractID, b.Statement.ContractID), cmp.Compare(a.Statement.Sequence, b.Statement.Sequence))
	})
	return v, v.checkStatements()
}

func notValid(format string, args ...any) error { return fmt.Errorf("NOT valid: "+format, args...) }

// check compares the parties with those that are expected.
func (x Expected) check(t peering.Terms) error {
	for _, want := range []struct {
		role string
		id   string
		got  peering.ClusterID
	}{{"consumer", x.Consumer, t.Consumer.ID}, {"provider", x.Provider, t.Provider.ID}} {
		if want.id != "" && want.id != string(want.got) {
			return fmt.Errorf("NOT the expected parties: the %s is %s, not %s", want.role, want.got, want.id)
		}
	}
	return nil
}

// checkRevisions checks that revisions of one contract, as far as they are there,
// follow each other.
func (v Verdict) checkRevisions() error {
	for i := 1; i < len(v.Contracts); i++ {
		before, now := v.Contracts[i-1], v.Contracts[i]
		a, b := before.Terms, now.Terms
		if a.ContractID != b.ContractID {
			continue
		}
		switch {
		case a.Consumer.ID != b.Consumer.ID || a.Provider.ID != b.Provider.ID:
			return notValid("revisions %d and %d of contract %s have different parties", a.Revision, b.Revision, b.ContractID)
		case a.Revision == b.Revision && before.Envelope.Hash() != now.Envelope.Hash():
			return notValid("there are two different revisions %d of contract %s", b.Revision, b.ContractID)
		case a.Revision+1 == b.Revision && b.Previous != before.Envelope.Hash():
			return notValid("revision %d of contract %s does not follow from this revision %d", b.Revision, b.ContractID, a.Revision)
		}
	}
	return nil
}

func (v Verdict) statement(e peering.Envelope, want Expected) (provenStatement, error) {
	s, err := peering.ParseStatement(e.Payload)
	if err != nil {
		return provenStatement{}, notValid("statement: %w", err)
	}
	about := fmt.Sprintf("statement %d of contract %s", s.Sequence, s.ContractID)
	var provider peering.Party
	var terms *peering.Terms
	for _, c := range v.Contracts {
		if c.Terms.ContractID != s.ContractID {
			continue
		}
		if s.Consumer != c.Terms.Consumer.ID {
			return provenStatement{}, notValid("%s names consumer %s, and the contract %s", about, s.Consumer, c.Terms.Consumer.ID)
		}
		if provider.ID == "" || len(c.Terms.Provider.Succession) > len(provider.Succession) {
			provider = c.Terms.Provider
		}
		if c.Terms.Revision == s.Revision {
			terms = &c.Terms
		}
	}
	if provider.ID == "" {
		return provenStatement{}, fmt.Errorf("%s cannot be verified without that contract: give both files", about)
	}
	if len(want.Bundle) > 0 {
		b, err := identity.ReadBundlePEM(provider.ID, want.Bundle)
		if err != nil {
			return provenStatement{}, err
		}
		if len(b.Succession) > len(provider.Succession) {
			provider = b.Party(provider.ID)
		}
	}
	if s, err = e.VerifyStatement(provider); err != nil {
		return provenStatement{}, notValid("%s: %w", about, err)
	}
	proven := provenStatement{Envelope: e, Statement: s}
	switch {
	case terms == nil:
		proven.Note = fmt.Sprintf("prices not compared: revision %d is not among the files", s.Revision)
	case !terms.Price.Equal(s.Price):
		return provenStatement{}, notValid("%s has other prices than revision %d: %s instead of %s", about, s.Revision, format.PriceText(s.Price), format.PriceText(terms.Price))
	}
	return proven, nil
}

// checkStatements checks that statements of one contract, as far as they are
// there, follow each other.
func (v Verdict) checkStatements() error {
	for i := 1; i < len(v.Statements); i++ {
		before, now := v.Statements[i-1], v.Statements[i]
		a, b := before.Statement, now.Statement
		if a.ContractID != b.ContractID {
			continue
		}
		switch {
		case a.Sequence == b.Sequence && before.Envelope.Hash() != now.Envelope.Hash():
			return notValid("there are two different statements %d of contract %s: its provider contradicts itself", b.Sequence, b.ContractID)
		case a.Sequence+1 == b.Sequence && b.Previous != before.Envelope.Hash():
			return notValid("statement %d of contract %s does not follow from this statement %d", b.Sequence, b.ContractID, a.Sequence)
		case a.Sequence+1 == b.Sequence && !b.From.Equal(a.To):
			return notValid("statement %d of contract %s does not begin where statement %d ends", b.Sequence, b.ContractID, a.Sequence)
		}
	}
	return nil
}

package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// verdict is evidence that holds.
type verdict struct {
	contracts  []provenContract
	statements []provenStatement
}

type provenContract struct {
	envelope peering.Envelope
	terms    peering.Terms
}

type provenStatement struct {
	envelope  peering.Envelope
	statement peering.Statement
	// note is what could not be checked, for want of something else.
	note string
}

// expected is what is known without the evidence: the parties, if not empty, and
// the provider's trust bundle (PEM), which tells how its key went on after the
// contract was signed.
type expected struct {
	consumer, provider string
	bundle             []byte
}

// judge verifies evidence: that each contract is signed by both parties with the
// keys behind their IDs, that revisions follow each other, that statements are
// the provider's, about these contracts, at their prices, and follow each other.
func judge(ev evidence, want expected) (verdict, error) {
	var v verdict
	for _, e := range ev.contracts {
		terms, err := e.Verify()
		if err != nil {
			return verdict{}, notValid("contract: %w", err)
		}
		if err := want.check(terms); err != nil {
			return verdict{}, err
		}
		v.contracts = append(v.contracts, provenContract{e, terms})
	}
	slices.SortStableFunc(v.contracts, func(a, b provenContract) int {
		return cmp.Or(cmp.Compare(a.terms.ContractID, b.terms.ContractID), cmp.Compare(a.terms.Revision, b.terms.Revision))
	})
	if err := v.checkRevisions(); err != nil {
		return verdict{}, err
	}
	for _, e := range ev.statements {
		s, err := v.statement(e, want)
		if err != nil {
			return verdict{}, err
		}
		v.statements = append(v.statements, s)
	}
	slices.SortStableFunc(v.statements, func(a, b provenStatement) int {
		return cmp.Or(cmp.Compare(a.statement.ContractID, b.statement.ContractID), cmp.Compare(a.statement.Sequence, b.statement.Sequence))
	})
	return v, v.checkStatements()
}

func notValid(format string, args ...any) error { return fmt.Errorf("NOT valid: "+format, args...) }

// check compares the parties with those that are expected.
func (x expected) check(t peering.Terms) error {
	for _, want := range []struct {
		role string
		id   string
		got  peering.ClusterID
	}{{"consumer", x.consumer, t.Consumer.ID}, {"provider", x.provider, t.Provider.ID}} {
		if want.id != "" && want.id != string(want.got) {
			return fmt.Errorf("NOT the expected parties: the %s is %s, not %s", want.role, want.got, want.id)
		}
	}
	return nil
}

// checkRevisions checks that revisions of one contract, as far as they are there,
// follow each other.
func (v verdict) checkRevisions() error {
	for i := 1; i < len(v.contracts); i++ {
		before, now := v.contracts[i-1], v.contracts[i]
		a, b := before.terms, now.terms
		if a.ContractID != b.ContractID {
			continue
		}
		switch {
		case a.Consumer.ID != b.Consumer.ID || a.Provider.ID != b.Provider.ID:
			return notValid("revisions %d and %d of contract %s have different parties", a.Revision, b.Revision, b.ContractID)
		case a.Revision == b.Revision && before.envelope.Hash() != now.envelope.Hash():
			return notValid("there are two different revisions %d of contract %s", b.Revision, b.ContractID)
		case a.Revision+1 == b.Revision && b.Previous != before.envelope.Hash():
			return notValid("revision %d of contract %s does not follow from this revision %d", b.Revision, b.ContractID, a.Revision)
		}
	}
	return nil
}

func (v verdict) statement(e peering.Envelope, want expected) (provenStatement, error) {
	s, err := peering.ParseStatement(e.Payload)
	if err != nil {
		return provenStatement{}, notValid("statement: %w", err)
	}
	about := fmt.Sprintf("statement %d of contract %s", s.Sequence, s.ContractID)
	var provider peering.Party
	var terms *peering.Terms
	for _, c := range v.contracts {
		if c.terms.ContractID != s.ContractID {
			continue
		}
		if s.Consumer != c.terms.Consumer.ID {
			return provenStatement{}, notValid("%s names consumer %s, and the contract %s", about, s.Consumer, c.terms.Consumer.ID)
		}
		if provider.ID == "" || len(c.terms.Provider.Succession) > len(provider.Succession) {
			provider = c.terms.Provider
		}
		if c.terms.Revision == s.Revision {
			terms = &c.terms
		}
	}
	if provider.ID == "" {
		return provenStatement{}, fmt.Errorf("%s cannot be verified without that contract: give both files", about)
	}
	if len(want.bundle) > 0 {
		b, err := identity.ReadBundlePEM(provider.ID, want.bundle)
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
	proven := provenStatement{envelope: e, statement: s}
	switch {
	case terms == nil:
		proven.note = fmt.Sprintf("prices not compared: revision %d is not among the files", s.Revision)
	case !terms.Price.Equal(s.Price):
		return provenStatement{}, notValid("%s has other prices than revision %d: %s instead of %s", about, s.Revision, priceText(s.Price), priceText(terms.Price))
	}
	return proven, nil
}

// checkStatements checks that statements of one contract, as far as they are
// there, follow each other.
func (v verdict) checkStatements() error {
	for i := 1; i < len(v.statements); i++ {
		before, now := v.statements[i-1], v.statements[i]
		a, b := before.statement, now.statement
		if a.ContractID != b.ContractID {
			continue
		}
		switch {
		case a.Sequence == b.Sequence && before.envelope.Hash() != now.envelope.Hash():
			return notValid("there are two different statements %d of contract %s: its provider contradicts itself", b.Sequence, b.ContractID)
		case a.Sequence+1 == b.Sequence && b.Previous != before.envelope.Hash():
			return notValid("statement %d of contract %s does not follow from this statement %d", b.Sequence, b.ContractID, a.Sequence)
		case a.Sequence+1 == b.Sequence && !b.From.Equal(a.To):
			return notValid("statement %d of contract %s does not begin where statement %d ends", b.Sequence, b.ContractID, a.Sequence)
		}
	}
	return nil
}

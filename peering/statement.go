package peering

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"
)

// Statement is a provider's statement of what a contract's consumer used in a period, and what
// that costs. Statements of a contract follow each other without gaps, each with the hash of the
// one before.
type Statement struct {
	ContractID string
	// Revision is the contract's revision whose prices apply.
	Revision           uint64
	Consumer, Provider ClusterID
	// Sequence counts the contract's statements from 1.
	Sequence uint64
	// Previous is the hash of the statement before, zero for the first.
	Previous Hash
	// From and To bound the period, in whole seconds, UTC.
	From, To time.Time
	// Used is the use: the requests of live pods over time.
	Used Usage
	// Price is the revision's.
	Price PriceList
	// Amount is the cost of Used at Price.
	Amount Money
}

// StatementPayloadType is the type of a statement's payload, in its envelope.
const StatementPayloadType = "application/vnd.entente.usage.v1+json"

// jsonStatement is the JSON of a Statement, with fields in the order of their names.
type jsonStatement struct {
	Amount     Money     `json:"amount"`
	Consumer   ClusterID `json:"consumer"`
	ContractID string    `json:"contractID"`
	From       string    `json:"from"`
	Previous   string    `json:"previousHash"`
	Price      PriceList `json:"price"`
	Provider   ClusterID `json:"provider"`
	Revision   uint64    `json:"revision"`
	Sequence   uint64    `json:"sequence"`
	To         string    `json:"to"`
	Used       Usage     `json:"unitSeconds"`
}

// Marshal writes the statement in its only form, as Terms.Marshal does. It fails
// if the statement is not valid.
func (s Statement) Marshal() ([]byte, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("encode statement: %w", err)
	}
	b, err := canonical(jsonStatement{
		Amount:     s.Amount,
		Consumer:   s.Consumer,
		ContractID: s.ContractID,
		From:       s.From.Format(time.RFC3339),
		Previous:   hashText(s.Previous),
		Price:      s.Price.written(),
		Provider:   s.Provider,
		Revision:   s.Revision,
		Sequence:   s.Sequence,
		To:         s.To.Format(time.RFC3339),
		Used:       orEmpty(s.Used),
	}, MaxStatement)
	if err != nil {
		return nil, fmt.Errorf("encode statement: %w", err)
	}
	return b, nil
}

// ParseStatement reads only what Marshal wrote. A statement whose amount is not the cost of its
// use at its price is refused.
func ParseStatement(payload []byte) (Statement, error) {
	return parsePayload("statement", payload, MaxStatement, jsonStatement.statement)
}

func (j jsonStatement) statement() (Statement, error) {
	s := Statement{
		ContractID: j.ContractID,
		Revision:   j.Revision,
		Consumer:   j.Consumer,
		Provider:   j.Provider,
		Sequence:   j.Sequence,
		Used:       j.Used,
		Price:      j.Price.read(),
		Amount:     j.Amount,
	}
	var err error
	if j.Previous != "" {
		if s.Previous, err = ParseHash(j.Previous); err != nil {
			return Statement{}, fmt.Errorf("previousHash: %w", err)
		}
	}
	if s.From, err = time.Parse(time.RFC3339, j.From); err != nil {
		return Statement{}, errors.New("from is not RFC 3339")
	}
	if s.To, err = time.Parse(time.RFC3339, j.To); err != nil {
		return Statement{}, errors.New("to is not RFC 3339")
	}
	return s, nil
}

// Check returns what is wrong with the statement, if anything.
func (s Statement) Check() error {
	if err := CheckContractID(s.ContractID); err != nil {
		return err
	}
	for _, id := range []ClusterID{s.Consumer, s.Provider} {
		if _, err := ParseClusterID(string(id)); err != nil {
			return err
		}
	}
	switch {
	case s.Consumer == s.Provider:
		return errors.New("consumer and provider are the same cluster")
	case s.Revision == 0 || s.Revision > MaxRevision:
		return fmt.Errorf("revision %d is not from 1 to %d", s.Revision, uint64(MaxRevision))
	case s.Sequence == 0 || s.Sequence > MaxRevision:
		return fmt.Errorf("sequence %d is not from 1 to %d", s.Sequence, uint64(MaxRevision))
	case (s.Sequence == 1) != (s.Previous == Hash{}):
		return errors.New("previousHash has to be empty in the first statement and present in every other")
	case !wholeSecond(s.From) || !wholeSecond(s.To) || !s.From.Before(s.To):
		return errStatementPeriod
	}
	if err := s.Used.Check(); err != nil {
		return err
	}
	if err := s.Price.Check(); err != nil {
		return err
	}
	want, err := s.Price.Cost(s.Used)
	if err != nil {
		return err
	}
	if s.Amount != want {
		return fmt.Errorf("amount is %s, and its use costs %s at its own prices", s.Amount, want)
	}
	return nil
}

// NewStatementEnvelope wraps a statement, with no signature yet.
func NewStatementEnvelope(s Statement) (Envelope, error) {
	payload, err := s.Marshal()
	if err != nil {
		return Envelope{}, err
	}
	return Envelope{Payload: payload, PayloadType: StatementPayloadType}, nil
}

// VerifyStatement returns the statement of an envelope that only the provider signed. Any key
// that the provider ever had is accepted: a later rollover does not void a statement.
func (e Envelope) VerifyStatement(provider Party) (Statement, error) {
	if e.PayloadType != StatementPayloadType {
		return Statement{}, badSignature("", "unknown payload type")
	}
	s, err := ParseStatement(e.Payload)
	if err != nil {
		return Statement{}, err
	}
	if s.Provider != provider.ID {
		return Statement{}, fmt.Errorf("statement is of provider %s, not of %s", s.Provider, provider.ID)
	}
	keys, err := provider.keys()
	if err != nil {
		return Statement{}, err
	}
	if len(e.Signatures) != 1 {
		return Statement{}, badSignature(provider.ID, fmt.Sprintf("there are %d signatures, want one", len(e.Signatures)))
	}
	if e.Signatures[0].KeyID != provider.ID {
		return Statement{}, badSignature(e.Signatures[0].KeyID, "not asked for")
	}
	if !e.signedBy(e.Signatures[0].Sig, keys...) {
		return Statement{}, badSignature(provider.ID, wrongSignature)
	}
	return s, nil
}

// orEmpty returns an empty map for nil, which has another form in JSON.
func orEmpty[M ~map[K]V, K comparable, V any](m M) M {
	if m == nil {
		return M{}
	}
	return maps.Clone(m)
}

// hashText returns the text of a hash, empty for the zero hash.
func hashText(h Hash) string {
	if h == (Hash{}) {
		return ""
	}
	return h.String()
}

// canonical writes a value in the form of RFC 8785. The fields of its structs are
// in the order of their names, maps are sorted by encoding/json, and all text is
// ASCII without anything to escape.
func canonical(v any, limit int) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	b := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if len(b) > limit {
		return nil, fmt.Errorf("%d bytes, more than %d", len(b), limit)
	}
	return b, nil
}

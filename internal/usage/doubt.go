package usage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// AddMissing records that the periods from first to last have no statement here.
func AddMissing(stored *v1alpha1.Contract, first, last uint64) {
	doubt(stored, first, last).Missing += int64(last - first + 1)
}

// AddRestated records that the provider signed other statements than those that are stored: another newest one, and
// of theirs, which is what it has now, those that differ.
func AddRestated(stored *v1alpha1.Contract, provider peering.Party, theirs []peering.Envelope) {
	kept, last := sinceBreak(stored.Status.Statements), Last(stored).Sequence
	first, restated := last, map[uint64]bool{last: true}
	for _, e := range theirs {
		s, err := e.VerifyStatement(provider)
		if hash, ok := kept[s.Sequence]; err == nil && ok && s.ContractID == stored.Name && hash != e.Hash() {
			restated[s.Sequence], first = true, min(first, s.Sequence)
		}
	}
	doubt(stored, first, last).Restated += int64(len(restated))
}

// sinceBreak returns the hashes of the newest statements, by number, as far back as each follows the one before:
// those before are in doubt already.
func sinceBreak(statements []v1alpha1.Statement) map[uint64]peering.Hash {
	out := map[uint64]peering.Hash{}
	var next peering.Statement
	for _, stored := range slices.Backward(statements) {
		e, err := peering.ParseEnvelope([]byte(stored.Envelope))
		if err != nil {
			break
		}
		s, err := peering.ParseStatement(e.Payload)
		if err != nil || s.Sequence+1 == next.Sequence && next.Previous != e.Hash() {
			break
		}
		out[s.Sequence], next = e.Hash(), s
	}
	return out
}

// doubt returns the record of what is in doubt, which covers the periods from first to last.
func doubt(stored *v1alpha1.Contract, first, last uint64) *v1alpha1.StatementsInDoubt {
	d := stored.Status.StatementsInDoubt
	if d == nil {
		d = &v1alpha1.StatementsInDoubt{First: int64(first), Last: int64(last)}
		stored.Status.StatementsInDoubt = d
	}
	d.First, d.Last = min(d.First, int64(first)), max(d.Last, int64(last))
	return d
}

// Doubts returns what a contract's statements leave in doubt; nil if nothing.
func Doubts(stored *v1alpha1.Contract) *StatementError {
	d := stored.Status.StatementsInDoubt
	if d == nil {
		return nil
	}
	var what []string
	if d.Missing > 0 {
		what = append(what, fmt.Sprintf("%d periods have no statement here, and the provider has none of them any more, as it keeps the newest only", d.Missing))
	}
	if d.Restated > 0 {
		what = append(what, fmt.Sprintf("for at least %d periods the provider signed another statement than the one that is kept here, as after it was restored from a backup", d.Restated))
	}
	message := fmt.Sprintf("of the periods %d to %d: %s; all other statements are signed by the provider and have the contract's prices: "+
		"compare those periods with this cluster's own count, and clarify them with the provider's administrator", d.First, d.Last, strings.Join(what, ", and "))
	if d.Restated > 0 {
		return &StatementError{Reason: "ChainBroken", Message: message}
	}
	return &StatementError{Reason: "StatementsMissing", Message: message}
}

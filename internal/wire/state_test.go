package wire

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func endingState() peering.PeerState {
	return peering.PeerState{
		Sequence: 1, Protocol: 1, BundleHash: peering.Hash{1, 2, 3},
		Contracts: []peering.ContractState{
			{ID: "c-1", Revision: 2, Phase: peering.PhaseDraining, DrainUntil: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Statement: 7},
			{ID: "c-2", Revision: peering.MaxRevision, Phase: peering.PhaseActive, Statement: peering.MaxRevision},
		},
	}
}

func TestContractStatesCrossUnchanged(t *testing.T) {
	want := endingState()
	got, err := StateFrom(StateTo(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestContractStatesThatAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*ententev1.PeerState)
		field  string
	}{
		"a hash of 31 bytes":             {func(s *ententev1.PeerState) { s.BundleHash = bytes.Repeat([]byte{1}, 31) }, "state.bundle_hash"},
		"a hash of 33 bytes":             {func(s *ententev1.PeerState) { s.BundleHash = bytes.Repeat([]byte{1}, 33) }, "state.bundle_hash"},
		"an end that no calendar has":    {func(s *ententev1.PeerState) { s.Contracts[0].DrainUntil = &timestamppb.Timestamp{Seconds: 1 << 60} }, "state.contracts[0].drain_until"},
		"a revision beyond all numbers":  {func(s *ententev1.PeerState) { s.Contracts[1].Revision = peering.MaxRevision + 1 }, "state.contracts[1]"},
		"a statement beyond all numbers": {func(s *ententev1.PeerState) { s.Contracts[1].StatementSequence = 1 << 63 }, "state.contracts[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			m := StateTo(endingState())
			tc.change(m)
			_, err := StateFrom(m)
			if ReasonOf(err) != peering.ReasonRequestInvalid || !strings.Contains(err.Error(), tc.field) {
				t.Errorf("got %v, want %s in it", err, tc.field)
			}
		})
	}
}

// An invalid patience is ignored: the peer gets states as often as every other.
func TestAnInvalidPatienceIsIgnored(t *testing.T) {
	for name, d := range map[string]*durationpb.Duration{
		"unset": nil, "below zero": {Seconds: -1}, "signs that differ": {Seconds: 1, Nanos: -1}, "beyond all time": {Seconds: 1 << 62},
	} {
		s, err := StateFrom(&ententev1.PeerState{HeartbeatTimeout: d})
		if err != nil || s.HeartbeatTimeout != 0 {
			t.Errorf("%s: %s, %v", name, s.HeartbeatTimeout, err)
		}
	}
}

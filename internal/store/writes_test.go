package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

// TestPeersShareABudget: each has its own share in the long run, a few that take all
// of theirs leave others theirs, and many together take at most the budget for all.
func TestPeersShareABudget(t *testing.T) {
	t.Parallel()
	const size = 100 << 10
	clock := start
	b := &WriteBudget{Now: func() time.Time { return clock }}
	written := map[peering.ClusterID]int{}
	take := func(peer peering.ClusterID) error {
		err := b.TakeBytes(peer, size)
		if err == nil {
			written[peer] += size
		}
		if later, ok := errors.AsType[*LaterError](err); err != nil && (!ok || later.After <= 0) {
			t.Fatalf("refused by %v", err)
		}
		return err
	}
	const lasts = 10 * time.Minute
	for end := clock.Add(lasts); clock.Before(end); clock = clock.Add(250 * time.Millisecond) {
		for i := range 4 {
			_ = take(peering.ClusterID(fmt.Sprint("hostile-", i)))
		}
	}
	for peer, bytes := range written {
		if most := PeerWriteBurst + int(lasts/time.Second)*PeerWriteBytes + size; bytes > most || bytes < most/2 {
			t.Errorf("%s had %d bytes written, want up to %d", peer, bytes, most)
		}
	}
	if err := take("honest"); err != nil {
		t.Errorf("another peer waits: %v", err)
	}
	clear(written)
	begin := clock
	for end := clock.Add(lasts); clock.Before(end); clock = clock.Add(time.Second) {
		for i := range 64 {
			_ = take(peering.ClusterID(fmt.Sprint("many-", i)))
		}
	}
	all := 0
	for _, bytes := range written {
		all += bytes
	}
	if most := int(Writes().Most(clock.Sub(begin))) + 64*size; all > most {
		t.Errorf("64 peers had %d bytes written, want at most %d", all, most)
	}
	clock = clock.Add(time.Hour)
	if err := take("new"); err != nil || b.used.Users() != 1 {
		t.Errorf("%d peers are remembered that wrote nothing for an hour, %v", b.used.Users(), err)
	}
	if err := b.TakeBytes("large", 1<<30); err != nil {
		t.Errorf("an object larger than all that there is at once is never written: %v", err)
	}
}

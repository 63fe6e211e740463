package agent

import (
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/vk"
)

// TestWritesOfPeersLeaveEtcdRoom: what consumers have here, and all that peers can
// have written, as consumers, as providers and by their states, until the API server
// compacts, leave a quarter of what etcd takes by default, and a twentieth if all of
// it goes at the same time.
func TestWritesOfPeersLeaveEtcdRoom(t *testing.T) {
	t.Parallel()
	// The API server compacts each 5 minutes what was written 5 minutes before.
	const quota, kept = 2 << 30, 10 * time.Minute
	// All goes at the same time: of a pod and of its record, which are as large and count both, three
	// times one of them is written.
	const ends = stock.MaxBytes / 2 * 3
	all := stock.MaxBytes + paced.Writes().Most(kept) + vk.Writes().Most(kept) + store.Writes().Most(kept)
	if all > quota*3/4 || all+ends > quota*19/20 {
		t.Errorf("peers can make etcd keep %.0f MiB of %d, and %d more at their end", all/(1<<20), quota>>20, ends>>20)
	}
}

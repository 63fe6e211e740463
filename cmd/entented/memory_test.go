package main

import "testing"

func TestASmallHeapIsCollectedRarelyUnderLoad(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, test := range []struct {
		live uint64
		rate float64
		want int
	}{
		{0, 100 * mib, 2133},
		{1 * mib, 100 * mib, 2133},
		{16 * mib, 100 * mib, 400},
		{64 * mib, 100 * mib, 100},
		{128 * mib, 100 * mib, 50},
		{200 * mib, 100 * mib, 32},
		{1 << 40, 100 * mib, collectAt},
		{128 * mib, 2 * mib, collectAt},
		{16 * mib, 4 * mib, 125},
		{16 * mib, mib / 2, collectAt},
		{16 * mib, 0, collectAt},
	} {
		if got := collection(test.live, test.rate); got != test.want {
			t.Errorf("with %d MiB that live and %.1f MiB allocated a second Go collects at %d %%, want %d", test.live/mib, test.rate/mib, got, test.want)
		}
	}
}

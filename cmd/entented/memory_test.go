package main

import "testing"

func TestASmallHeapIsCollectedSeldom(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		live uint64
		want int
	}{
		{0, 1000},
		{1 << 20, 1000},
		{16 << 20, 200},
		{64 << 20, 50},
		{128 << 20, collectAt},
		{400 << 20, collectAt},
		{1 << 40, collectAt},
	} {
		if got := collection(test.live); got != test.want {
			t.Errorf("with %d MiB that live Go collects at %d %%, want %d", test.live>>20, got, test.want)
		}
	}
}

package probe

import "time"

// timeBounds are the upper bounds of the buckets of [Times], each twice the one before.
const (
	timeBuckets   = 13
	leastTimeSpan = 250 * time.Microsecond
)

// Times are round trips, counted by how long they took. The zero value has none.
type Times struct {
	// Counts are how many took at most the bound of their bucket and more than that of the one
	// before; the last one is of those beyond all bounds.
	Counts [timeBuckets + 1]uint64
	Sum    time.Duration
}

// TimeBounds returns the upper bounds of the buckets, ascending: from 250 µs to about a second.
func TimeBounds() []time.Duration {
	out := make([]time.Duration, timeBuckets)
	for i := range out {
		out[i] = leastTimeSpan << i
	}
	return out
}

// With returns the times with one more.
func (t Times) With(d time.Duration) Times {
	i := 0
	for i < timeBuckets && d > leastTimeSpan<<i {
		i++
	}
	t.Counts[i]++
	t.Sum += d
	return t
}

// Count is how many there are.
func (t Times) Count() (n uint64) {
	for _, c := range t.Counts {
		n += c
	}
	return n
}

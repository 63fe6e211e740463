package datagrams

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestAFullQueueDropsTheOldest(t *testing.T) {
	q, now := newQueue(), time.Unix(1, 0)
	const size = 1024
	fits := maxQueued / (size + queuedOverhead)
	for i := range fits + 3 {
		q.push(now, Tag{}, Tag{}, append([]byte{byte(i), byte(i >> 8)}, make([]byte, size-2)...))
	}
	got := q.take(now, maxQueued)
	if len(got) != fits || q.dropped() != 3 {
		t.Fatalf("%d wait and %d were lost, want %d and 3", len(got), q.dropped(), fits)
	}
	for i, it := range got {
		if it.data[0] != byte(i+3) || it.data[1] != byte((i+3)>>8) {
			t.Fatalf("datagram %d is another", i)
		}
	}
}

func TestAStaleDatagramIsDropped(t *testing.T) {
	q, now := newQueue(), time.Unix(1, 0)
	q.push(now, Tag{}, Tag{}, []byte("old"))
	q.push(now.Add(maxWait), Tag{}, Tag{}, []byte("new"))
	got := q.take(now.Add(maxWait+1), MaxBatch)
	if len(got) != 1 || string(got[0].data) != "new" || q.dropped() != 1 {
		t.Errorf("got %v, %d were lost", got, q.dropped())
	}
}

func TestAQueueKeepsItsOrderAndItsBound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q, now := newQueue(), time.Unix(1, 0)
		next, last, pushed, taken := 0, -1, 0, 0
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 50).Draw(rt, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(rt, "push") {
				d := make([]byte, 4+rapid.IntRange(0, MaxDatagram-4).Draw(rt, "size"))
				d[0], d[1] = byte(next), byte(next>>8)
				next++
				pushed++
				q.push(now, Tag{}, Tag{}, d)
			} else {
				most, bytes := rapid.IntRange(1, MaxBatch).Draw(rt, "most"), 0
				got := q.take(now, most)
				for _, it := range got {
					if n := int(it.data[0]) | int(it.data[1])<<8; n <= last {
						rt.Fatalf("%d comes after %d", n, last)
					} else {
						last = n
					}
					if now.Sub(it.at) > maxWait {
						rt.Fatalf("one waited %s", now.Sub(it.at))
					}
					bytes += len(it.data) + frameHead
					taken++
				}
				if len(got) > 1 && bytes > most {
					rt.Fatalf("%d bytes were taken, want %d", bytes, most)
				}
			}
			if q.bytes > maxQueued || q.bytes < 0 {
				rt.Fatalf("%d bytes wait", q.bytes)
			}
			if uint64(pushed-taken-len(q.items)) != q.dropped() {
				rt.Fatalf("%d pushed, %d taken, %d wait, %d lost", pushed, taken, len(q.items), q.dropped())
			}
		}
	})
}

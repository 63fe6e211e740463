package datagrams

import (
	"context"
	"sync"
	"time"
)

// item is a datagram that waits.
type item struct {
	at       time.Time
	from, to Tag
	data     []byte
}

func (i item) size() int { return len(i.data) + queuedOverhead }

// queue is datagrams that wait, the oldest first. Its zero value is not usable.
type queue struct {
	mu    sync.Mutex
	items []item
	bytes int
	lost  uint64
	// some has a value when a datagram may wait.
	some chan struct{}
}

func newQueue() *queue { return &queue{some: make(chan struct{}, 1)} }

// push adds a copy of a datagram, and drops the oldest ones if there is no room.
func (q *queue) push(now time.Time, from, to Tag, datagram []byte) {
	i := item{at: now, from: from, to: to, data: append([]byte(nil), datagram...)}
	q.mu.Lock()
	q.items = append(q.items, i)
	q.bytes += i.size()
	for q.bytes > maxQueued {
		q.drop()
	}
	q.mu.Unlock()
	select {
	case q.some <- struct{}{}:
	default:
	}
}

// drop drops the oldest datagram. The caller has the lock.
func (q *queue) drop() {
	q.lost++
	q.shift()
}

// shift removes the oldest datagram. The caller has the lock.
func (q *queue) shift() item {
	i := q.items[0]
	q.items[0] = item{}
	if q.items = q.items[1:]; len(q.items) == 0 {
		q.items = nil
	}
	q.bytes -= i.size()
	return i
}

// take removes and returns the oldest datagrams that have not waited too long, of most bytes at most
// but at least one, if there is one.
func (q *queue) take(now time.Time, most int) (out []item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for taken := 0; len(q.items) > 0; {
		if now.Sub(q.items[0].at) > maxWait {
			q.drop()
			continue
		}
		n := len(q.items[0].data) + frameHead
		if taken += n; taken > most && len(out) > 0 {
			break
		}
		out = append(out, q.shift())
	}
	return out
}

// wait waits for a datagram. It returns false if ctx or patience ended first.
func (q *queue) wait(ctx context.Context, patience <-chan time.Time) bool {
	q.mu.Lock()
	some := len(q.items) > 0
	q.mu.Unlock()
	if some {
		return ctx.Err() == nil
	}
	select {
	case <-q.some:
		return true
	case <-patience:
	case <-ctx.Done():
	}
	return false
}

// dropped returns how many datagrams the queue has dropped.
func (q *queue) dropped() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost
}

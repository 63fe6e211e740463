package client

import "container/heap"

// queue is a priority queue: the least item by compare comes first.
type queue[T any] struct{ items queueItems[T] }

func newQueue[T any](compare func(a, b T) int) *queue[T] {
	return &queue[T]{items: queueItems[T]{compare: compare}}
}

func (q *queue[T]) push(item T) { heap.Push(&q.items, item) }

func (q *queue[T]) len() int { return q.items.Len() }

func (q *queue[T]) pop() { heap.Pop(&q.items) }

// first returns the first item, or nil if the queue is empty. The pointer is valid until the
// queue changes.
func (q *queue[T]) first() *T {
	if len(q.items.all) == 0 {
		return nil
	}
	return &q.items.all[0]
}

// queueItems implements heap.Interface.
type queueItems[T any] struct {
	all     []T
	compare func(a, b T) int
}

func (q *queueItems[T]) Len() int           { return len(q.all) }
func (q *queueItems[T]) Less(i, j int) bool { return q.compare(q.all[i], q.all[j]) < 0 }
func (q *queueItems[T]) Swap(i, j int)      { q.all[i], q.all[j] = q.all[j], q.all[i] }
func (q *queueItems[T]) Push(x any)         { q.all = append(q.all, x.(T)) }

func (q *queueItems[T]) Pop() any {
	last := len(q.all) - 1
	x := q.all[last]
	q.all[last] = *new(T)
	q.all = q.all[:last]
	return x
}

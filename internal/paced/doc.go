// Package paced is a Kubernetes client that limits reads and writes for each peer, so that a peer
// with many requests delays only itself.
//
// The context names the peer of a request, which waits in the call if the peer has too many. The
// object's label names the peer of a write. A write beyond the peer's budget fails with an
// OverBudget and writes nothing; Retry tries it again when there is room, and Admit queues writes
// before. Writes that remove what a peer has here are counted, and never wait.
package paced

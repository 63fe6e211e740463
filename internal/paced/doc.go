// Package paced is a Kubernetes client that asks and writes at the pace of the peer for which it
// does so, so that a peer that wants much delays itself alone.
//
// For which peer something is asked says the context. One that asks too often waits in the call. For
// which peer something is written says the object's label. A write beyond the peer's budget fails
// with an OverBudget and writes nothing; Retry tries it again when there is room, and Admit keeps
// those in line that would wait. What takes away what a peer has here is counted, and never waits.
package paced

// Package leader has one of several agents lead: by a Lease, beyond whose end none acts, and by
// a label on the leader's pod, by which Services find it.
package leader

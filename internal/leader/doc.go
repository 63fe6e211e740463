// Package leader lets one of several agents lead: by a Lease, after whose end it acts no longer, and by a label on
// the leader's pod, by which Services find it.
package leader

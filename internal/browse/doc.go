// Package browse is what the agent makes of what discovery finds, in domains and, by what
// nodes report, on LANs: where it was looked, who is there, and which addresses may be dialled.
// It checks again what comes from elsewhere.
package browse

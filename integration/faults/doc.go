// Package faults has two real clusters lose processes, packets, translations and each
// other, and looks what becomes of their peering, their pods and the traffic between
// them.
package faults

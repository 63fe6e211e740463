// Package faults makes two real clusters lose processes, packets, translations and each other, and
// checks what happens to their peering, their pods and the traffic between them.
package faults

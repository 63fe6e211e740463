// Package controller reconciles peers, requests, contracts, and the tunnels that they need. A reconciler reads the
// stored objects, computes the desired state by a pure function, and writes the difference. None depends on the
// event that triggered it. What is decided is stored. Memory has only what can be computed again, how long
// something has lasted, and when something was last written: after a restart these times begin again, so that
// something is reported, ended or written later or once more, and nothing is undone.
package controller

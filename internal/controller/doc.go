// Package controller reconciles peers, requests, contracts, and the tunnels that they need. A reconciler reads what is
// stored, asks a pure function what should be, and writes the difference. None depends on the event that triggered it, or
// on memory that a restart loses.
package controller

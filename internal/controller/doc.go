// Package controller reconciles peers, requests, contracts, and the tunnels that they need. A reconciler reads what is
// stored, asks a pure function what should be, and writes the difference. None depends on the event that triggered it.
// What is decided is stored. Memory keeps what is computed again, how long something has lasted, and when something was
// last written: a restart begins these times again, so that something is told, ended or written later or once more, and
// undoes nothing.
package controller

// Package controller reconciles the custom resources of this cluster. A reconciler
// reads what is stored, asks a pure function what should be, and writes the difference.
// None depends on the event that triggered it, or on memory that a restart loses.
package controller

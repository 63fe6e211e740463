// Package vk is the consumer's half of offloading: a virtual node for each
// contract, the pods on it, what those pods refer to, the Services of offloaded
// namespaces, and one kubelet endpoint for logs, exec and port-forward.
//
// It decides what the provider should have and declares that to a Mirror; the methods of Handler
// receive what the provider reports. It knows neither how the two clusters talk nor what the
// provider does.
//
// # What may be deleted, and when
//
// Nothing is ever deleted at the provider because something is missing in a cache. Only three
// things lead to a delete, each of them evidence:
//
//	the local pod has a deletion timestamp        Unwant with its grace period
//	a live GET shows that the UID is gone         Unwant, or Orphan returns true
//	no pod on the node refers to an object        Unwant, or Orphan returns true,
//	                                              once the pod cache is synced
//
// A local pod, in turn, is deleted only after the provider said that it is gone,
// or when it ended, or when it never crossed; always with its UID as a
// precondition. A pod that ended is final: it is never wanted again.
package vk

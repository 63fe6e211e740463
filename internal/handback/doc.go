// Package handback evicts pods so that their controllers create others, which placement puts elsewhere: those
// that a provider took but has no node for, and those that may no longer run where they do. The
// NamespaceOffloading's status then says from which virtual nodes placement keeps new pods away, and until
// when. Package vk ends the pods abroad.
package handback

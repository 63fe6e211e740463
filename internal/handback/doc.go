// Package handback evicts pods so that their controllers make others, which placement puts elsewhere: those
// that a provider took and has no node for, and those that run where they may not any more. It says in
// the NamespaceOffloading's status from which virtual node placement keeps pods away, and until when. A pod's
// end abroad is vk's.
package handback

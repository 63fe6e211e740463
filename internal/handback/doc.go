// Package handback hands pods back that a provider took and has no node for: it evicts them,
// where their controllers make others, and says in the NamespaceOffloading's status from which
// provider placement keeps those away, and until when. A pod's end abroad is vk's.
package handback

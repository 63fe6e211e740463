// Package offload is the provider's half of offloading: it makes in this cluster
// what a consumer applies by a contract, and says what becomes of it.
//
// A consumer's namespace becomes a namespace of this cluster, labelled with the
// consumer's ID; what the namespace's pods refer to is written into it; a pod
// becomes an OffloadedPod, which is persisted before the consumer gets its
// answer, and from which a reconciler makes the pod, once. Quota, Pod Security
// and what of a PodSpec may cross are checked before anything is created.
//
// Everything here is found by labels and UIDs in the API server, never by
// memory, so a restart loses nothing. Objects that are not a consumer's are
// never touched. Taking a contract down needs nothing of the consumer.
//
// Which contracts there are, and who calls, is the business of others.
package offload

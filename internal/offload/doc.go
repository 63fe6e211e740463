// Package offload is the provider's half of offloading: it creates in this cluster the objects that
// a consumer applies under a contract, and reports their status.
//
// A consumer's namespace becomes a namespace of this cluster, labelled with the consumer's ID; the
// objects to which its pods refer are written into it; a pod becomes an OffloadedPod, which is
// persisted before the consumer gets its response, and from which a reconciler creates the pod,
// once. Quota, Pod Security and the fields of the PodSpec are checked before anything is created.
//
// Everything here is found by labels and UIDs in the API server, never from memory, so a restart
// loses nothing. Objects that are not a consumer's are never touched. Removing a contract's objects
// does not need the consumer.
//
// Contracts and the authentication of callers are the business of other packages.
package offload

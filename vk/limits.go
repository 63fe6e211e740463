package vk

// Limits of what a provider can make a node show and keep, and of what callers
// of the kubelet endpoint can send.
const (
	// maxNodeLabels is how many labels of the provider a node takes.
	maxNodeLabels = 64

	// maxStatusBytes is the most that the status of a pod may have as JSON.
	maxStatusBytes = 256 << 10
	// maxReasonBytes and maxMessageBytes is the most of the texts in it; more is cut.
	maxReasonBytes  = 128
	maxMessageBytes = 4096
	// maxConditions is how many conditions of a pod are shown.
	maxConditions = 64
	// maxPodIPs is how many addresses of a pod are shown.
	maxPodIPs = 8
	// maxEventsPerPod is how many different events of a pod are shown.
	maxEventsPerPod = 64

	// maxUnknownPods is how many statuses are kept before this cluster's own pods
	// are known, of maxUnknownBytes at most each.
	maxUnknownPods  = 10_000
	maxUnknownBytes = 32 << 10
	// maxObjectBytes is the most that an object may have on the wire: what etcd
	// takes.
	maxObjectBytes = 1_572_864

	// maxHeaderBytes is the most that a request's header may have.
	maxHeaderBytes = 64 << 10
	// maxTokenBytes is the most that a bearer token may have.
	maxTokenBytes = 32 << 10
	// maxAnswers is how many answers of the API server about callers are kept, of
	// each kind.
	maxAnswers = 4096
)

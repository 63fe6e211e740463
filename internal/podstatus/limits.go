package podstatus

// Limits of what a provider says of its pods.
const (
	// MaxStatusBytes is the largest pod status that is read, as JSON. A kubelet writes
	// about 1.5 KiB for a container. Only a part of it is kept.
	MaxStatusBytes = 64 << 10
	// MaxReasonBytes and maxImageBytes bound a reason or an ID, and the name of an
	// image. MaxMessageBytes bounds a message, maxTerminationBytes what a container
	// wrote as its last message, and MaxMessagesBytes all messages of a pod; the last
	// two are a kubelet's limits. More is cut.
	MaxReasonBytes      = 128
	maxImageBytes       = 512
	MaxMessageBytes     = 1024
	maxTerminationBytes = 4096
	MaxMessagesBytes    = 12 << 10
	// maxPodIPs is how many addresses of a pod are shown.
	maxPodIPs = 8
)

package podstatus

// Limits on a provider's statuses of its pods.
const (
	// MaxStatusBytes bounds a pod status, as JSON. A kubelet writes about 1.5 KiB for a container.
	// Only a part of it is kept.
	MaxStatusBytes = 64 << 10
	// MaxReasonBytes bounds a reason or an ID, and maxImageBytes the name of an image.
	// MaxMessageBytes bounds a message, maxTerminationBytes a container's termination message, and
	// MaxMessagesBytes all messages of a pod; the last two are a kubelet's limits. Longer texts are
	// cut.
	MaxReasonBytes      = 128
	maxImageBytes       = 512
	MaxMessageBytes     = 1024
	maxTerminationBytes = 4096
	MaxMessagesBytes    = 12 << 10
	// maxPodIPs is how many addresses of a pod are shown.
	maxPodIPs = 8
)

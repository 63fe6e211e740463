package podstatus

import "github.com/entente-dev/entente/internal/podspec"

// Limits on a provider's statuses of its pods.
const (
	// MaxStatusBytes bounds a pod status, as JSON: as much as a message may have. Only a part of it is
	// kept.
	MaxStatusBytes = 512 << 10
	// maxDetailBytes is how long the status is that a provider sends with all that home uses: about
	// 500 bytes of a container. Of a pod with a longer one the details are left out.
	maxDetailBytes = 128 << 10
	// maxContainerStatuses is of how many containers a status is kept: twice as many as a provider
	// accepts, since its admission may add some. containerBytes is what one takes in memory beside
	// its texts, at most.
	maxContainerStatuses = 2 * podspec.MaxContainers
	containerBytes       = 3 << 10
	// maxNameBytes bounds the name of a container, and maxAddressBytes an address, as Kubernetes
	// does. maxBriefBytes bounds a reason where the details are left out.
	maxNameBytes    = 63
	maxAddressBytes = 45
	maxBriefBytes   = 32
	// MaxReasonBytes bounds a reason or an ID, and maxImageBytes the name of an image.
	// MaxMessageBytes bounds a message, maxTerminationBytes a container's termination message, and
	// MaxMessagesBytes all messages of a pod; the last two are a kubelet's limits. Longer texts are
	// cut.
	MaxReasonBytes      = 128
	maxImageBytes       = 512
	MaxMessageBytes     = 1024
	maxTerminationBytes = 4096
	MaxMessagesBytes    = 12 << 10
	// maxOutlineBytes bounds the outline of a status: many of a contract are remembered.
	maxOutlineBytes = 2 << 10
	// maxPodIPs is how many addresses of a pod are shown.
	maxPodIPs = 8
)

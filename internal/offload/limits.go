package offload

import "time"

// Limits of what a consumer can ask of this cluster.
const (
	// maxPodBytes is how many bytes a pod may have as it is sent. A kubelet writes a pod as
	// a whole whenever its readiness changes, which the pod's own probes decide.
	maxPodBytes = 128 << 10
	// configsInterval is how often the ConfigMaps and Secrets of a namespace are
	// counted again, configsAtOnce is in how many namespaces at a time.
	configsInterval = 10 * time.Minute
	configsAtOnce   = 4
	// maxEventWatches is in how many namespaces events of pods are watched, and
	// maxPeerEventWatches in how many of one peer, which also has no more than are
	// free: in those that have live pods. Pods of further namespaces have a status and
	// no events.
	maxEventWatches     = 512
	maxPeerEventWatches = 64
	// maxConfigWatches is in how many namespaces with live pods ConfigMaps and Secrets are watched, and
	// maxPeerConfigWatches in how many of one peer, which also has no more than are free. In others it is found
	// when they are counted that somebody changed them.
	maxConfigWatches     = 128
	maxPeerConfigWatches = 16
	// configGather is the pause before one that changed is compared with what was applied. Its home is asked to
	// apply it again at once, then after pauses that grow from compareInterval to half of configCalm, after which
	// without a change it begins from the start.
	configGather = time.Second
	configCalm   = time.Hour
	// maxDropped is how many endpoints that could not be translated are named.
	maxDropped = 5
	// closeGrace is the longest grace period of a pod whose contract is over.
	closeGrace int64 = 30
	// stopsAtOnce is how many pods of a silent consumer are ended at once.
	stopsAtOnce = 16
	// maxClusterDomain is the longest domain of a consumer's cluster: a namespace goes
	// before it, and other search domains beside it.
	maxClusterDomain = 180
	// grantTimeout is how long it may take until a new RoleBinding has an effect.
	grantTimeout = 15 * time.Second
	// grantPoll is the pause between two looks whether it has.
	grantPoll = 100 * time.Millisecond
	// compareInterval is the shortest pause between two times at which a peer is asked to compare what is here of it.
	compareInterval = 2 * time.Minute
	// reflectBehind is the pause before one is compared again of which the cache was behind.
	reflectBehind = 200 * time.Millisecond
	// reconcileRetryMin and reconcileRetryMax bound the pause after a pod could not
	// be made.
	reconcileRetryMin = 200 * time.Millisecond
	reconcileRetryMax = 30 * time.Second
	// maxLastWords is how many last statuses of deleted pods a namespace keeps until
	// they are recorded.
	maxLastWords = 1024
	// endKept is for how long the record of a pod that was deleted is kept until its consumer, which is away, heard how
	// the pod ended.
	endKept = 24 * time.Hour
	// statusDetail is how long a message from this cluster may be that goes to a
	// consumer.
	statusDetail = 1024
	// largeObject is how large an object is of which a peer writes one at a time.
	largeObject = 64 << 10
	// budgetAgain is the shortest pause before a pod that has to wait is reconciled again.
	budgetAgain = time.Second
)

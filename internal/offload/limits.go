package offload

import "time"

// Limits on what a consumer can ask of this cluster.
const (
	// maxPodBytes bounds the size of a pod as it is sent. Whenever a pod's readiness changes, which
	// its own probes decide, a kubelet's write makes the API server store the whole pod again.
	maxPodBytes = 128 << 10
	// configsInterval is how often the ConfigMaps and Secrets of a namespace are counted again, and
	// configsAtOnce in how many namespaces at a time.
	configsInterval = 10 * time.Minute
	configsAtOnce   = 4
	// maxEventWatches is in how many namespaces with live pods events are watched, and
	// maxPeerEventWatches in how many of one peer, which also has no more than are free. Pods of
	// further namespaces have a status and no events.
	maxEventWatches     = 512
	maxPeerEventWatches = 64
	// maxConfigWatches is in how many namespaces with live pods ConfigMaps and Secrets are watched, and
	// maxPeerConfigWatches in how many of one peer, which also has no more than are free. In others, changes
	// by other writers are found when they are counted.
	maxConfigWatches     = 128
	maxPeerConfigWatches = 16
	// configGather is the pause before a changed object is compared with what was applied, and before its home
	// is asked to apply again what differs: the first time, then after pauses that grow from compareInterval to half of configCalm;
	// after configCalm without a change they start from the beginning.
	configGather = time.Second
	configCalm   = time.Hour
	// maxDropped is how many of the endpoints that could not be translated a message names.
	maxDropped = 5
	// closeGrace is the longest grace period of a pod whose contract is over.
	closeGrace int64 = 30
	// stopsAtOnce is how many pods of a silent consumer are ended at once.
	stopsAtOnce = 16
	// maxClusterDomain bounds the domain of a consumer's cluster: search domains also have a
	// namespace before it, and there are others beside it.
	maxClusterDomain = 180
	// grantTimeout is how long it may take until a new RoleBinding has an effect.
	grantTimeout = 15 * time.Second
	// grantPoll is the pause between two checks of that.
	grantPoll = 100 * time.Millisecond
	// compareInterval is the shortest pause between two requests to a peer to compare its objects here.
	compareInterval = 2 * time.Minute
	// reflectBehind is the pause before an object is compared again because the cache was behind.
	reflectBehind = 200 * time.Millisecond
	// reconcileRetryMin and reconcileRetryMax bound the pause after a pod could not be created.
	reconcileRetryMin = 200 * time.Millisecond
	reconcileRetryMax = 30 * time.Second
	// maxLastStatuses is how many last statuses of deleted pods are kept for a namespace until they
	// are recorded.
	maxLastStatuses = 1024
	// endKept is how long the record of a deleted pod is kept for a consumer that is disconnected, so that it
	// can learn how the pod ended.
	endKept = 24 * time.Hour
	// endKeptDeleting is the same where this cluster's owner deletes the namespace, which waits for it: as long as
	// a restart of the consumer's agent may take.
	endKeptDeleting = 10 * time.Minute
	// statusDetail bounds the messages of this cluster that are sent to a consumer.
	statusDetail = 1024
	// largeObject is the size above which a peer writes one object at a time.
	largeObject = 64 << 10
	// budgetAgain is the shortest pause before a pod that waits for the budget is reconciled again.
	budgetAgain = time.Second
)

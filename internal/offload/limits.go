package offload

import "time"

// Limits of what a consumer can ask of this cluster.
const (
	// maxEndpoints is how many endpoints a reflected Service may have.
	maxEndpoints = 2000
	// maxServicePorts is how many ports a reflected Service may have.
	maxServicePorts = 100
	// maxServiceNote is the largest ServiceObject that fits the annotation in which
	// it is kept; annotations of an object have 256 KiB in all.
	maxServiceNote = 224 << 10
	// sliceSize is how many endpoints one EndpointSlice holds.
	sliceSize = 100
	// maxDropped is how many endpoints that could not be translated are named.
	maxDropped = 5
	// maxGrace is the longest grace period of a pod here, whatever it asks for.
	maxGrace int64 = 3600
	// closeGrace is the longest grace period of a pod whose contract is over.
	closeGrace int64 = 30
	// maxDemands is how many different resources one pod may ask for.
	maxDemands = 64
	// maxContainers is how many containers one pod may have, init containers
	// included.
	maxContainers = 256
	// grantTimeout is how long it may take until a new RoleBinding has an effect.
	grantTimeout = 15 * time.Second
	// grantPoll is the pause between two looks whether it has.
	grantPoll = 100 * time.Millisecond
	// ledgerSettle is how old a pod that the cache does not show has to be before
	// the API server is asked about it.
	ledgerSettle = 5 * time.Second
	// reflectInterval is how often Services are compared with what they should be.
	reflectInterval = 30 * time.Second
	// reconcileRetryMin and reconcileRetryMax bound the pause after a pod could not
	// be made.
	reconcileRetryMin = 200 * time.Millisecond
	reconcileRetryMax = 30 * time.Second
	// maxGraves is how many pods that went are remembered.
	maxGraves = 20_000
	// maxLastWords is how many last statuses of deleted pods a namespace keeps until
	// they are recorded.
	maxLastWords = 1024
	// lastWordTimeout is how long a port-forward that ended may take to say why.
	lastWordTimeout = 5 * time.Second
	// statusDetail is how long a message from this cluster may be that goes to a
	// consumer.
	statusDetail = 1024
)

const (
	// maxLeft is how many pods of a contract are remembered that went a moment ago,
	// and leftKept for how long: longer than it takes to tell a consumer what is held.
	maxLeft  = 256
	leftKept = 5 * time.Minute
)

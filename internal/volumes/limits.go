package volumes

// Limits on what a consumer can ask of this cluster.
const (
	// maxPerContract is how many volumes one contract may have, and maxPerPeer how many one
	// consumer, those kept after a contract included. The last eighth of each is for namespaces that have less than is free.
	maxPerContract = 300
	maxPerPeer     = 600
	// maxBytes is the size of the largest volume: 1 PiB.
	maxBytes int64 = 1 << 50
	// maxClaimBytes bounds the message about a volume.
	maxClaimBytes = 4 << 10
	// maxAccessModes is how many access modes there are.
	maxAccessModes = 4
)

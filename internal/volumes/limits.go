package volumes

// Limits of what a consumer can ask of this cluster.
const (
	// maxPerContract is how many volumes one contract may have, and maxPerPeer how many
	// one consumer, those that are kept after a contract included.
	maxPerContract = 256
	maxPerPeer     = 512
	// maxBytes is the size of the largest volume: 1 PiB.
	maxBytes int64 = 1 << 50
	// maxClaimBytes is how many bytes what a consumer says of a volume may have.
	maxClaimBytes = 4 << 10
	// maxAccessModes is how many access modes there are.
	maxAccessModes = 4
)

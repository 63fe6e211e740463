package podexec

// Limits of what a command prints.
const (
	// maxOutput is how many bytes of the output of a command in a pod are kept.
	maxOutput = 64 << 10
)

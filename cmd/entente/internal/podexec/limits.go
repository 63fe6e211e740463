package podexec

// Limits of what a command prints.
const (
	// maxOutput is the most bytes that are kept of what a command in a pod prints.
	maxOutput = 64 << 10
)

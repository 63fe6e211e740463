package chartpolicies

import "time"

// Limits of writing the chart's policies.
const (
	// attemptTimeout is how long one attempt may take; the agent is not ready before the first ended.
	attemptTimeout = 10 * time.Second
	// retryPause is how long the agent waits before it tries again.
	retryPause = 10 * time.Second
)

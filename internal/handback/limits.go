package handback

import "time"

const (
	// defaultAfter is for how long a pod waits for a node of its provider's before it is
	// handed back. An autoscaler there takes minutes.
	defaultAfter = 5 * time.Minute
	// firstPause is for how long a controller's new pods are kept away from a virtual node whose
	// provider had no node for one; it doubles each time up to maxPause. What is over is
	// remembered for as long again.
	firstPause = 10 * time.Minute
	maxPause   = 12 * time.Hour
	// maxKept is how many controllers of a namespace are kept away at a time, each counted for each virtual node.
	// Pods of others wait.
	maxKept = 128
	// maxEvictions is how many pods of a namespace are evicted at a look, for each of the two reasons.
	maxEvictions = 50
	// maxMessage is how many bytes the status says of why pods are not moved.
	maxMessage = 1024
	// placementLag is for how long placement may not have heard of what the status says.
	placementLag = 5 * time.Second
	// lookAgain is how often a namespace is looked at.
	lookAgain = 10 * time.Second
)

package handback

import "time"

const (
	// defaultAfter is how long a pod waits for a node of its provider before it is handed back. An
	// autoscaler there takes minutes.
	defaultAfter = 5 * time.Minute
	// firstPause is how long a controller's new pods are kept away from a virtual node whose
	// provider had no node for one; it doubles each time up to maxPause. A pause that is over is
	// remembered for as long again.
	firstPause = 10 * time.Minute
	maxPause   = 12 * time.Hour
	// maxKept is how many pairs of a controller and a virtual node from which it is kept away a namespace may
	// have. Pods of others wait.
	maxKept = 128
	// maxEvictions is how many pods of a namespace are evicted in one reconcile, for each of the three reasons.
	maxEvictions = 50
	// maxJobReads is how many Jobs are read in one reconcile of a namespace. Pods of others wait for the next one.
	maxJobReads = 20
	// maxMessage bounds the status's message about why pods are not moved.
	maxMessage = 1024
	// placementLag is how long placement may take to see a change.
	placementLag = 5 * time.Second
	// reconcileInterval is how often a namespace is reconciled.
	reconcileInterval = 10 * time.Second
)

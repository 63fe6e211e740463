package placementserver

import "time"

const (
	// timeout bounds a request of the API server about a pod, maxConnections is how many connections there may
	// be, and maxHeader how long their headers may be, in bytes.
	timeout        = 5 * time.Second
	maxConnections = 256
	maxHeader      = 16 << 10
	// checkEvery is how often it is checked that pods of offloaded namespaces are placed.
	checkEvery = time.Minute
	// maxKeptOff is how many DaemonSets may wait for the event that their pods are kept off virtual nodes, and
	// maxKeptOffTold of how many the agent knows that they have it. keptOffPause is how long the API server has to store
	// one after it asked the webhook.
	maxKeptOff     = 256
	maxKeptOffTold = 4096
	keptOffPause   = time.Second
)

package direct

import "time"

// startWait is how long the state for a peer waits, after a start, until this cluster's pods are known. Without them the
// peer closes what it opened to them.
const startWait = 10 * time.Second

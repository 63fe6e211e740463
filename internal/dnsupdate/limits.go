package dnsupdate

import "time"

const (
	// publishInterval is how often the publications are reconciled.
	publishInterval = 10 * time.Second
	// maxPublications is how many places are remembered in which this cluster is published, or from
	// which it could not be removed.
	maxPublications = 8
	// publishText bounds a status text: an event takes 1024.
	publishText = 768
	// publishLookup is how long the lookup of the server's name may take, and publishServers how
	// many of its addresses are tried.
	publishLookup  = 5 * time.Second
	publishServers = 2
	// removeTimeout is how long an uninstall waits for a DNS server.
	removeTimeout = 30 * time.Second
)

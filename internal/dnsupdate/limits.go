package dnsupdate

import "time"

const (
	// publishLook is how often is looked whether what is published has to change.
	publishLook = 10 * time.Second
	// maxPublications is how many places are remembered in which this cluster is, or was
	// and could not be removed.
	maxPublications = 8
	// publishText is the most bytes of a text on how it went: an event takes 1024.
	publishText = 768
	// publishLookup is how long a look-up of the server's name may take, and
	// publishServers how many of its addresses are tried.
	publishLookup  = 5 * time.Second
	publishServers = 2
	// removeTimeout is how long an uninstall waits for a DNS server.
	removeTimeout = 30 * time.Second
)

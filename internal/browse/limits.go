package browse

import "time"

const (
	// domainsStart is how long after its start the agent keeps what it knew about a domain that
	// cannot be asked.
	domainsStart = 10 * time.Minute
	// lanReportLate is the time without a report after which the fabric of a node counts as silent:
	// the clusters that it found are kept for a while, but none counts as gone because of it.
	lanReportLate = 3 * time.Minute
	// lanReportExpires is how long the clusters that a silent fabric found are kept.
	lanReportExpires = 10 * time.Minute
)

// Limits on the reports of a node's fabric.
const (
	// MaxInterfaces and MaxFound are how many network interfaces, and how many clusters, as
	// in the custom resource.
	MaxInterfaces = 16
	MaxFound      = 256
	// MaxInterfaceName bounds the name of an interface (Linux' IFNAMSIZ without its terminator),
	// MaxClusterName that of a cluster.
	MaxInterfaceName = 15
	MaxClusterName   = 64
	// MaxText bounds a problem.
	MaxText = 512
)

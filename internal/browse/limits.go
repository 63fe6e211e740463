package browse

import "time"

const (
	// domainsStart is for how long after its start the agent believes what it knew of a
	// domain that cannot be asked.
	domainsStart = 10 * time.Minute
	// lanReportLate is after how long without a report the fabric of a node counts as silent:
	// what it found is believed for a while then, but not what it lacks.
	lanReportLate = 3 * time.Minute
	// lanReportExpires is for how long at most what a silent fabric found is believed.
	lanReportExpires = 10 * time.Minute
)

// Limits of what the fabric of a node reports.
const (
	// MaxInterfaces and MaxFound are how many network interfaces, and how many clusters, as
	// in the custom resource.
	MaxInterfaces = 16
	MaxFound      = 256
	// MaxInterfaceName is the most bytes of the name of an interface (Linux' IFNAMSIZ
	// without its end), MaxClusterName those of what a cluster calls itself.
	MaxInterfaceName = 15
	MaxClusterName   = 64
	// MaxText is the most bytes of a problem.
	MaxText = 512
)

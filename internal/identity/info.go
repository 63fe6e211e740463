package identity

// ClusterInfo describes a cluster to another one when they join.
type ClusterInfo struct {
	// Name is for people, a DNS label; it may be empty and proves nothing.
	Name string
	// Endpoints is where its peer API can be dialled, as host:port, best first.
	Endpoints []string
	// Bundle is its trust bundle. The identity key may be empty where its root is there.
	Bundle
}

package identity

import "github.com/entente-dev/entente/peering"

// ClusterInfo describes a cluster to another one when they join.
type ClusterInfo struct {
	// Name is for people, a DNS label; it may be empty and proves nothing.
	Name string
	// Endpoints is where its peer API can be dialled, as host:port, best first.
	Endpoints []string
	// Bundle is its trust bundle. The identity key may be empty where its root is there.
	Bundle
}

// Proof is a cluster that begins to prove that it holds a group's secret.
type Proof struct {
	// ID is what it proved to be, over the connection that Channel stands for.
	ID      peering.ClusterID
	Channel [ChannelLen]byte
	// From is what its address counts as, for limits.
	From string
	// Info is its ClusterInfo.
	Info ClusterInfo
	// Group is the group that it names, and Share its share.
	Group string
	Share []byte
}

package identity

import "github.com/entente-dev/entente/peering"

// ClusterInfo describes a cluster to another one when they join.
type ClusterInfo struct {
	// Name is for people, a DNS label. It may be empty and proves nothing.
	Name string
	// Endpoints is where its peer API can be dialled, as host:port, best first.
	Endpoints []string
	// Bundle is its trust bundle. The identity key may be empty if its root is there.
	Bundle
}

// Proof is the begin of a run in which a cluster proves that it knows a group's secret.
type Proof struct {
	// ID is the ID that it proved, over the connection with this Channel.
	ID      peering.ClusterID
	Channel [ChannelLen]byte
	// From is the key of its address in limits.
	From string
	// Info is its ClusterInfo.
	Info ClusterInfo
	// Group is the group that it names, and Share its share.
	Group string
	Share []byte
}

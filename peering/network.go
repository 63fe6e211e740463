package peering

// NetworkPlan is what the network with a peer would be, before anything of it is done.
type NetworkPlan struct {
	// Own is this cluster's gateways, Theirs those that the peer names.
	Own, Theirs []PlannedGateway
	// Remote is the peer's prefixes and what they would be called here, Local this cluster's
	// and what the peer calls them.
	Remote, Local []PlannedAlias
	// Pool is where aliases come from.
	Pool []string
	// Refused is what cannot work, and why; Warnings is what is not known yet, or may not
	// be as somebody wants it.
	Refused, Warnings []string
}

// PlannedAlias is a prefix and its alias, which is empty if there is none.
type PlannedAlias struct {
	Prefix, Alias string
	// ByAddress says that it has none, and Addresses of its addresses have one each.
	ByAddress bool
	Addresses int
	// Stands says that it was given before.
	Stands bool
}

// PlannedGateway is a gateway and where it can be dialled, best first.
type PlannedGateway struct {
	Name      string
	Endpoints []string
	// Problems is what of its configured endpoints is of no use.
	Problems []string
}

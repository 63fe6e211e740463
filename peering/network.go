package peering

// NetworkPlan is what the network with a peer would be, before anything of it is done.
type NetworkPlan struct {
	// Own is this cluster's gateways, Theirs those that the peer names.
	Own, Theirs []PlannedGateway
	// Remote is the peer's prefixes and what they would be called here, Local this cluster's
	// and what the peer calls them.
	Remote, Local []PlannedAlias
	// Transit is the third clusters between which and the peer packets pass.
	Transit []PlannedTransit
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

// PlannedTransit is a third cluster that the peer reaches through this one, or this one through
// the peer.
type PlannedTransit struct {
	// Third is its name here, or its ID.
	Third string
	// Through says that it is reached through the peer.
	Through bool
	// Addresses is how many addresses there are to be reached, Named how many of them have a name.
	Addresses, Named int
	// Missing is what is missing for packets to pass; empty if nothing is.
	Missing string
}

// PlannedGateway is a gateway and where it can be dialled, best first.
type PlannedGateway struct {
	Name      string
	Endpoints []string
	// Problems is what of its configured endpoints is of no use.
	Problems []string
}

package peering

// NetworkPlan is what the network with a peer would be, before it is set up.
type NetworkPlan struct {
	// Own are this cluster's gateways, Theirs those that the peer announced.
	Own, Theirs []PlannedGateway
	// Remote are the peer's prefixes with their aliases here, Local this cluster's with their
	// aliases at the peer.
	Remote, Local []PlannedAlias
	// Transit are the third clusters that exchange packets with the peer through this one, or with
	// this one through the peer.
	Transit []PlannedTransit
	// Pool has the prefixes from which aliases are taken.
	Pool []string
	// Refused is what cannot work, and why; Warnings is what is not known yet, or may not be
	// intended.
	Refused, Warnings []string
}

// PlannedAlias is a prefix and its alias, if it has one.
type PlannedAlias struct {
	Prefix, Alias string
	// ByAddress means that the prefix has no alias, and Addresses of its addresses have one each.
	ByAddress bool
	Addresses int
	// Stands means that the alias was assigned before.
	Stands bool
}

// PlannedTransit is a third cluster that the peer reaches through this one, or this one through
// the peer.
type PlannedTransit struct {
	// Third is its name here, or its ID.
	Third string
	// Through means that it is reached through the peer.
	Through bool
	// Addresses is how many addresses are to be reached, Named how many of them have an alias.
	Addresses, Named int
	// Missing is what is missing for packets to pass, if anything.
	Missing string
}

// PlannedGateway is a gateway and where it can be dialled, best first.
type PlannedGateway struct {
	Name      string
	Endpoints []string
	// Problems is what is wrong with its configured endpoints.
	Problems []string
}

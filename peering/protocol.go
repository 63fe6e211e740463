package peering

// Protocol is the newest protocol revision that this version speaks, and MaxProtocolSkew by how
// many two agents may differ. A revision adds fields, values of enums, methods and kinds of
// messages, and removes nothing within the skew: an agent ignores additions that it does not
// know. An agent that sends no revision has revision 0.
const (
	Protocol        = 1
	MaxProtocolSkew = 2
)

// CheckProtocol refuses a peer whose protocol revision is too far from this side's own. The error
// says which of the two agents to upgrade, in words that are correct on both sides.
func CheckProtocol(own, peer uint32) error {
	older, newer := min(own, peer), max(own, peer)
	if newer-older <= MaxProtocolSkew {
		return nil
	}
	return Errorf(ReasonProtocolUnsupported,
		"the agents of the two clusters speak protocol revisions %d and %d, and can be at most %d apart: upgrade the agent that speaks revision %d",
		older, newer, MaxProtocolSkew, older)
}

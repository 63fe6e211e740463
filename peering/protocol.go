package peering

// Protocol is the newest protocol revision that this version speaks, and
// MaxProtocolSkew how far two agents may be apart. A revision adds fields, values
// of enums, methods and kinds of messages, and takes nothing away within the
// skew: who does not know what was added goes on without it. Who says no revision
// has revision 0.
const (
	Protocol        = 1
	MaxProtocolSkew = 2
)

// CheckProtocol refuses a peer whose protocol revision is too far from this
// side's own. The error says which of the two agents to upgrade, in words that are
// right at either side.
func CheckProtocol(own, peer uint32) error {
	older, newer := min(own, peer), max(own, peer)
	if newer-older <= MaxProtocolSkew {
		return nil
	}
	return Errorf(ReasonProtocolUnsupported,
		"the agents of the two clusters speak protocol revisions %d and %d, and can be at most %d apart: upgrade the agent that speaks revision %d",
		older, newer, MaxProtocolSkew, older)
}

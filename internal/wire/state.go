package wire

import (
	"log/slog"
	"net/netip"
	"time"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// State is everything that one cluster currently says to one peer: the PeerState
// of the session.
type State struct {
	// Sequence grows with each message of a stream.
	Sequence uint64
	// SentAt is when it was sent, by the sender's clock.
	SentAt time.Time
	// Protocol is the newest protocol revision that the sender speaks.
	Protocol uint32
	// Capabilities is what it can do beyond that.
	Capabilities []string
	// Endpoints is where its peer API can be dialled now, as host:port.
	Endpoints []string
	// Network is its end of the tunnel; nil while no contract wants one.
	Network *Network
	// Contracts is the contracts with the receiver that the sender holds.
	Contracts []ContractState
	// EchoSequence is the sequence of the newest message that the sender received.
	EchoSequence uint64
	// BundleHash is the hash of the receiver's trust bundle as the sender holds it;
	// zero is unset.
	BundleHash peering.Hash
	// Lends is whether WatchOffer would tell the receiver of anything.
	Lends Lending
	// Patience is for how long the sender waits for the receiver's next state; 0 if it
	// did not say.
	Patience time.Duration
}

// Lending is whether a cluster lends another anything.
type Lending uint8

const (
	// LendsUnknown is when it did not say, or not in terms that are known here.
	LendsUnknown Lending = iota
	// LendsNothing is neither resources nor services.
	LendsNothing
	// LendsSomething is some.
	LendsSomething
)

// Network is one side's end of the tunnel.
type Network struct {
	// Gateways is the nodes that speak WireGuard to the peer.
	Gateways []Gateway
	// Prefixes is the sender's pod prefixes, as it uses them itself.
	Prefixes []netip.Prefix
	// Aliases is, for each prefix of the receiver, the alias under which the
	// sender knows it.
	Aliases []Alias
	// PresharedHalf is the sender's half of the preshared key; zero is unset.
	PresharedHalf PresharedHalf
}

// PresharedHalf is one side's half of a tunnel's preshared key. It does not show
// itself in logs.
type PresharedHalf [32]byte

// String hides the bytes.
func (PresharedHalf) String() string { return "(hidden)" }

// GoString hides the bytes.
func (PresharedHalf) GoString() string { return "(hidden)" }

// LogValue hides the bytes.
func (PresharedHalf) LogValue() slog.Value { return slog.StringValue("(hidden)") }

// IsZero says whether the half is unset.
func (h PresharedHalf) IsZero() bool { return h == PresharedHalf{} }

// Gateway is a node that speaks WireGuard to other clusters.
type Gateway struct {
	// Name is the node's name, for people.
	Name string
	// PublicKey is its Curve25519 public key.
	PublicKey [32]byte
	// Endpoints is where it listens, as host:port, best first.
	Endpoints []string
	// Overlay is its IPv6 address inside the tunnel.
	Overlay netip.Addr
}

// Alias is another name for a prefix, of the same length and family.
type Alias struct {
	// Prefix is the prefix as its owner uses it.
	Prefix netip.Prefix
	// Alias is the prefix as the sender uses it.
	Alias netip.Prefix
}

// ContractState is one side's word on one contract.
type ContractState struct {
	// ID is the contract's.
	ID string
	// Revision is what the sender holds.
	Revision uint64
	// Phase is the state it is in at the sender.
	Phase peering.Phase
	// Message is why it is draining or closed.
	Message string
	// DrainUntil is when draining ends; zero unless it is draining.
	DrainUntil time.Time
	// Statement is the sequence number of the provider's newest statement of use;
	// 0 for none, and from a consumer.
	Statement uint64
}

// StateTo writes a state.
func StateTo(s State) *ententev1.PeerState {
	m := &ententev1.PeerState{
		Sequence:     s.Sequence,
		SentAt:       writeTime(s.SentAt),
		Protocol:     s.Protocol,
		Capabilities: s.Capabilities,
		Endpoints:    s.Endpoints,
		EchoSequence: s.EchoSequence,
		Lending:      lendingTo(s.Lends),
		Patience:     writeDuration(s.Patience),
	}
	if s.BundleHash != (peering.Hash{}) {
		m.BundleHash = s.BundleHash[:]
	}
	if s.Network != nil {
		m.Network = networkTo(s.Network)
	}
	for _, c := range s.Contracts {
		m.Contracts = append(m.Contracts, &ententev1.ContractState{
			ContractId: c.ID, Revision: c.Revision, Phase: PhaseTo(c.Phase), Message: Text(c.Message, MaxMessageLen),
			DrainUntil: writeTime(c.DrainUntil), Statement: c.Statement,
		})
	}
	return m
}

func lendingTo(l Lending) ententev1.PeerState_Lending {
	switch l {
	case LendsNothing:
		return ententev1.PeerState_LENDING_NOTHING
	case LendsSomething:
		return ententev1.PeerState_LENDING_SOMETHING
	case LendsUnknown:
	}
	return ententev1.PeerState_LENDING_UNSPECIFIED
}

func lendingFrom(l ententev1.PeerState_Lending) Lending {
	switch l {
	case ententev1.PeerState_LENDING_NOTHING:
		return LendsNothing
	case ententev1.PeerState_LENDING_SOMETHING:
		return LendsSomething
	case ententev1.PeerState_LENDING_UNSPECIFIED:
	}
	return LendsUnknown
}

// StateFrom reads a state.
func StateFrom(m *ententev1.PeerState) (State, error) {
	if m == nil {
		return State{}, invalid("state", "want a state")
	}
	s := State{Sequence: m.GetSequence(), Protocol: m.GetProtocol(), EchoSequence: m.GetEchoSequence(), Lends: lendingFrom(m.GetLending())}
	var err error
	if s.SentAt, err = readTime("state.sent_at", m.GetSentAt()); err != nil {
		return State{}, err
	}
	if len(m.GetCapabilities()) > MaxCapabilities {
		return State{}, invalid("state.capabilities", "want at most %d", MaxCapabilities)
	}
	for i, c := range m.GetCapabilities() {
		if c, err = cleanString(index("state.capabilities", i), c, MaxCapabilityLen); err != nil {
			return State{}, err
		}
		s.Capabilities = append(s.Capabilities, c)
	}
	if s.Endpoints, err = checkEndpoints("state.endpoints", m.GetEndpoints()); err != nil {
		return State{}, err
	}
	if h := m.GetBundleHash(); len(h) > 0 {
		if len(h) != len(s.BundleHash) {
			return State{}, invalid("state.bundle_hash", "want %d bytes or none", len(s.BundleHash))
		}
		s.BundleHash = peering.Hash(h)
	}
	if m.GetNetwork() != nil {
		if s.Network, err = networkFrom(m.GetNetwork()); err != nil {
			return State{}, err
		}
	}
	// One that makes no sense says nothing: the default serves everybody.
	if p := m.GetPatience(); p.IsValid() {
		s.Patience = max(p.AsDuration(), 0)
	}
	s.Contracts, err = contractStatesFrom(m.GetContracts())
	return s, err
}

func contractStatesFrom(list []*ententev1.ContractState) ([]ContractState, error) {
	if len(list) > MaxContracts {
		return nil, invalid("state.contracts", "want at most %d", MaxContracts)
	}
	var out []ContractState
	seen := make(map[string]bool, len(list))
	for i, m := range list {
		field := index("state.contracts", i)
		if err := peering.CheckContractID(m.GetContractId()); err != nil {
			return nil, invalid(field+".contract_id", "%s", err)
		}
		if seen[m.GetContractId()] {
			return nil, invalid(field+".contract_id", "appears twice")
		}
		seen[m.GetContractId()] = true
		// Both are kept as signed numbers that every JSON reader has to take.
		if m.GetRevision() > peering.MaxRevision || m.GetStatement() > peering.MaxRevision {
			return nil, invalid(field, "want a revision and a statement of at most %d", uint64(peering.MaxRevision))
		}
		c := ContractState{
			ID: m.GetContractId(), Revision: m.GetRevision(), Phase: PhaseFrom(m.GetPhase()),
			Message: Text(m.GetMessage(), MaxMessageLen), Statement: m.GetStatement(),
		}
		var err error
		if c.DrainUntil, err = readTime(field+".drain_until", m.GetDrainUntil()); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func networkTo(n *Network) *ententev1.Network {
	m := &ententev1.Network{}
	for _, g := range n.Gateways {
		overlay := g.Overlay.As16()
		m.Gateways = append(m.Gateways, &ententev1.Gateway{
			Name: g.Name, PublicKey: g.PublicKey[:], Endpoints: g.Endpoints, Overlay: overlay[:],
		})
	}
	for _, p := range n.Prefixes {
		m.Prefixes = append(m.Prefixes, p.String())
	}
	for _, a := range n.Aliases {
		m.Aliases = append(m.Aliases, &ententev1.Alias{Prefix: a.Prefix.String(), Alias: a.Alias.String()})
	}
	if !n.PresharedHalf.IsZero() {
		m.PresharedHalf = n.PresharedHalf[:]
	}
	return m
}

func networkFrom(m *ententev1.Network) (*Network, error) {
	n := &Network{}
	if len(m.GetGateways()) > MaxGateways {
		return nil, invalid("state.network.gateways", "want at most %d", MaxGateways)
	}
	for i, g := range m.GetGateways() {
		gw, err := gatewayFrom(index("state.network.gateways", i), g)
		if err != nil {
			return nil, err
		}
		n.Gateways = append(n.Gateways, gw)
	}
	if len(m.GetPrefixes()) > MaxPrefixes {
		return nil, invalid("state.network.prefixes", "want at most %d", MaxPrefixes)
	}
	for i, s := range m.GetPrefixes() {
		p, err := parsePrefix(index("state.network.prefixes", i), s)
		if err != nil {
			return nil, err
		}
		n.Prefixes = append(n.Prefixes, p)
	}
	if len(m.GetAliases()) > MaxPrefixes {
		return nil, invalid("state.network.aliases", "want at most %d", MaxPrefixes)
	}
	for i, a := range m.GetAliases() {
		alias, err := aliasFrom(index("state.network.aliases", i), a)
		if err != nil {
			return nil, err
		}
		n.Aliases = append(n.Aliases, alias)
	}
	if h := m.GetPresharedHalf(); len(h) > 0 {
		if len(h) != len(n.PresharedHalf) {
			return nil, invalid("state.network.preshared_half", "want %d bytes or none", len(n.PresharedHalf))
		}
		n.PresharedHalf = PresharedHalf(h)
		if n.PresharedHalf.IsZero() {
			return nil, invalid("state.network.preshared_half", "want random bytes")
		}
	}
	return n, nil
}

func gatewayFrom(field string, m *ententev1.Gateway) (Gateway, error) {
	g := Gateway{}
	var err error
	if g.Name, err = cleanString(field+".name", m.GetName(), MaxNodeNameLen); err != nil {
		return Gateway{}, err
	}
	if len(m.GetPublicKey()) != len(g.PublicKey) {
		return Gateway{}, invalid(field+".public_key", "want %d bytes", len(g.PublicKey))
	}
	g.PublicKey = [32]byte(m.GetPublicKey())
	if g.Endpoints, err = checkEndpoints(field+".endpoints", m.GetEndpoints()); err != nil {
		return Gateway{}, err
	}
	overlay, ok := netip.AddrFromSlice(m.GetOverlay())
	// fc00::/7 is all that an overlay address may be (RFC 4193): a peer must not
	// name an address that means something elsewhere.
	if !ok || !overlay.Is6() || !overlay.IsPrivate() {
		return Gateway{}, invalid(field+".overlay", "want an IPv6 unique local address")
	}
	g.Overlay = overlay
	return g, nil
}

func aliasFrom(field string, m *ententev1.Alias) (Alias, error) {
	p, err := parsePrefix(field+".prefix", m.GetPrefix())
	if err != nil {
		return Alias{}, err
	}
	a, err := parsePrefix(field+".alias", m.GetAlias())
	if err != nil {
		return Alias{}, err
	}
	if p.Bits() != a.Bits() || p.Addr().Is4() != a.Addr().Is4() {
		return Alias{}, invalid(field+".alias", "want a prefix of the same family and length as the one it stands for")
	}
	return Alias{Prefix: p, Alias: a}, nil
}

// PhaseTo writes a phase.
func PhaseTo(p peering.Phase) ententev1.ContractState_Phase {
	switch p {
	case peering.PhaseActive:
		return ententev1.ContractState_PHASE_ACTIVE
	case peering.PhaseDraining:
		return ententev1.ContractState_PHASE_DRAINING
	case peering.PhaseClosed:
		return ententev1.ContractState_PHASE_CLOSED
	case peering.PhaseUnspecified:
	}
	return ententev1.ContractState_PHASE_UNSPECIFIED
}

// PhaseFrom reads a phase. What a newer peer may mean is PhaseUnspecified: no
// reason to change anything.
func PhaseFrom(p ententev1.ContractState_Phase) peering.Phase {
	switch p {
	case ententev1.ContractState_PHASE_ACTIVE:
		return peering.PhaseActive
	case ententev1.ContractState_PHASE_DRAINING:
		return peering.PhaseDraining
	case ententev1.ContractState_PHASE_CLOSED:
		return peering.PhaseClosed
	case ententev1.ContractState_PHASE_UNSPECIFIED:
	}
	return peering.PhaseUnspecified
}

// CheckState returns a state as StateFrom understood it: nothing in it breaks a
// limit, and texts can be shown.
func CheckState(m *ententev1.PeerState) (*ententev1.PeerState, error) {
	s, err := StateFrom(m)
	if err != nil {
		return nil, err
	}
	return StateTo(s), nil
}

package wire

import (
	"net/netip"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// StateTo writes a state.
func StateTo(s peering.PeerState) *ententev1.PeerState {
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
			ContractId: c.ID, Revision: c.Revision, Phase: PhaseTo(c.Phase), Message: peering.Text(c.Message, peering.MaxMessageLen),
			DrainUntil: writeTime(c.DrainUntil), Statement: c.Statement,
		})
	}
	return m
}

func lendingTo(l peering.Lending) ententev1.PeerState_Lending {
	switch l {
	case peering.LendsNothing:
		return ententev1.PeerState_LENDING_NOTHING
	case peering.LendsSomething:
		return ententev1.PeerState_LENDING_SOMETHING
	case peering.LendsUnknown:
	}
	return ententev1.PeerState_LENDING_UNSPECIFIED
}

func lendingFrom(l ententev1.PeerState_Lending) peering.Lending {
	switch l {
	case ententev1.PeerState_LENDING_NOTHING:
		return peering.LendsNothing
	case ententev1.PeerState_LENDING_SOMETHING:
		return peering.LendsSomething
	case ententev1.PeerState_LENDING_UNSPECIFIED:
	}
	return peering.LendsUnknown
}

// StateFrom reads a state.
func StateFrom(m *ententev1.PeerState) (peering.PeerState, error) {
	if m == nil {
		return peering.PeerState{}, invalid("state", "want a state")
	}
	s := peering.PeerState{Sequence: m.GetSequence(), Protocol: m.GetProtocol(), EchoSequence: m.GetEchoSequence(), Lends: lendingFrom(m.GetLending())}
	var err error
	if s.SentAt, err = readTime("state.sent_at", m.GetSentAt()); err != nil {
		return peering.PeerState{}, err
	}
	if len(m.GetCapabilities()) > peering.MaxCapabilities {
		return peering.PeerState{}, invalid("state.capabilities", "want at most %d", peering.MaxCapabilities)
	}
	for i, c := range m.GetCapabilities() {
		if c, err = cleanString(index("state.capabilities", i), c, peering.MaxCapabilityLen); err != nil {
			return peering.PeerState{}, err
		}
		s.Capabilities = append(s.Capabilities, c)
	}
	if s.Endpoints, err = checkEndpoints("state.endpoints", m.GetEndpoints()); err != nil {
		return peering.PeerState{}, err
	}
	if h := m.GetBundleHash(); len(h) > 0 {
		if len(h) != len(s.BundleHash) {
			return peering.PeerState{}, invalid("state.bundle_hash", "want %d bytes or none", len(s.BundleHash))
		}
		s.BundleHash = peering.Hash(h)
	}
	if m.GetNetwork() != nil {
		if s.Network, err = networkFrom(m.GetNetwork()); err != nil {
			return peering.PeerState{}, err
		}
	}
	// One that makes no sense says nothing: the default serves everybody.
	if p := m.GetPatience(); p.IsValid() {
		s.Patience = max(p.AsDuration(), 0)
	}
	s.Contracts, err = contractStatesFrom(m.GetContracts())
	return s, err
}

func contractStatesFrom(list []*ententev1.ContractState) ([]peering.ContractState, error) {
	if len(list) > peering.MaxContracts {
		return nil, invalid("state.contracts", "want at most %d", peering.MaxContracts)
	}
	var out []peering.ContractState
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
		c := peering.ContractState{
			ID: m.GetContractId(), Revision: m.GetRevision(), Phase: PhaseFrom(m.GetPhase()),
			Message: peering.Text(m.GetMessage(), peering.MaxMessageLen), Statement: m.GetStatement(),
		}
		var err error
		if c.DrainUntil, err = readTime(field+".drain_until", m.GetDrainUntil()); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func networkTo(n *peering.Network) *ententev1.Network {
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

func networkFrom(m *ententev1.Network) (*peering.Network, error) {
	n := &peering.Network{}
	if len(m.GetGateways()) > peering.MaxGateways {
		return nil, invalid("state.network.gateways", "want at most %d", peering.MaxGateways)
	}
	for i, g := range m.GetGateways() {
		gw, err := gatewayFrom(index("state.network.gateways", i), g)
		if err != nil {
			return nil, err
		}
		n.Gateways = append(n.Gateways, gw)
	}
	if len(m.GetPrefixes()) > peering.MaxPrefixes {
		return nil, invalid("state.network.prefixes", "want at most %d", peering.MaxPrefixes)
	}
	for i, s := range m.GetPrefixes() {
		p, err := parsePrefix(index("state.network.prefixes", i), s)
		if err != nil {
			return nil, err
		}
		n.Prefixes = append(n.Prefixes, p)
	}
	if len(m.GetAliases()) > peering.MaxPrefixes {
		return nil, invalid("state.network.aliases", "want at most %d", peering.MaxPrefixes)
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
		n.PresharedHalf = peering.PresharedHalf(h)
		if n.PresharedHalf.IsZero() {
			return nil, invalid("state.network.preshared_half", "want random bytes")
		}
	}
	return n, nil
}

func gatewayFrom(field string, m *ententev1.Gateway) (peering.Gateway, error) {
	g := peering.Gateway{}
	var err error
	if g.Name, err = cleanString(field+".name", m.GetName(), peering.MaxNodeNameLen); err != nil {
		return peering.Gateway{}, err
	}
	if len(m.GetPublicKey()) != len(g.PublicKey) {
		return peering.Gateway{}, invalid(field+".public_key", "want %d bytes", len(g.PublicKey))
	}
	g.PublicKey = [32]byte(m.GetPublicKey())
	if g.Endpoints, err = checkEndpoints(field+".endpoints", m.GetEndpoints()); err != nil {
		return peering.Gateway{}, err
	}
	overlay, ok := netip.AddrFromSlice(m.GetOverlay())
	// fc00::/7 is all that an overlay address may be (RFC 4193): a peer must not
	// name an address that means something elsewhere.
	if !ok || !overlay.Is6() || !overlay.IsPrivate() {
		return peering.Gateway{}, invalid(field+".overlay", "want an IPv6 unique local address")
	}
	g.Overlay = overlay
	return g, nil
}

func aliasFrom(field string, m *ententev1.Alias) (peering.Alias, error) {
	p, err := parsePrefix(field+".prefix", m.GetPrefix())
	if err != nil {
		return peering.Alias{}, err
	}
	a, err := parsePrefix(field+".alias", m.GetAlias())
	if err != nil {
		return peering.Alias{}, err
	}
	if p.Bits() != a.Bits() || p.Addr().Is4() != a.Addr().Is4() {
		return peering.Alias{}, invalid(field+".alias", "want a prefix of the same family and length as the one it stands for")
	}
	return peering.Alias{Prefix: p, Alias: a}, nil
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

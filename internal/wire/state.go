package wire

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// StateTo writes a state.
func StateTo(s peering.PeerState) *ententev1.PeerState {
	m := &ententev1.PeerState{
		Sequence:         s.Sequence,
		SendTime:         writeTime(s.SendTime),
		Protocol:         s.Protocol,
		Capabilities:     s.Capabilities,
		Endpoints:        s.Endpoints,
		EchoSequence:     s.EchoSequence,
		Offering:         crosses(offerings(), s.Offering),
		HeartbeatTimeout: writeDuration(s.HeartbeatTimeout),
	}
	if s.BundleHash != (peering.Hash{}) {
		m.BundleHash = s.BundleHash[:]
	}
	if s.Network != nil {
		m.Network = networkTo(s.Network)
	}
	for _, c := range s.Contracts {
		m.Contracts = append(m.Contracts, &ententev1.ContractState{
			ContractId: c.ID, Revision: c.Revision, Phase: phaseTo(c.Phase), Message: peering.Text(c.Message, peering.MaxMessageLen),
			DrainUntil: writeTime(c.DrainUntil), StatementSequence: c.Statement,
		})
	}
	return m
}

// offerings and phases map values of the wire to those of peering. Other values are read as
// unspecified.
func offerings() map[ententev1.PeerState_Offering]peering.Offering {
	return map[ententev1.PeerState_Offering]peering.Offering{
		ententev1.PeerState_OFFERING_NOTHING: peering.OfferingNothing, ententev1.PeerState_OFFERING_SOMETHING: peering.OfferingSomething,
	}
}

func phases() map[ententev1.ContractState_Phase]peering.Phase {
	return map[ententev1.ContractState_Phase]peering.Phase{
		ententev1.ContractState_PHASE_ACTIVE: peering.PhaseActive, ententev1.ContractState_PHASE_DRAINING: peering.PhaseDraining,
		ententev1.ContractState_PHASE_CLOSED: peering.PhaseClosed,
	}
}

// StateFrom reads a state.
func StateFrom(m *ententev1.PeerState) (peering.PeerState, error) {
	if m == nil {
		return peering.PeerState{}, invalid("state", "want a state")
	}
	s := peering.PeerState{Sequence: m.GetSequence(), Protocol: m.GetProtocol(), EchoSequence: m.GetEchoSequence(), Offering: offerings()[m.GetOffering()]}
	var err error
	keep(&err, &s.SendTime)(readTime("state.send_time", m.GetSendTime()))
	keep(&err, &s.Capabilities)(readAll("state.capabilities", m.GetCapabilities(), peering.MaxCapabilities, func(field, c string) (string, error) {
		return cleanString(field, c, peering.MaxCapabilityLen)
	}))
	keep(&err, &s.Endpoints)(checkEndpoints("state.endpoints", m.GetEndpoints()))
	if h := m.GetBundleHash(); len(h) > 0 {
		keep(&err, &s.BundleHash)(hashFrom("state.bundle_hash", h))
	}
	if m.GetNetwork() != nil {
		keep(&err, &s.Network)(networkFrom(m.GetNetwork()))
	}
	// An invalid one is ignored: every peer can use the default.
	if p := m.GetHeartbeatTimeout(); p.IsValid() {
		s.HeartbeatTimeout = max(p.AsDuration(), 0)
	}
	seen := make(map[string]bool, len(m.GetContracts()))
	keep(&err, &s.Contracts)(readAll("state.contracts", m.GetContracts(), peering.MaxContracts, func(field string, c *ententev1.ContractState) (peering.ContractState, error) {
		if seen[c.GetContractId()] {
			return peering.ContractState{}, invalid(field+".contract_id", "appears twice")
		}
		seen[c.GetContractId()] = true
		return contractStateFrom(field, c)
	}))
	return read(s, err)
}

func contractStateFrom(field string, m *ententev1.ContractState) (peering.ContractState, error) {
	if err := peering.CheckContractID(m.GetContractId()); err != nil {
		return peering.ContractState{}, invalid(field+".contract_id", "%s", err)
	}
	// Both are kept as signed numbers that every JSON reader has to take.
	if m.GetRevision() > peering.MaxRevision || m.GetStatementSequence() > peering.MaxRevision {
		return peering.ContractState{}, invalid(field, "want a revision and a statement of at most %d", uint64(peering.MaxRevision))
	}
	until, err := readTime(field+".drain_until", m.GetDrainUntil())
	return peering.ContractState{
		ID: m.GetContractId(), Revision: m.GetRevision(), Phase: phaseFrom(m.GetPhase()),
		Message: peering.Text(m.GetMessage(), peering.MaxMessageLen), DrainUntil: until, Statement: m.GetStatementSequence(),
	}, err
}

func networkTo(n *peering.Network) *ententev1.Network {
	m := &ententev1.Network{}
	for _, g := range n.Gateways {
		m.Gateways = append(m.Gateways, gatewayTo(g))
	}
	for _, g := range n.Nodes {
		m.Nodes = append(m.Nodes, gatewayTo(g))
	}
	for _, o := range n.Observations {
		m.Observations = append(m.Observations, &ententev1.Observation{PublicKey: o.PublicKey[:], Endpoint: o.Endpoint.String()})
	}
	if n.ReceiverAddress.IsValid() {
		m.ReceiverAddress = n.ReceiverAddress.AsSlice()
	}
	m.Prefixes = Texts(n.Prefixes)
	for _, a := range n.Aliases {
		m.Aliases = append(m.Aliases, &ententev1.Alias{Prefix: a.Prefix.String(), Alias: a.Alias.String()})
	}
	m.Ipv4Addresses, m.Ipv6Addresses = addressesTo(n.Addresses)
	for _, t := range n.Transit {
		m.Transit = append(m.Transit, transitTo(t))
	}
	for _, t := range n.Opened {
		m.Opened = append(m.Opened, transitTo(t))
	}
	for _, t := range n.Running {
		m.Running = append(m.Running, transitTo(t))
	}
	for _, id := range n.Through {
		m.Through = append(m.Through, string(id))
	}
	for _, id := range n.Direct {
		m.Direct = append(m.Direct, string(id))
	}
	for _, b := range n.Blocks {
		m.AliasBlocks = append(m.AliasBlocks, blockTo(b))
	}
	if !n.PresharedKeyShare.IsZero() {
		m.PresharedKeyShare = n.PresharedKeyShare[:]
	}
	if r := n.Rotation; r != nil {
		m.Rotation = &ententev1.KeyRotation{Number: r.Number, NewestInstalled: r.NewestInstalled, OldestInUse: r.OldestInUse}
		if !r.NextKeyShare.IsZero() {
			m.Rotation.NextKeyShare = r.NextKeyShare[:]
		}
	}
	return m
}

func addressesTo(list []netip.Addr) (four, six []byte) {
	for _, a := range list {
		if a.Is4() {
			four = append(four, a.AsSlice()...)
		} else {
			six = append(six, a.AsSlice()...)
		}
	}
	return four, six
}

func gatewayTo(g peering.Gateway) *ententev1.Gateway {
	overlay := g.Overlay.As16()
	m := &ententev1.Gateway{Name: g.Name, PublicKey: g.PublicKey[:], Endpoints: g.Endpoints, OverlayAddress: overlay[:], ObservedEndpoints: Texts(g.Observed)}
	if g.NextPublicKey != [32]byte{} {
		m.NextPublicKey = g.NextPublicKey[:]
	}
	m.PodPrefixes = Texts(g.Pods)
	for _, a := range g.Sources {
		m.ProbeAddresses = append(m.ProbeAddresses, a.AsSlice())
	}
	return m
}

func blockTo(b peering.AliasBlock) *ententev1.AliasBlock {
	size := b.Alias.Addr().BitLen() / 8
	addresses := make([]byte, len(b.Addresses)*size)
	for i, a := range b.Addresses {
		copy(addresses[i*size:], a.AsSlice()) // the zero Addr has no bytes
	}
	return &ententev1.AliasBlock{Alias: b.Alias.String(), Addresses: addresses}
}

func networkFrom(m *ententev1.Network) (*peering.Network, error) {
	n := &peering.Network{}
	var err error
	keep(&err, &n.Gateways)(readAll("state.network.gateways", m.GetGateways(), peering.MaxGateways, gatewayFrom))
	keep(&err, &n.Nodes)(readAll("state.network.nodes", m.GetNodes(), peering.MaxNodes, gatewayFrom))
	keep(&err, &n.Prefixes)(readAll("state.network.prefixes", m.GetPrefixes(), peering.MaxPrefixes, parsePrefix))
	keep(&err, &n.Aliases)(readAll("state.network.aliases", m.GetAliases(), peering.MaxPrefixes, aliasFrom))
	keep(&err, &n.Addresses)(addressesFrom("state.network", m))
	keep(&err, &n.Transit)(readAll("state.network.transit", m.GetTransit(), peering.MaxTransit, transitFrom))
	keep(&err, &n.Through)(readAll("state.network.through", m.GetThrough(), peering.MaxTransit, clusterIDFrom))
	keep(&err, &n.Direct)(readAll("state.network.direct", m.GetDirect(), peering.MaxTransit, clusterIDFrom))
	keep(&err, &n.Opened)(readAll("state.network.opened", m.GetOpened(), peering.MaxTransit, ownFrom))
	keep(&err, &n.Running)(readAll("state.network.running", m.GetRunning(), peering.MaxTransit, ownFrom))
	if err == nil {
		err = cmp.Or(
			checkThirds("state.network.transit", peering.MaxAddresses, n.Addresses, n.Transit), checkDirect(n.Transit),
			checkThirds("state.network.opened", peering.MaxDirect, nil, n.Opened), checkThirds("state.network.running", peering.MaxDirect, nil, n.Running),
		)
	}
	keep(&err, &n.Blocks)(readAll("state.network.alias_blocks", m.GetAliasBlocks(), peering.MaxBlocks, blockFrom))
	if err == nil {
		err = checkBlocks(n.Blocks)
	}
	keep(&err, &n.Observations)(readAll("state.network.observations", m.GetObservations(), peering.MaxObservations, observationFrom))
	if err != nil {
		return nil, err
	}
	n.Observations = slices.DeleteFunc(n.Observations, func(o peering.Observation) bool { return !peering.Observable(o.Endpoint.Addr()) })
	if b := m.GetReceiverAddress(); len(b) > 0 {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return nil, invalid("state.network.receiver_address", "want 4 or 16 bytes, or none")
		}
		if a = a.Unmap(); peering.Observable(a) {
			n.ReceiverAddress = a
		}
	}
	keep(&err, &n.PresharedKeyShare)(keyShareFrom("state.network.preshared_key_share", m.GetPresharedKeyShare()))
	if m.GetRotation() != nil {
		keep(&err, &n.Rotation)(rotationFrom(m.GetRotation()))
	}
	return read(n, err)
}

// keyShareFrom reads a share of a preshared key, which may be missing.
func keyShareFrom(field string, b []byte) (h peering.PresharedKeyShare, err error) {
	if len(b) == 0 {
		return h, nil
	}
	if len(b) != len(h) {
		return h, invalid(field, "want %d bytes or none", len(h))
	}
	if h = peering.PresharedKeyShare(b); h.IsZero() {
		return h, invalid(field, "want random bytes")
	}
	return h, nil
}

func rotationFrom(m *ententev1.KeyRotation) (*peering.KeyRotation, error) {
	r := &peering.KeyRotation{Number: m.GetNumber(), NewestInstalled: m.GetNewestInstalled(), OldestInUse: m.GetOldestInUse()}
	if max(r.Number, r.NewestInstalled, r.OldestInUse) > peering.MaxRevision {
		return nil, invalid("state.network.rotation", "want numbers of at most %d", uint64(peering.MaxRevision))
	}
	var err error
	r.NextKeyShare, err = keyShareFrom("state.network.rotation.next_key_share", m.GetNextKeyShare())
	return r, err
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
	if next := m.GetNextPublicKey(); len(next) > 0 {
		if len(next) != len(g.NextPublicKey) {
			return peering.Gateway{}, invalid(field+".next_public_key", "want %d bytes or none", len(g.NextPublicKey))
		}
		g.NextPublicKey = [32]byte(next)
	}
	if g.Endpoints, err = checkEndpoints(field+".endpoints", m.GetEndpoints()); err != nil {
		return peering.Gateway{}, err
	}
	overlay, ok := netip.AddrFromSlice(m.GetOverlayAddress())
	// Overlay addresses are in fc00::/7 (RFC 4193): a peer must not name an address that is in use
	// elsewhere.
	if !ok || !overlay.Is6() || !overlay.IsPrivate() {
		return peering.Gateway{}, invalid(field+".overlay_address", "want an IPv6 unique local address")
	}
	g.Overlay = overlay
	if g.Pods, err = readAll(field+".pod_prefixes", m.GetPodPrefixes(), peering.MaxNodePods, parsePrefix); err != nil {
		return peering.Gateway{}, err
	}
	if g.Sources, err = readAll(field+".probe_addresses", m.GetProbeAddresses(), peering.MaxSources, sourceFrom); err != nil {
		return peering.Gateway{}, err
	}
	if len(g.Sources) == peering.MaxSources && g.Sources[0].Is4() == g.Sources[1].Is4() {
		return peering.Gateway{}, invalid(field+".probe_addresses", "want one of each family at most")
	}
	if g.Observed, err = readAll(field+".observed_endpoints", m.GetObservedEndpoints(), peering.MaxObserved, observedFrom); err != nil {
		return peering.Gateway{}, err
	}
	g.Observed = slices.DeleteFunc(g.Observed, func(e netip.AddrPort) bool { return !peering.Observable(e.Addr()) })
	return g, nil
}

// sourceFrom reads an address of a node among its pods'.
func sourceFrom(field string, b []byte) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.Is4In6() {
		return a, invalid(field, "want an IP address, 4 or 16 bytes")
	}
	return a, nil
}

func observationFrom(field string, m *ententev1.Observation) (peering.Observation, error) {
	o := peering.Observation{}
	if len(m.GetPublicKey()) != len(o.PublicKey) {
		return o, invalid(field+".public_key", "want %d bytes", len(o.PublicKey))
	}
	o.PublicKey = [32]byte(m.GetPublicKey())
	var err error
	o.Endpoint, err = observedFrom(field+".endpoint", m.GetEndpoint())
	return o, err
}

// observedFrom reads the address at which a gateway was observed. It may be unusable: see
// [peering.Observable].
func observedFrom(field, s string) (netip.AddrPort, error) {
	e, err := netip.ParseAddrPort(s)
	if len(s) > peering.MaxObservedLen || err != nil || e.Port() == 0 || e.Addr().Zone() != "" {
		return netip.AddrPort{}, invalid(field, "want address:port")
	}
	return netip.AddrPortFrom(e.Addr().Unmap(), e.Port()), nil
}

// Texts returns the string of each element of a list.
func Texts[T fmt.Stringer](list []T) []string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
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
		return peering.Alias{}, invalid(field+".alias", "want a prefix of the same family and length as the one that it replaces")
	}
	return peering.Alias{Prefix: p, Alias: a}, nil
}

func transitFrom(field string, m *ententev1.TransitAddresses) (t peering.TransitAddresses, err error) {
	if t.Cluster, err = clusterIDFrom(field+".cluster_id", m.GetClusterId()); err != nil {
		return t, err
	}
	if t.Addresses, err = addressesFrom(field, m); err != nil {
		return t, err
	}
	t.Namespaces, err = readAll(field+".namespaces", m.GetNamespaces(), peering.MaxDirectNamespaces, transitNamespaceFrom)
	return t, err
}

// ownFrom reads addresses of the sender's own, which are in no namespaces.
func ownFrom(field string, m *ententev1.TransitAddresses) (peering.TransitAddresses, error) {
	if len(m.GetNamespaces()) > 0 {
		return peering.TransitAddresses{}, invalid(field+".namespaces", "want none")
	}
	return transitFrom(field, m)
}

func transitTo(t peering.TransitAddresses) *ententev1.TransitAddresses {
	m := &ententev1.TransitAddresses{ClusterId: string(t.Cluster)}
	m.Ipv4Addresses, m.Ipv6Addresses = addressesTo(t.Addresses)
	for _, ns := range t.Namespaces {
		var addrs, there []netip.Addr
		for _, p := range ns.Pods {
			addrs, there = append(addrs, p.Address), append(there, p.There)
		}
		n := &ententev1.TransitNamespace{Name: ns.Name}
		n.Ipv4Addresses, n.Ipv6Addresses = addressesTo(addrs)
		n.Ipv4PodAddresses, n.Ipv6PodAddresses = addressesTo(there)
		m.Namespaces = append(m.Namespaces, n)
	}
	return m
}

// transitNamespaceFrom reads the pods of a namespace. Their own addresses are in no order.
func transitNamespaceFrom(field string, m *ententev1.TransitNamespace) (ns peering.TransitNamespace, err error) {
	ns.Name = m.GetName()
	if err := checkLabel(field+".name", ns.Name); err != nil || ns.Name == "" {
		return ns, invalid(field+".name", "want the name of a namespace")
	}
	addrs, err := addressesFrom(field, m)
	if err != nil {
		return ns, err
	}
	there := make([]netip.Addr, 0, len(addrs))
	for _, list := range []struct {
		field string
		bytes []byte
		size  int
		own   []byte
	}{{field + ".ipv4_pod_addresses", m.GetIpv4PodAddresses(), 4, m.GetIpv4Addresses()}, {field + ".ipv6_pod_addresses", m.GetIpv6PodAddresses(), 16, m.GetIpv6Addresses()}} {
		if len(list.bytes) != len(list.own) {
			return ns, invalid(list.field, "want one for each address")
		}
		for one := range slices.Chunk(list.bytes, list.size) {
			a, _ := netip.AddrFromSlice(one)
			if a.Is4In6() || a.IsUnspecified() {
				return ns, invalid(list.field, "want addresses of pods")
			}
			there = append(there, a)
		}
	}
	for i, a := range addrs {
		ns.Pods = append(ns.Pods, peering.TransitPod{Address: a, There: there[i]})
	}
	return ns, nil
}

func clusterIDFrom(field, id string) (peering.ClusterID, error) {
	out, err := peering.ParseClusterID(id)
	if err != nil {
		return "", invalid(field, "%s", err)
	}
	return out, nil
}

// checkThirds makes sure that each third cluster, and each address of all of them and of those that count with them,
// is named once.
func checkThirds(field string, most int, counted []netip.Addr, thirds []peering.TransitAddresses) error {
	seen, clusters := map[netip.Addr]bool{}, map[peering.ClusterID]bool{}
	for _, a := range counted {
		seen[a] = true
	}
	for i, t := range thirds {
		if clusters[t.Cluster] {
			return invalid(index(field, i)+".cluster_id", "appears twice")
		}
		clusters[t.Cluster] = true
		for _, a := range t.Addresses {
			if seen[a] {
				return invalid(index(field, i)+".addresses", "want each address once")
			}
			seen[a] = true
		}
	}
	if len(seen) > most {
		return invalid(field, "want at most %d addresses in all", most)
	}
	return nil
}

// checkDirect makes sure that the pods of namespaces are among the addresses of their cluster, each in one namespace.
func checkDirect(thirds []peering.TransitAddresses) error {
	count := 0
	for i, t := range thirds {
		field, free, names := index("state.network.transit", i)+".namespaces", map[netip.Addr]bool{}, map[string]bool{}
		for _, a := range t.Addresses {
			free[a] = true
		}
		for _, ns := range t.Namespaces {
			if names[ns.Name] {
				return invalid(field, "want each namespace once")
			}
			names[ns.Name] = true
			for _, p := range ns.Pods {
				if !free[p.Address] {
					return invalid(field, "want addresses of the cluster, each in one namespace")
				}
				delete(free, p.Address)
				count++
			}
		}
	}
	if count > peering.MaxDirect {
		return invalid("state.network.transit", "want at most %d addresses in namespaces", peering.MaxDirect)
	}
	return nil
}

// addressesFrom reads addresses that a peer names one by one.
func addressesFrom(field string, m interface {
	GetIpv4Addresses() []byte
	GetIpv6Addresses() []byte
},
) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, list := range []struct {
		field string
		bytes []byte
		size  int
	}{{field + ".ipv4_addresses", m.GetIpv4Addresses(), 4}, {field + ".ipv6_addresses", m.GetIpv6Addresses(), 16}} {
		if len(list.bytes)%list.size != 0 || len(out)+len(list.bytes)/list.size > peering.MaxAddresses {
			return nil, invalid(list.field, "want %d bytes for each address, and at most %d addresses in all", list.size, peering.MaxAddresses)
		}
		for one := range slices.Chunk(list.bytes, list.size) {
			a, _ := netip.AddrFromSlice(one)
			if a.Is4In6() || len(out) > 0 && out[len(out)-1].Compare(a) >= 0 {
				return nil, invalid(list.field, "want addresses in ascending order, each once")
			}
			out = append(out, a)
		}
	}
	return out, nil
}

func blockFrom(field string, m *ententev1.AliasBlock) (peering.AliasBlock, error) {
	alias, err := parsePrefix(field+".alias", m.GetAlias())
	if err != nil {
		return peering.AliasBlock{}, err
	}
	size := alias.Addr().BitLen() / 8
	host := alias.Addr().BitLen() - alias.Bits()
	if host > bits.Len(peering.MaxBlockAddresses-1) || len(m.GetAddresses()) != size<<host {
		return peering.AliasBlock{}, invalid(field+".addresses", "want %d bytes for each address of a prefix of at most %d", size, peering.MaxBlockAddresses)
	}
	b := peering.AliasBlock{Alias: alias, Addresses: make([]netip.Addr, 0, 1<<host)}
	for one := range slices.Chunk(m.GetAddresses(), size) {
		a, _ := netip.AddrFromSlice(one)
		switch {
		case a.Is4In6():
			return peering.AliasBlock{}, invalid(field+".addresses", "want no IPv4 addresses in IPv6 form")
		case a.IsUnspecified():
			a = netip.Addr{}
		}
		b.Addresses = append(b.Addresses, a)
	}
	return b, nil
}

// checkBlocks makes sure that no address of a peer's blocks appears twice.
func checkBlocks(blocks []peering.AliasBlock) error {
	seen := map[netip.Addr]bool{}
	for i, b := range blocks {
		for _, a := range b.Addresses {
			if a.IsValid() && seen[a] {
				return invalid(index("state.network.alias_blocks", i)+".addresses", "want each address once")
			}
			seen[a] = true
		}
	}
	if delete(seen, netip.Addr{}); len(seen) > peering.MaxAddresses {
		return invalid("state.network.alias_blocks", "want at most %d addresses in all", peering.MaxAddresses)
	}
	return nil
}

// phaseTo writes a phase.
func phaseTo(p peering.Phase) ententev1.ContractState_Phase { return crosses(phases(), p) }

// phaseFrom reads a phase. A phase of a newer revision is PhaseUnspecified, which changes
// nothing.
func phaseFrom(p ententev1.ContractState_Phase) peering.Phase { return phases()[p] }

// CheckState returns a state with only what StateFrom read: it keeps all limits, and its texts
// can be shown.
func CheckState(m *ententev1.PeerState) (*ententev1.PeerState, error) {
	s, err := StateFrom(m)
	if err != nil {
		return nil, err
	}
	return StateTo(s), nil
}

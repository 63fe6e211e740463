package agent

import (
	"context"
	"errors"
	"net"
	"slices"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/carry"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
	"github.com/entente-dev/entente/tunnel/plan"
)

// CarryFor selects the peers between which this cluster carries sessions.
type CarryFor string

const (
	// CarryForNone carries no sessions.
	CarryForNone CarryFor = "None"
	// CarryForContracts carries between peers with an open contract.
	CarryForContracts CarryFor = "Contracts"
	// CarryForPeers carries between all trusted peers.
	CarryForPeers CarryFor = "Peers"
)

// CarryConfig is how sessions are carried through third peers.
type CarryConfig struct {
	// For selects the peers between which this cluster carries sessions.
	For CarryFor
	// Through allows sessions of this cluster to be carried.
	Through bool
	// Rate is how many bytes a second of a peer are carried, AllRate of all peers.
	Rate, AllRate int
}

// thirds carries sessions between peers, and lets peers carry sessions of this cluster.
type thirds struct {
	a       *agent
	cfg     CarryConfig
	carrier *carry.Carrier // nil if none are carried
	// contracted reports whether there is an open contract with a peer. It does not block.
	contracted func(peer peering.ClusterID) bool
	// listener accepts the sessions that others carry; nil if none do.
	listener *carry.Listener
}

func (a *agent) buildThirds(cfg CarryConfig) (*thirds, error) {
	t := &thirds{a: a, cfg: cfg, contracted: a.contracted}
	var err error
	if cfg.Through {
		if t.listener, err = carry.Listen(
			func(third peering.ClusterID) bool { return t.session(third) != 0 },
			func(third peering.ClusterID) net.Addr {
				return &net.TCPAddr{IP: plan.Overlay(string(third), "").AsSlice()}
			},
		); err != nil {
			return nil, err
		}
	}
	if cfg.For == "" || cfg.For == CarryForNone {
		return t, nil
	}
	if t.carrier, err = carry.NewCarrier(carry.CarrierConfig{
		Connected: t.connected, Session: t.session, Allowed: t.carriesFor,
		Open: func(ctx context.Context, peer peering.ClusterID) (carry.Stream, error) {
			return client.Carry(ctx, a.sessions.Conn(peer), nil)
		},
		PeerRate: cfg.Rate, AllRate: cfg.AllRate, Log: a.log,
	}); err != nil {
		return nil, err
	}
	return t, nil
}

// connected returns the peers with a session that is not carried.
func (t *thirds) connected() []peering.ClusterID {
	var out []peering.ClusterID
	for _, s := range t.a.sessions.Sessions() {
		if s.Through == "" {
			out = append(out, s.Peer)
		}
	}
	return out
}

// session returns the number of the session with a peer, 0 if there is none or it is carried.
func (t *thirds) session(peer peering.ClusterID) uint64 {
	s := t.a.sessions.Status(peer).Session
	if s == nil || s.Through != "" {
		return 0
	}
	return s.Number
}

// carriesFor reports whether this cluster carries sessions for a peer.
func (t *thirds) carriesFor(peer peering.ClusterID) bool {
	if !t.a.bundles.Has(peer) {
		return false
	}
	switch t.cfg.For {
	case CarryForPeers:
		return true
	case CarryForContracts:
		return t.contracted(peer)
	case CarryForNone:
	}
	return false
}

// contracted reports whether there is an open contract with a peer.
func (a *agent) contracted(peer peering.ClusterID) bool {
	contracts, err := store.ContractsWith(context.Background(), a.mgr.GetClient(), peer, ctrlclient.UnsafeDisableDeepCopy) //nolint:forbidigo // a read from a cache does not block
	return err == nil && slices.ContainsFunc(contracts, func(c v1alpha1.Contract) bool { return !store.Closed(&c) })
}

// capabilities lists what this cluster can do for a peer, as it announces them.
func (t *thirds) capabilities(peer peering.ClusterID) []string {
	if t.carrier == nil || !t.carriesFor(peer) {
		return nil
	}
	return []string{peering.CapabilityCarry}
}

// dial connects to a peer through a third one.
func (t *thirds) dial(ctx context.Context, third, peer peering.ClusterID) (net.Conn, error) {
	// The call lasts as long as the connection.
	s, err := client.Carry(context.WithoutCancel(ctx), t.a.sessions.Conn(third), newTarget(t.a.source.ID(), peer))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.End(nil) })
	first, err := s.Recv()
	if err == nil && len(first) > 0 {
		err = errors.New("its first response has data")
	}
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		s.End(nil)
		return nil, err
	}
	conn, pass := carry.Join(s, third, &net.TCPAddr{IP: plan.Overlay(string(third), "").AsSlice()})
	go pass() // ends with the connection
	return conn, nil
}

func newTarget(from, to peering.ClusterID) *client.CarryTarget {
	t := carry.NewTarget(from, to)
	return &client.CarryTarget{Nonce: t.Nonce, Name: t.Name}
}

func (t *thirds) Carry(ctx context.Context, from peering.ClusterID, nonce [16]byte, name [32]byte, s server.CarryStream) error {
	if t.carrier == nil {
		return peering.Errorf(peering.ReasonPolicyRefused, "this cluster does not carry connections of others (network.relay.forPeers)")
	}
	return t.carrier.Carry(ctx, from, carry.Target{Nonce: nonce, Name: name}, s)
}

func (t *thirds) Take(ctx context.Context, third peering.ClusterID, s server.CarryStream) error {
	if t.listener == nil {
		return peering.Errorf(peering.ReasonPolicyRefused, "this cluster does not accept connections that others carry (network.relay.throughPeers)")
	}
	return t.listener.Take(ctx, third, s)
}

// nameOf returns the name of a peer here; its ID if it has none.
func (a *agent) nameOf(id peering.ClusterID) string {
	if id == "" {
		return ""
	}
	if fc := a.addresses.peer(id); fc != nil {
		return fc.Name
	}
	return string(id)
}

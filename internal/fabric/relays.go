package fabric

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/entente-dev/entente/internal/datagrams"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// relays has gateways of peers reached through the agents, where that is wanted.
type relays struct {
	gateway *datagrams.Gateway

	mu sync.Mutex
	// self is the node's own key, peers what is desired of it.
	self  plan.PublicKey
	peers []datagrams.Peer
	// wanted is for which peers there is a link.
	wanted wantedLinks
}

// newRelays returns nil if nothing is relayed.
func newRelays(cfg Config) (*relays, error) {
	if cfg.RelayAgent == "" {
		return nil, nil //nolint:nilnil // that is what it is for
	}
	gateway, err := datagrams.NewGateway(datagrams.GatewayConfig{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", cfg.RelayAgent)
		},
		Port: cfg.Port, Local: relayPort, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	return &relays{gateway: gateway, wanted: wantedLinks{}}, nil
}

// fill adds to what a node's fabric should do where it reaches gateways through the agents. Only
// gateways do, and no tunnel without its key.
func (r *relays) fill(desired *plan.Desired) {
	if r == nil || desired == nil {
		return
	}
	var peers []datagrams.Peer
	for _, n := range desired.Nodes {
		if n.Name != desired.Node || !n.Gateway {
			continue
		}
		for _, q := range desired.Peers {
			key, err := datagrams.KeyFrom(q.PresharedKey)
			// The session with an in-band peer runs through its tunnel and cannot carry it.
			if err != nil || q.InBand || q.KeyMissing || q.PresharedKey.IsZero() {
				continue
			}
			p := datagrams.Peer{ID: q.ClusterID, Key: key}
			for _, g := range q.Gateways {
				p.Gateways = append(p.Gateways, g.PublicKey)
			}
			peers = append(peers, p)
		}
	}
	r.mu.Lock()
	r.peers = peers
	r.setLocked()
	r.mu.Unlock()
	for i := range desired.Peers {
		for j := range desired.Peers[i].Gateways {
			g := &desired.Peers[i].Gateways[j]
			g.Relay, _ = r.gateway.Endpoint(desired.Peers[i].ClusterID, g.PublicKey)
		}
	}
}

// setLocked gives the gateway what is known. The lock is held.
func (r *relays) setLocked() {
	for i := range r.peers {
		r.peers[i].Needed = r.wanted[r.peers[i].ID].linked
	}
	r.gateway.Set(r.self, r.peers)
}

// hold keeps back what comes through the agents. It is for tunnel.Config.
func (r *relays) delay() func(relay netip.AddrPort, d time.Duration) {
	if r == nil {
		return nil
	}
	return r.gateway.Delay
}

// run keeps links to the agent for the peers that need one, until ctx ends.
func (r *relays) run(ctx context.Context, status func() tunnel.Status) error {
	if r == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- r.gateway.Run(ctx) }()
	tick := time.NewTicker(relayLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return <-done
		case now := <-tick.C:
			s := status()
			r.mu.Lock()
			next := r.wanted.next(now, s.Peers)
			if r.self != s.PublicKey || !next.same(r.wanted) {
				r.self, r.wanted = s.PublicKey, next
				r.setLocked()
			}
			r.wanted = next
			r.mu.Unlock()
		}
	}
}

// wantedLink records whether a peer has a link, and since when it has needed the opposite; zero if it does not.
type wantedLink struct {
	linked bool
	since  time.Time
}

// wantedLinks is that of each peer.
type wantedLinks map[string]wantedLink

// next returns for which peers links are wanted: a while after some gateway of one is not reached
// but through the agents, until a while after all are.
func (w wantedLinks) next(now time.Time, peers []tunnel.PeerStatus) wantedLinks {
	needs := map[string]bool{}
	for _, p := range peers {
		if p.Remote && !p.OnDemand {
			needs[p.Cluster] = needs[p.Cluster] || p.State != probe.PathUp || p.Way == tunnel.WayRelayed
		}
	}
	out := wantedLinks{}
	for peer, need := range needs {
		l := w[peer]
		if l.linked == need {
			l.since = time.Time{}
		} else if l.since.IsZero() {
			l.since = now
		}
		patience := relayWanted
		if l.linked {
			patience = relayUnwanted
		}
		if l.linked != need && now.Sub(l.since) >= patience {
			l = wantedLink{linked: need}
		}
		out[peer] = l
	}
	return out
}

// same says whether the same peers have links.
func (w wantedLinks) same(other wantedLinks) bool {
	for _, pair := range [][2]wantedLinks{{w, other}, {other, w}} {
		for peer, l := range pair[0] {
			if l.linked != pair[1][peer].linked {
				return false
			}
		}
	}
	return true
}

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

// relays makes gateways of peers reachable through the agents, where that is needed.
type relays struct {
	gateway *datagrams.Gateway

	mu sync.Mutex
	// self is the node's own key, peers are the desired peers.
	self  plan.PublicKey
	peers []datagrams.Peer
	// links are the links for peers.
	links relayLinks
}

// newRelays returns nil if the configuration has no agent that relays.
func newRelays(cfg Config) (*relays, error) {
	if cfg.RelayAgent == "" {
		return nil, nil //nolint:nilnil // nil relays nothing
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
	return &relays{gateway: gateway, links: relayLinks{}}, nil
}

// fill adds to the desired state of a node's fabric the addresses at which it reaches gateways through the
// agents. Only gateways get some, and only for tunnels whose key is known.
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

// setLocked sets the peers of the gateway. The caller has the lock.
func (r *relays) setLocked() {
	for i := range r.peers {
		r.peers[i].Needed = r.links[r.peers[i].ID].linked
	}
	r.gateway.Set(r.self, r.peers)
}

// delay returns the function that delays datagrams through the agents, for tunnel.Config.
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
	tick := time.NewTicker(relayCheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return <-done
		case now := <-tick.C:
			s := status()
			r.mu.Lock()
			next := r.links.next(now, s.Peers)
			if r.self != s.PublicKey || !next.same(r.links) {
				r.self, r.links = s.PublicKey, next
				r.setLocked()
			}
			r.links = next
			r.mu.Unlock()
		}
	}
}

// relayLink records whether a peer has a link, and since when it has needed the opposite; zero if it does
// not need that.
type relayLink struct {
	linked bool
	since  time.Time
}

// relayLinks is the link of each peer.
type relayLinks map[string]relayLink

// next returns the links that peers should have: from relayLinkAfter after some gateway of a peer is
// reached only through the agents, until relayUnlinkAfter after all are reached directly.
func (w relayLinks) next(now time.Time, peers []tunnel.PeerStatus) relayLinks {
	needs := map[string]bool{}
	for _, p := range peers {
		if p.Remote && !p.OnDemand {
			needs[p.Cluster] = needs[p.Cluster] || p.State != probe.PathUp || p.Way == tunnel.WayRelayed
		}
	}
	out := relayLinks{}
	for peer, need := range needs {
		l := w[peer]
		if l.linked == need {
			l.since = time.Time{}
		} else if l.since.IsZero() {
			l.since = now
		}
		patience := relayLinkAfter
		if l.linked {
			patience = relayUnlinkAfter
		}
		if l.linked != need && now.Sub(l.since) >= patience {
			l = relayLink{linked: need}
		}
		out[peer] = l
	}
	return out
}

// same reports whether the same peers have links.
func (w relayLinks) same(other relayLinks) bool {
	for _, pair := range [][2]relayLinks{{w, other}, {other, w}} {
		for peer, l := range pair[0] {
			if l.linked != pair[1][peer].linked {
				return false
			}
		}
	}
	return true
}

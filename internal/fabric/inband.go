package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/relay"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// relayTable is the configuration of a node's relays. The zero value is that of a node without
// relays.
type relayTable struct {
	// overlay is the address of the inbound relay, own are those of the outbound one, and from
	// those that may connect to the latter.
	overlay   netip.Addr
	own, from []netip.Addr
	peers     map[string]relayPeer
}

// relayPeer is an in-band peer.
type relayPeer struct {
	// agent is where this cluster's agent accepts its connections.
	agent netip.AddrPort
	// toPeer are the keys by any of which the agent proves itself, toAgent is that of the relay.
	toPeer   []relay.Key
	toAgent  relay.Key
	gateways []relayGateway
}

// relayGateway is a gateway of a peer: its name and its address inside the tunnel.
type relayGateway struct {
	node    string
	overlay netip.Addr
}

// inBandTable returns the configuration of a node's relays: it has some if it is a gateway and the key of
// an in-band peer is known.
func inBandTable(own *corev1.Node, nodes []v1alpha1.FabricNode, tunnels []v1alpha1.Tunnel, known Known) relayTable {
	out := relayTable{peers: map[string]relayPeer{}}
	if !slices.Contains(known.Gateways, own.Name) {
		return relayTable{}
	}
	for i := range tunnels {
		peer, ok := relayPeerOf(&tunnels[i], known)
		if ok {
			out.peers[tunnels[i].Spec.PeerID] = peer
			out.from = append(out.from, peer.agent.Addr())
		}
	}
	if len(out.peers) == 0 {
		return relayTable{}
	}
	for i := range nodes {
		if nodes[i].Name == own.Name && nodes[i].Spec.ClusterID != "" {
			out.overlay = plan.Overlay(nodes[i].Spec.ClusterID, own.Name)
		}
		for _, e := range nodes[i].Status.Endpoints {
			if at, err := netip.ParseAddrPort(e); err == nil {
				out.from = append(out.from, at.Addr().Unmap())
			}
		}
	}
	for _, a := range own.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out.own = append(out.own, addr.Unmap())
		}
	}
	if !out.overlay.IsValid() {
		return relayTable{}
	}
	out.from = append(out.from, out.own...)
	for _, list := range [][]netip.Addr{out.own, out.from} {
		slices.SortFunc(list, netip.Addr.Compare)
	}
	out.own, out.from = slices.Compact(out.own), slices.Compact(out.from)
	return out
}

func relayPeerOf(t *v1alpha1.Tunnel, known Known) (relayPeer, bool) {
	key, ok := known.Keys[t.UID]
	if !ok || t.Spec.InBand == nil {
		return relayPeer{}, false
	}
	agent, err := netip.ParseAddrPort(t.Spec.InBand.Agent)
	if err != nil {
		return relayPeer{}, false // the agent does not write such a Tunnel
	}
	toPeer, errTo := relay.KeysFrom(relay.ToPeer, key.PresharedKey, key.Next, key.Previous)
	toAgent, errFrom := relay.KeyFrom(key.PresharedKey, relay.ToAgent)
	if errTo != nil || errFrom != nil {
		return relayPeer{}, false
	}
	out := relayPeer{agent: netip.AddrPortFrom(agent.Addr().Unmap(), agent.Port()), toPeer: toPeer, toAgent: toAgent}
	for _, g := range t.Spec.Gateways {
		if overlay, err := netip.ParseAddr(g.OverlayAddress); err == nil {
			out.gateways = append(out.gateways, relayGateway{g.Name, overlay})
		}
	}
	return out, true
}

// listens returns where the relays should listen, and whether that is inside of tunnels.
func (t relayTable) listens(port uint16) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	if len(t.peers) == 0 {
		return out
	}
	out[netip.AddrPortFrom(t.overlay, port)] = true
	for _, a := range t.own {
		out[netip.AddrPortFrom(a, port)] = false
	}
	return out
}

// peerAt returns the peer that has a gateway at an address inside of tunnels.
func (t relayTable) peerAt(overlay netip.Addr) (string, bool) {
	for id, p := range t.peers {
		if slices.ContainsFunc(p.gateways, func(g relayGateway) bool { return g.overlay == overlay }) {
			return id, true
		}
	}
	return "", false
}

// ordered returns the gateways of a peer: those whose probes are answered come first, the nearest before
// others.
func (t relayTable) ordered(peer string, observed []tunnel.PeerStatus) []relayGateway {
	seen := func(g relayGateway) tunnel.PeerStatus { return statusOf(peer, g, observed) }
	rank := func(s tunnel.PeerStatus) int {
		switch s.State {
		case probe.PathUp:
			return 0
		case probe.PathDown:
			return 2
		default:
			return 1
		}
	}
	return slices.SortedFunc(slices.Values(t.peers[peer].gateways), func(a, b relayGateway) int {
		return cmp.Or(cmp.Compare(rank(seen(a)), rank(seen(b))), cmp.Compare(seen(a).RTT, seen(b).RTT), cmp.Compare(a.node, b.node))
	})
}

func statusOf(peer string, g relayGateway, observed []tunnel.PeerStatus) tunnel.PeerStatus {
	if i := slices.IndexFunc(observed, func(s tunnel.PeerStatus) bool { return s.Remote && s.Cluster == peer && s.Node == g.node }); i >= 0 {
		return observed[i]
	}
	return tunnel.PeerStatus{}
}

// keeps reports whether a connection goes on: its peer is in-band, and the way by its gateway is
// not known to be down.
func (t relayTable) keeps(w relay.Way, observed []tunnel.PeerStatus) bool {
	return slices.ContainsFunc(t.peers[w.Peer].gateways, func(g relayGateway) bool {
		return g.overlay == w.Gateway && statusOf(w.Peer, g, observed).State != probe.PathDown
	})
}

// inBandRelays runs the two relays of a node.
type inBandRelays struct {
	log *slog.Logger
	// observe returns the states of the ways to gateways.
	observe func() []tunnel.PeerStatus
	// port is tunnel.RelayPort, except in tests.
	port              uint16
	inbound, outbound *relay.Relay
	kick              notify.Channel
	// changed has a value when Listening or Problems returns something else.
	changed notify.Channel

	mu        sync.Mutex
	table     relayTable
	listening map[netip.AddrPort]*relayListener
	// failed are the addresses where the relays do not listen, with since when and why.
	failed map[netip.AddrPort]listenFailure
}

type relayListener struct {
	stop context.CancelFunc
	done chan struct{}
}

type listenFailure struct {
	since time.Time
	err   error
}

func newInBandRelays(log *slog.Logger, observe func() []tunnel.PeerStatus) (*inBandRelays, error) {
	r := &inBandRelays{
		log: log, observe: observe, port: tunnel.RelayPort, kick: notify.New(), changed: notify.New(),
		listening: map[netip.AddrPort]*relayListener{}, failed: map[netip.AddrPort]listenFailure{},
	}
	var err, errOut error
	r.inbound, err = relay.New(relay.Config{Admit: r.admitGateway, Open: r.toAgent, Log: log})
	r.outbound, errOut = relay.New(relay.Config{Admit: r.admitAgent, Open: r.toPeer, Log: log})
	return r, errors.Join(err, errOut)
}

// Set replaces the configuration of the relays. Connections that it does not keep end.
func (r *inBandRelays) Set(t relayTable) {
	r.mu.Lock()
	r.table = t
	r.mu.Unlock()
	r.kick.Notify()
}

func (r *inBandRelays) now() relayTable {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table
}

// Listening returns where this cluster's agent reaches the outbound relay, sorted.
func (r *inBandRelays) Listening() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	inside := netip.AddrPortFrom(r.table.overlay, r.port)
	if r.listening[inside] == nil {
		return nil // peers would not reach the inbound relay yet
	}
	var out []string
	for at := range r.listening {
		if at != inside && len(out) < maxRelays {
			out = append(out, at.String())
		}
	}
	slices.Sort(out)
	return out
}

// Problems returns what keeps the relays from listening.
func (r *inBandRelays) Problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for at, f := range r.failed {
		if time.Since(f.since) >= listenPatience {
			out = append(out, fmt.Sprintf("the relay for in-band peers cannot listen on TCP %s: %v: see which other program does on this node", at, f.err))
		}
	}
	slices.Sort(out)
	return out
}

// Run runs the relays until ctx ends.
func (r *inBandRelays) Run(ctx context.Context) error {
	tick := time.NewTicker(inBandCheckEvery)
	defer tick.Stop()
	for {
		r.adjust(ctx)
		select {
		case <-ctx.Done():
			r.Set(relayTable{})
			r.adjust(ctx)
			return nil
		case <-r.kick:
		case <-tick.C:
		}
	}
}

// adjust makes the relays listen where they should, and ends connections whose way is gone or down.
func (r *inBandRelays) adjust(ctx context.Context) {
	table := r.now()
	want := table.listens(r.port)
	before := strings.Join(r.Listening(), " ") + strings.Join(r.Problems(), " ")
	r.mu.Lock()
	var ending []*relayListener
	for at, l := range r.listening {
		select {
		case <-l.done: // it failed
		default:
			if _, keep := want[at]; keep {
				continue
			}
		}
		l.stop()
		ending = append(ending, l)
		delete(r.listening, at)
	}
	for at := range r.failed {
		if _, keep := want[at]; !keep {
			delete(r.failed, at)
		}
	}
	for at, inside := range want {
		if r.listening[at] == nil && ctx.Err() == nil {
			r.listen(ctx, at, inside)
		}
	}
	r.mu.Unlock()
	for _, l := range ending {
		<-l.done
	}
	observed := r.observe()
	keep := func(w relay.Way) bool { return table.keeps(w, observed) }
	r.inbound.Cut(keep)
	r.outbound.Cut(keep)
	if strings.Join(r.Listening(), " ")+strings.Join(r.Problems(), " ") != before {
		r.changed.Notify()
	}
}

// listen starts a listener of a relay. The caller has the lock.
func (r *inBandRelays) listen(ctx context.Context, at netip.AddrPort, inside bool) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		if f, failing := r.failed[at]; failing {
			f.err = err
			r.failed[at] = f
		} else {
			r.failed[at] = listenFailure{time.Now(), err}
		}
		return
	}
	delete(r.failed, at)
	of := r.outbound
	if inside {
		of = r.inbound
	}
	ctx, stop := context.WithCancel(ctx)
	l := &relayListener{stop: stop, done: make(chan struct{})}
	r.listening[at] = l
	r.log.Info("relay listens", "address", at.String(), "forPeers", inside)
	go func() {
		defer close(l.done)
		defer stop()
		if err := of.Serve(ctx, listener); err != nil && ctx.Err() == nil {
			r.log.Warn("relay ended", "address", at.String(), "err", err)
		}
	}()
}

func (r *inBandRelays) admitGateway(from netip.Addr) (string, bool) { return r.now().peerAt(from) }

func (r *inBandRelays) admitAgent(from netip.Addr) (string, bool) {
	return from.String(), slices.Contains(r.now().from, from)
}

// toAgent connects a connection of a peer's gateway to this cluster's agent.
func (r *inBandRelays) toAgent(ctx context.Context, conn net.Conn) (relay.End, error) {
	table := r.now()
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return relay.End{}, fmt.Errorf("where a connection comes from: %w", err)
	}
	from := remote.Addr().Unmap().WithZone("")
	id, ok := table.peerAt(from)
	if !ok {
		return relay.End{}, errors.New("its tunnel is gone")
	}
	peer := table.peers[id]
	ctx, cancel := context.WithTimeout(ctx, relayDial)
	defer cancel()
	agent, err := new(net.Dialer).DialContext(ctx, "tcp", peer.agent.String())
	if err != nil {
		return relay.End{}, fmt.Errorf("connect to this cluster's agent: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = agent.SetDeadline(time.Now()) })()
	if err := relay.Ask(agent, id, peer.toAgent, relayDial); err != nil {
		_ = agent.Close()
		return relay.End{}, fmt.Errorf("this cluster's agent at %s: %w", peer.agent, err)
	}
	return relay.End{Conn: agent, Way: relay.Way{Peer: id, Gateway: from}}, nil
}

// toPeer connects a connection of this cluster's agent to a gateway of the peer that it names.
func (r *inBandRelays) toPeer(ctx context.Context, conn net.Conn) (relay.End, error) {
	table := r.now()
	keys := func(id string) []relay.Key { return table.peers[id].toPeer }
	return relay.Serve(conn, keys, func(id string) (net.Conn, netip.Addr, error) {
		var failures []error
		for _, g := range table.ordered(id, r.observe()) {
			dialing, cancel := context.WithTimeout(ctx, relayTry)
			other, err := new(net.Dialer).DialContext(dialing, "tcp", netip.AddrPortFrom(g.overlay, r.port).String())
			cancel()
			if err == nil {
				return other, g.overlay, nil
			}
			failures = append(failures, fmt.Errorf("gateway %s: %w", g.node, err))
			if ctx.Err() != nil {
				break
			}
		}
		return nil, netip.Addr{}, errors.Join(failures...)
	})
}

package tunnel

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// improve tries better ways to peers that are reached through the agents, to one at a time.
func (f *Fabric) improve(ctx context.Context, p *pass) {
	for _, w := range p.layout.Peers {
		d := f.dialers[w.PublicKey]
		seen := f.prober.Status(w.Overlay)
		if d == nil || !d.seen.alive || d.seen.endpoint != d.seen.relay || !w.Relay.IsValid() || seen.State != probe.PathUp {
			delete(f.betters, w.PublicKey)
			continue
		}
		b := f.betters[w.PublicKey]
		if b == nil {
			b = &better{}
			f.betters[w.PublicKey] = b
		}
		candidates := d.seen.all()
		candidates = candidates[:len(candidates)-1] // the relay
		if f.improving.Load() || !b.next(p.now, seen.Tried, f.busy(w.PublicKey), candidates) {
			continue
		}
		f.improving.Store(true)
		f.improvers.Go(func() {
			defer f.improving.Store(false)
			f.tryBetter(ctx, w, candidates)
		})
	}
}

// tryBetter sends packets to a peer to each of some endpoints for a moment, among them a probe
// with a number of its own. If one of these probes is answered, by any way, its endpoint works.
func (f *Fabric) tryBetter(ctx context.Context, w plan.WireGuardPeer, candidates []netip.AddrPort) {
	control := newControl(f.cfg.Device) // the fabric's is in use
	send := func(to netip.AddrPort) error {
		return control.configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{
			PublicKey: wgtypes.Key(w.PublicKey), UpdateOnly: true, Endpoint: net.UDPAddrFromAddrPort(to),
		}}})
	}
	trial := rand.Uint64() << 8 >> 1 // the last byte is which endpoint: 1 is the first
	try := func(i int) {
		f.prober.Try(w.Overlay, trial|uint64(i))
		// What is counted from here on was sent after the probe, or waited right before it.
		before := sentTo(control, w.PublicKey)
		for range betterWindows {
			if !notify.Pause(ctx, betterWindow) || sentTo(control, w.PublicKey) > before {
				return
			}
		}
	}
	try(0) // through the agents
	f.delayRelay(w, min(time.Duration(len(candidates))*betterWindows*betterWindow, betterDelay))
	for i, c := range candidates {
		if err := send(c); err != nil || ctx.Err() != nil {
			break
		}
		try(i + 1)
	}
	if err := send(w.Relay); err != nil {
		f.log.Warn("cannot go back to the way through the agents", "peer", w.Cluster, "gateway", w.Node, "err", err)
		return // the dialer goes back
	}
	for end := time.Now().Add(betterWatch); time.Now().Before(end) && notify.Pause(ctx, betterCheckEvery); {
		reached := f.prober.Status(w.Overlay).Reached
		if i := int(reached ^ trial); i >= 1 && i <= len(candidates) {
			f.takeBetter(ctx, w, candidates[i-1], control, send)
			return
		}
	}
}

// takeBetter moves a peer to an endpoint that works. Packets that still arrive through the agents
// would lead WireGuard back there, so they are delayed until the peer's WireGuard has followed.
//
// On a busy machine the probe that was answered may have gone another way than its number says. So
// a probe has to be answered while packets are sent to the endpoint, and then another one whose answer
// leaves WireGuard there: an answer through the agents would lead it back. Otherwise packets go through
// the agents again.
func (f *Fabric) takeBetter(ctx context.Context, w plan.WireGuardPeer, found netip.AddrPort, control *control, send func(netip.AddrPort) error) {
	defer f.poke()
	f.delayRelay(w, betterDelay)
	stay := func() { _ = send(found) } // the endpoint is checked at the end
	follows := f.answers(ctx, w, 2*betterDelay+min(2*f.prober.Status(w.Overlay).Path.RTT(), betterWatch), stay, true)
	if follows && f.answers(ctx, w, betterWatch, func() {}, false) && endpointOf(control, w.PublicKey) == found {
		f.log.Info("a better way to a peer", "peer", w.Cluster, "gateway", w.Node, "endpoint", found)
		return
	}
	f.log.Info("path rejected, using the relay again", "peer", w.Cluster, "gateway", w.Node, "endpoint", found)
	if err := send(w.Relay); err != nil {
		f.log.Warn("cannot go back to the way through the agents", "peer", w.Cluster, "gateway", w.Node, "err", err)
	}
}

// answers reports whether a peer answers a probe with a number of its own within a time. It waits for the
// whole time if whole is set, and calls each before each check.
func (f *Fabric) answers(ctx context.Context, w plan.WireGuardPeer, within time.Duration, each func(), whole bool) bool {
	number := rand.Uint64() >> 1
	reached := false
	for check, end := 0, time.Now().Add(within); time.Now().Before(end) && (whole || !reached); check++ {
		each()
		if !reached && check%betterTries == 0 {
			f.prober.Try(w.Overlay, number)
		}
		if !notify.Pause(ctx, betterCheckEvery) {
			return false
		}
		reached = reached || f.prober.Status(w.Overlay).Reached == number
	}
	return reached
}

// delayRelay delays packets that arrive from a peer through the agents: WireGuard sends to the endpoint
// from which it last received a packet.
func (f *Fabric) delayRelay(w plan.WireGuardPeer, d time.Duration) {
	if f.cfg.DelayRelay != nil {
		f.cfg.DelayRelay(w.Relay, d)
	}
}

// sentTo returns how many bytes the device sent to a peer.
func sentTo(c *control, key plan.PublicKey) int64 { return onDevice(c, key).TransmitBytes }

// endpointOf returns the endpoint to which the device sends to a peer; invalid if it is not known.
func endpointOf(c *control, key plan.PublicKey) netip.AddrPort {
	if at := onDevice(c, key).Endpoint; at != nil {
		return unmapPort(at.AddrPort())
	}
	return netip.AddrPort{}
}

// onDevice returns the state of a peer in the device; zero if the device does not have it.
func onDevice(c *control, key plan.PublicKey) wgtypes.Peer {
	dev, err := c.read()
	if err != nil {
		return wgtypes.Peer{}
	}
	for _, p := range dev.Peers {
		if plan.PublicKey(p.PublicKey) == key {
			return p
		}
	}
	return wgtypes.Peer{}
}

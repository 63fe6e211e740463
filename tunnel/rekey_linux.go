package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// followAt schedules follow for a time. It does not block.
func (f *Fabric) followAt(at time.Time) {
	time.AfterFunc(time.Until(at), func() {
		select {
		case f.rekey.due <- struct{}{}:
		default:
		}
	})
}

// follow moves to the next keys of nodes that are due. It waits for one that is due in a moment: a pass
// in between would make it late.
func (f *Fabric) follow(now time.Time) {
	end := f.rekey.soon(now)
	for {
		due, next := f.prober.Due(now)
		if len(due) > 0 {
			f.take(due, now)
		}
		if next.IsZero() || next.After(end) {
			return
		}
		f.rekey.paused = now
		time.Sleep(time.Until(next))
		now = time.Now()
	}
}

// take configures the device with the next keys of nodes, and moves their prefixes in the same step. Where several
// nodes announce the same key, one at a time is followed.
func (f *Fabric) take(nodes []netip.Addr, now time.Time) {
	dev, err := f.control.read()
	if err != nil {
		f.log.Warn("cannot follow other nodes to their next keys", "err", err)
		return
	}
	var changes []wgtypes.PeerConfig
	var moved []plan.WireGuardPeer
	for _, overlay := range nodes {
		i := slices.IndexFunc(f.rekey.peers, func(w plan.WireGuardPeer) bool { return w.Overlay == overlay })
		if i < 0 || f.rekey.peers[i].NextKey.IsZero() {
			continue
		}
		w := f.rekey.peers[i]
		if f.rekey.isTaken(overlay, w.NextKey) || slices.ContainsFunc(moved, func(m plan.WireGuardPeer) bool { return m.NextKey == w.NextKey }) {
			continue
		}
		j := slices.IndexFunc(dev.Peers, func(h wgtypes.Peer) bool { return plan.PublicKey(h.PublicKey) == w.PublicKey })
		if j < 0 {
			continue
		}
		if k := slices.IndexFunc(dev.Peers, func(h wgtypes.Peer) bool { return plan.PublicKey(h.PublicKey) == w.NextKey }); k >= 0 {
			if now.Sub(dev.Peers[k].LastHandshakeTime) < userspace.SessionLife {
				continue // it is in use
			}
			// It was tried before, or another peer announces it. Nothing of that may remain, and WireGuard would
			// wait for 5 s before it began another handshake.
			changes = append(changes, wgtypes.PeerConfig{PublicKey: wgtypes.Key(w.NextKey), UpdateOnly: true, Remove: true})
		}
		h := dev.Peers[j]
		changes = append(changes, wgtypes.PeerConfig{
			PublicKey: wgtypes.Key(w.NextKey), PresharedKey: &h.PresharedKey, Endpoint: h.Endpoint,
			PersistentKeepaliveInterval: &h.PersistentKeepaliveInterval, AllowedIPs: h.AllowedIPs,
		})
		moved = append(moved, w)
	}
	if len(changes) == 0 {
		return
	}
	if err := f.control.configure(wgtypes.Config{Peers: changes}); err != nil {
		f.log.Warn("cannot follow other nodes to their next keys", "err", err)
		return
	}
	f.rekeyAgainIn(rekeyShake)
	for _, w := range moved {
		f.rekey.moves[w.Overlay] = keyMove{key: w.NextKey, at: now}
		f.proofs.moved(now, w)
		f.dialers[w.NextKey], f.traffic[w.NextKey] = f.dialers[w.PublicKey], peerTraffic{at: now}
		f.prober.Nudge(w.Overlay, now)
		f.log.Info("another node replaced its WireGuard key", "cluster", w.Cluster, "node", w.Node)
	}
	f.hurry()
}

// shakeAgain restarts handshakes with next keys that were not completed. No packets pass by these keys
// yet, so none are lost.
func (f *Fabric) shakeAgain(now time.Time) {
	if len(f.rekey.moves) == 0 {
		return
	}
	dev, err := f.control.read()
	if err != nil {
		return
	}
	for overlay, m := range f.rekey.moves {
		if i := slices.IndexFunc(dev.Peers, func(h wgtypes.Peer) bool { return plan.PublicKey(h.PublicKey) == m.key }); i >= 0 && dev.Peers[i].LastHandshakeTime.After(m.at) {
			m.proven = true
			f.rekey.moves[overlay] = m
		}
	}
	again, next := f.rekey.unshaken(now)
	for overlay, key := range again {
		i := slices.IndexFunc(dev.Peers, func(h wgtypes.Peer) bool { return plan.PublicKey(h.PublicKey) == key })
		if i < 0 {
			continue
		}
		h := dev.Peers[i]
		err := f.control.configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{
			{PublicKey: h.PublicKey, UpdateOnly: true, Remove: true},
			{PublicKey: h.PublicKey, PresharedKey: &h.PresharedKey, Endpoint: h.Endpoint, PersistentKeepaliveInterval: &h.PersistentKeepaliveInterval, AllowedIPs: h.AllowedIPs},
		}})
		if err == nil {
			f.prober.Nudge(overlay, now)
		}
	}
	if next > 0 {
		f.rekeyAgainIn(next)
	}
}

// rekeyAgainIn schedules follow and shakeAgain after d.
func (f *Fabric) rekeyAgainIn(d time.Duration) { f.followAt(time.Now().Add(d)) }

// replaceKey replaces this node's key if that is desired and all other nodes are ready. It blocks for
// the countdown.
func (f *Fabric) replaceKey(ctx context.Context, now time.Time) {
	f.mu.Lock()
	desired := f.desired
	f.mu.Unlock()
	r := &f.rekey
	key := wgtypes.Key(f.key)
	if desired == nil || f.key == (privateKey{}) || desired.ReplaceKey.IsZero() || desired.ReplaceKey != plan.PublicKey(key.PublicKey()) {
		r.next, r.waits = privateKey{}, ""
		return
	}
	if r.next == (privateKey{}) {
		next, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			f.log.Warn("cannot generate another WireGuard key", "err", err)
			return
		}
		r.next, r.asked, r.again = privateKey(next), time.Time{}, time.Time{}
		f.poke()
	}
	if now.Before(r.again) {
		return
	}
	tag := probe.KeyTagOf(plan.PublicKey(wgtypes.Key(r.next).PublicKey()))
	f.askAgain(rekeyAgain)
	if missing := f.prober.Unready(tag, now.Add(-rekeyKnown)); r.asked.IsZero() || len(missing) > 0 && !desired.Regardless {
		f.prober.Ask(tag, 0)
		if !r.asked.IsZero() {
			r.waits = f.waitsFor(missing)
		}
		r.asked, r.again = now, now.Add(rekeyAgain)
		return
	}
	missing, err := f.countDown(ctx, tag, desired.Regardless)
	switch {
	case err != nil:
		r.waits = err.Error()
	case len(missing) > 0:
		r.waits = f.waitsFor(missing)
	default:
		f.log.Info("replaced this node's WireGuard key")
		f.key, r.next, r.waits = r.next, privateKey{}, ""
		f.hurry()
		return
	}
	r.again = time.Now().Add(rekeyPause(plan.PublicKey(key.PublicKey()), time.Now().Second()))
}

// countDown announces to all other nodes when this node replaces its key, and replaces it. It returns
// the nodes that did not confirm; if there are any, the key is not replaced unless regardless is set.
func (f *Fabric) countDown(ctx context.Context, tag probe.KeyTag, regardless bool) (missing []netip.Addr, err error) {
	if other, ok := f.prober.BeginReplacing(time.Now(), regardless); !ok {
		return nil, fmt.Errorf("node %s is about to replace its own key", f.nameOf(other))
	}
	defer f.prober.EndReplacing()
	defer func() {
		if err != nil || len(missing) > 0 {
			_ = f.saveKey(f.key) // the next pass tries again
		}
	}()
	// Others may follow from now on: a node that dies in this moment comes back with the next key,
	// which they know as well.
	if f.saveKey(f.rekey.next) != nil && !regardless {
		return nil, errors.New("this node cannot save its next key for a restart: the log of its fabric says why")
	}
	began := time.Now()
	at := began.Add(rekeyCountdown)
	for left := rekeyCountdown; left > rekeyLast; left = time.Until(at) {
		f.prober.Ask(tag, left)
		if !notify.Pause(ctx, min(rekeyEvery, left-rekeyLast)) {
			break
		}
	}
	if missing = f.prober.Unready(tag, began); (len(missing) > 0 && !regardless) || ctx.Err() != nil {
		for range 3 {
			f.prober.CallOff(tag)
			notify.Pause(ctx, rekeyEvery/10)
		}
		return missing, ctx.Err()
	}
	notify.Pause(ctx, time.Until(at))
	f.rekey.replaced = time.Now() // others follow from now on
	if callsOff(time.Since(at)) {
		f.prober.CallOff(tag)
		return nil, errors.New("this node is too busy to replace its key in time")
	}
	next := wgtypes.Key(f.rekey.next)
	return nil, f.control.configure(wgtypes.Config{PrivateKey: &next})
}

// waitsFor returns a text that names the nodes for which the replacement of the key waits.
func (f *Fabric) waitsFor(missing []netip.Addr) string {
	if len(missing) == 0 {
		return ""
	}
	text := fmt.Sprintf("node %s does not know the next key yet", f.nameOf(missing[0]))
	if len(missing) > 1 {
		text += fmt.Sprintf(", and %d more", len(missing)-1)
	}
	return text + f.rekey.mayRest(time.Now())
}

// nameOf returns the name for people of the node with an overlay address.
func (f *Fabric) nameOf(overlay netip.Addr) string {
	i := slices.IndexFunc(f.rekey.peers, func(w plan.WireGuardPeer) bool { return w.Overlay == overlay })
	switch {
	case i < 0:
		return overlay.String()
	case f.rekey.peers[i].Remote:
		return f.rekey.peers[i].Node + " of cluster " + f.rekey.peers[i].Cluster
	}
	return f.rekey.peers[i].Node
}

package tunnel

import (
	"maps"
	"net"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/tunnel/plan"
)

// peerChanges compares the peers of the device with those planned and returns
// the changes to configure. It touches only what the plan owns:
// never an endpoint (see dialer), never a peer that is as planned.
//
// A prefix that moves from one peer to another is added to the new one, which
// takes it from the old in one step; nothing is removed before. dial gives the
// endpoint to write for a peer, if any.
func peerChanges(want []plan.WireGuardPeer, have []wgtypes.Peer, dial map[plan.PublicKey]netip.AddrPort) []wgtypes.PeerConfig {
	present, allowed := map[plan.PublicKey]wgtypes.Peer{}, map[plan.PublicKey]map[netip.Prefix]bool{}
	for _, h := range have {
		key := plan.PublicKey(h.PublicKey)
		present[key], allowed[key] = h, make(map[netip.Prefix]bool, len(h.AllowedIPs))
		for _, n := range h.AllowedIPs {
			allowed[key][prefixOf(n)] = true
		}
	}
	moved := map[netip.Prefix]bool{} // prefixes that this change adds to a peer, and so takes from others
	var changes, shrink, remove []wgtypes.PeerConfig
	for _, w := range want {
		h, exists := present[w.PublicKey]
		delete(present, w.PublicKey)
		if w.KeyMissing && !exists {
			continue
		}
		c, differs := wgtypes.PeerConfig{PublicKey: wgtypes.Key(w.PublicKey), UpdateOnly: exists}, !exists
		if psk := wgtypes.Key(w.PresharedKey); !w.KeyMissing && (!exists && !w.PresharedKey.IsZero() || exists && h.PresharedKey != psk) {
			c.PresharedKey, differs = &psk, true
		}
		if h.PersistentKeepaliveInterval != w.Keepalive {
			c.PersistentKeepaliveInterval, differs = new(w.Keepalive), true
		}
		if e, ok := dial[w.PublicKey]; ok {
			c.Endpoint, differs = net.UDPAddrFromAddrPort(e), true
		}
		for _, a := range w.AllowedIPs {
			if !allowed[w.PublicKey][a] {
				c.AllowedIPs, differs = append(c.AllowedIPs, ipNet(a)), true
				moved[a] = true
			}
		}
		if differs {
			changes = append(changes, c)
		}
	}
	for _, w := range want {
		if !hasMore(allowed[w.PublicKey], w.AllowedIPs, moved) {
			continue
		}
		c := wgtypes.PeerConfig{PublicKey: wgtypes.Key(w.PublicKey), UpdateOnly: true, ReplaceAllowedIPs: true}
		for _, a := range w.AllowedIPs {
			c.AllowedIPs = append(c.AllowedIPs, ipNet(a))
		}
		shrink = append(shrink, c)
	}
	for _, w := range want {
		for _, key := range []plan.PublicKey{w.NextKey, w.FormerKey} {
			// One that has prefixes of its own is that of another peer, which is gone.
			if w.KeyMissing || !hasMore(allowed[key], nil, moved) {
				delete(present, key)
			}
		}
	}
	for key := range present {
		remove = append(remove, wgtypes.PeerConfig{PublicKey: wgtypes.Key(key), UpdateOnly: true, Remove: true})
	}
	return slices.Concat(changes, shrink, remove)
}

// shut returns the peers of a layout without the prefixes by which packets from and to other clusters
// pass, on whichever way. The sessions with them stay, so that opening is quick.
func shut(l plan.Layout) []plan.WireGuardPeer {
	out := slices.Clone(l.Peers)
	for i, w := range out {
		if w.KeyMissing {
			out[i].NextKey, out[i].FormerKey = plan.PublicKey{}, plan.PublicKey{} // they would keep their prefixes
		}
		out[i].AllowedIPs = slices.DeleteFunc(slices.Clone(w.AllowedIPs), func(a netip.Prefix) bool {
			return w.Remote || cidr.Set(l.Remote).Overlaps(a)
		})
	}
	return out
}

// withoutPrefixes are the changes that leave peers of the device without prefixes. Their sessions stay.
func withoutPrefixes(have []wgtypes.Peer) []wgtypes.PeerConfig {
	var out []wgtypes.PeerConfig
	for _, h := range have {
		if len(h.AllowedIPs) > 0 {
			out = append(out, wgtypes.PeerConfig{PublicKey: h.PublicKey, UpdateOnly: true, ReplaceAllowedIPs: true})
		}
	}
	return out
}

// hasMore reports whether a peer has prefixes beyond those that it should have and those that are
// moved to another peer.
func hasMore(has map[netip.Prefix]bool, desired []netip.Prefix, moved map[netip.Prefix]bool) bool {
	left := maps.Clone(has)
	for _, a := range desired {
		delete(left, a)
	}
	maps.DeleteFunc(left, func(a netip.Prefix, _ bool) bool { return moved[a] })
	return len(left) > 0
}

func containsNet(nets []net.IPNet, p netip.Prefix) bool {
	return slices.ContainsFunc(nets, func(n net.IPNet) bool { return prefixOf(n) == p })
}

func ipNet(p netip.Prefix) net.IPNet {
	p = p.Masked()
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefixOf returns the prefix of an IPNet; the zero prefix if that is malformed.
func prefixOf(n net.IPNet) netip.Prefix {
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}
	}
	addr = addr.Unmap()
	if bits != addr.BitLen() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr, ones).Masked()
}

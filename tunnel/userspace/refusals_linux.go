package userspace

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/device"
)

// The messages with which wireguard-go says that it decrypted a packet of a peer and dropped it, as its
// source is not in the AllowedIPs of that peer, or as it is not a packet of IP. It counts neither.
const (
	refused4     = "IPv4 packet with disallowed source address from %v"
	refused6     = "IPv6 packet with disallowed source address from %v"
	refusedNotIP = "Packet with invalid IP version from %v"
)

// refusals counts these packets by the peer that sent them. note is the verbose log of a device.
type refusals struct {
	counts sync.Map // by *device.Peer, *atomic.Uint64
	peers  atomic.Int64
}

// note counts a packet. It is called for each one, also by a peer that floods, so it only compares the
// format, which is fast where lengths differ, and formats nothing.
func (r *refusals) note(format string, args ...any) {
	switch format {
	case refused4, refused6, refusedNotIP:
	default:
		return
	}
	if len(args) == 0 {
		return
	}
	peer, ok := args[0].(*device.Peer)
	if !ok {
		return
	}
	n, known := r.counts.Load(peer)
	if !known {
		if r.peers.Load() >= maxRefusedPeers {
			return
		}
		if n, known = r.counts.LoadOrStore(peer, new(atomic.Uint64)); !known {
			r.peers.Add(1)
		}
	}
	n.(*atomic.Uint64).Add(1)
}

// read returns the counts by the peers' keys, and forgets peers that the device no longer has.
func (r *refusals) read(dev *device.Device) map[device.NoisePublicKey]uint64 {
	if r.peers.Load() == 0 {
		return nil
	}
	keys, err := peerKeys(dev)
	if err != nil {
		return nil // it is closed
	}
	out, present := map[device.NoisePublicKey]uint64{}, map[any]bool{}
	for _, key := range keys {
		if peer := dev.LookupPeer(key); peer != nil {
			present[peer] = true
			if n, ok := r.counts.Load(peer); ok {
				out[key] = n.(*atomic.Uint64).Load()
			}
		}
	}
	r.counts.Range(func(peer, _ any) bool {
		if !present[peer] {
			r.counts.Delete(peer)
			r.peers.Add(-1)
		}
		return true
	})
	return out
}

// peerKeys returns the keys of the peers of a device.
func peerKeys(dev *device.Device) ([]device.NoisePublicKey, error) {
	text, err := dev.IpcGet()
	if err != nil {
		return nil, err
	}
	var out []device.NoisePublicKey
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "public_key="); ok {
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != device.NoisePublicKeySize {
				return nil, fmt.Errorf("read the peers of the device: malformed key %q", value)
			}
			out = append(out, device.NoisePublicKey(b))
		}
	}
	return out, nil
}

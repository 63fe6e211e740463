package tunnel

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
)

// Counters reads the kernel's counters. The cost of a call grows with the nftables table, so call it
// seldom.
func (f *Fabric) Counters() (Counters, error) {
	f.mu.Lock()
	var peers []plan.Peer
	if f.desired != nil {
		peers = f.desired.Peers
	}
	f.mu.Unlock()
	totals, err := firewall.ReadTotals(peers)
	if err != nil {
		return Counters{}, err
	}
	f.cipher.add(totals)
	out := Counters{Totals: totals}
	link, err := netlink.LinkByName(f.cfg.Device)
	if err != nil {
		return out, fmt.Errorf("read counters of %s: %w", f.cfg.Device, err)
	}
	if s := link.Attrs().Statistics; s != nil {
		out.Received, out.Sent, out.ReceiveErrors = s.RxPackets, s.TxPackets, s.RxErrors
		if n := s.RxFrameErrors; link.Type() == "wireguard" && n > 0 { // the kernel counts all peers together
			totals.Dropped[firewall.Drop{Reason: firewall.Cipher}] = firewall.Count{Packets: n}
		}
	}
	return out, nil
}

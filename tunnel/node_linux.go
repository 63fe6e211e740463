package tunnel

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/entente-dev/entente/tunnel/plan"
)

// node caches the node's links, addresses, routes and rules. All of them are read again when netlink
// reports a change, and each rereadEvery, as path MTUs change without notice.
type node struct {
	// changes counts the events of netlink, seen is that count when they were last read. epoch counts
	// the passes that read them again, the last one since since.
	changes atomic.Uint64
	seen    uint64
	epoch   uint64
	since   time.Time

	routes    known[[]plan.NodeRoute]
	addresses known[[]nodeAddress]
	overlay   known[netip.Addr]
	rules     known[[]ruleKey]
	ours      known[[]routeKey] // those of the fabric
	placed    known[[]routeKey] // the desired ones when ours last matched them
	mtus      known[map[netip.Addr]int]
}

// nodeAddress is an address of the node, and whether it is one of the fabric's device.
type nodeAddress struct {
	netip.Addr
	device bool
}

// begin starts a new epoch, in which all is read again, if something may have changed.
func (n *node) begin(now time.Time) {
	if seen := n.changes.Load(); n.epoch == 0 || seen != n.seen || now.Sub(n.since) >= rereadEvery {
		n.seen, n.since, n.epoch = seen, now, n.epoch+1
	}
}

// known is a value that was read in an epoch.
type known[T any] struct {
	value T
	epoch uint64
}

// get returns the value, and reads it unless it was read in this epoch. If that fails the value is the
// last one.
func (k *known[T]) get(epoch uint64, read func() (T, error)) (T, error) {
	if k.epoch == epoch {
		return k.value, nil
	}
	value, err := read()
	if err != nil {
		return k.value, err
	}
	k.value, k.epoch = value, epoch
	return value, nil
}

// forget drops the epoch, so that the next get reads the value again.
func (k *known[T]) forget() { k.epoch = 0 }

// nodeAddresses are all addresses of the node.
func nodeAddresses(device string) ([]nodeAddress, error) {
	own := 0
	if link, err := netlink.LinkByName(device); err == nil {
		own = link.Attrs().Index
	}
	have, err := retryDump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	var out []nodeAddress
	for _, h := range have {
		if a, ok := netip.AddrFromSlice(h.IP); ok {
			out = append(out, nodeAddress{a.Unmap(), own != 0 && h.LinkIndex == own})
		}
	}
	return out, nil
}

// underlayMTU returns the largest MTU of the routes to some addresses, or of the default routes if no
// address is given; 1500 if there is no route at all.
func (n *node) underlayMTU(to ...netip.Addr) int {
	mtus, _ := n.mtus.get(n.epoch, func() (map[netip.Addr]int, error) { return map[netip.Addr]int{}, nil })
	if len(to) == 0 {
		// Addresses for documentation: only their routes are looked up.
		to = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	}
	most := 0
	for _, a := range to {
		mtu, asked := mtus[a]
		if !asked {
			mtu = routeMTU(a)
			mtus[a] = mtu
		}
		most = max(most, mtu)
	}
	if most == 0 {
		return 1500
	}
	return most
}

package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// Fabric keeps a node's tunnels, routes, translation and firewall as desired.
// It works in the network namespace of the process, which it must not change,
// and needs NET_ADMIN there and nothing else. What it made stays when it ends,
// so that traffic flows on; [Clean] removes it.
type Fabric struct {
	cfg     Config
	log     *slog.Logger
	wake    chan struct{}
	urgent  atomic.Bool // not to wait for more changes
	changed chan struct{}

	mu      sync.Mutex
	desired *plan.Desired
	status  Status

	// The fields below are used by the goroutine of Run only.
	control  *control
	prober   *probe.Prober
	node     node
	planned  planned
	resolver *resolver
	firewall firewall.Table
	key      privateKey // for a device that was created again
	saved    privateKey // the key that was last kept for the next process
	carriers map[string]election
	switches map[string]uint64 // as Status.Switches
	// directory is the nodes that can be reached directly, directs those with a tunnel or one that failed
	// (nil until the device was read), rates the traffic with them.
	directory directory
	announced announced
	directs   directs
	meter     directMeter
	rates     map[remote]float64
	began     time.Time
	dialers   map[plan.PublicKey]*dialer
	betters   map[plan.PublicKey]*better
	traffic   map[plan.PublicKey]peerTraffic
	wrote     bool // the last pass changed WireGuard peers
	// handshakes are the first ones that wait for an answer, again the timer of their next check.
	handshakes handshakes
	proofs     keyProofs       // which cluster has which key
	trials     presharedTrials // of preshared keys
	rekey      rekeying        // of this node's own key and of those of others
	again      *time.Timer
	againAt    time.Time
	// cipher is what the tunnel process's cipher refused, reportedAt when that was read.
	cipher     cipherDrops
	reportedAt time.Time
	// offloads are those that the tunnel process reported, offloadsLogged what of them is missing.
	offloads       userspace.Offloads
	offloadsLogged string
	// improving says that better ways to a peer are being tried, improvers waits for that.
	improving atomic.Bool
	improvers sync.WaitGroup
	// leaving says that this node is about to stop. carrying is for how many peers it carries
	// the traffic though another gateway could; elections is how often that was decided.
	leaving   atomic.Bool
	demotion  demotion // of this node
	retiring  retiring // of other nodes
	carrying  atomic.Int64
	elections atomic.Int64
	logged    map[plan.Problem]bool
}

// peerTraffic is what the counters of a WireGuard peer show: bytes were received, last at at, and both
// directions together were both at counted and grow by rate bytes a second.
type peerTraffic struct {
	bytes int64
	at    time.Time

	both    int64
	counted time.Time
	rate    float64
}

// New checks the configuration.
func New(cfg Config) (*Fabric, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("configure fabric: %w", err)
	}
	f := &Fabric{
		cfg: cfg, log: cfg.Log,
		wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		control:  newControl(cfg.Device),
		carriers: map[string]election{}, began: time.Now(), dialers: map[plan.PublicKey]*dialer{}, betters: map[plan.PublicKey]*better{}, traffic: map[plan.PublicKey]peerTraffic{}, logged: map[plan.Problem]bool{},
		handshakes: handshakes{}, proofs: keyProofs{}, trials: presharedTrials{}, rekey: newRekeying(),
	}
	f.prober = probe.New(cfg.Device, cfg.ProbePort, f.poke, f.hurry, f.followAt)
	f.resolver = newResolver(f.poke)
	if cfg.Keys != nil {
		if key := cfg.Keys.Load(); len(key) == len(f.key) {
			f.key = privateKey(key)
		}
	}
	return f, nil
}

// Set replaces the desired state. The caller must not change the value
// afterwards. Until the first call only the device is created, and a table that opens nothing if the
// device has peers and there is no table; nothing is removed.
func (f *Fabric) Set(d plan.Desired) {
	f.mu.Lock()
	same := f.desired != nil && reflect.DeepEqual(*f.desired, d)
	if !same {
		f.desired = &d
	}
	f.mu.Unlock()
	if !same {
		f.poke()
	}
}

// Status returns the last observed status.
func (f *Fabric) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Peers, s.Problems = slices.Clone(s.Peers), slices.Clone(s.Problems)
	return s
}

// Changed receives a value when the status changed, other than in counters, handshakes and
// round trips. It has one slot and one reader.
func (f *Fabric) Changed() <-chan struct{} { return f.changed }

// moved is poke for changes that netlink reports.
func (f *Fabric) moved() {
	f.node.changes.Add(1)
	f.poke()
}

func (f *Fabric) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// hurry is poke for changes that must not wait for others.
func (f *Fabric) hurry() {
	f.urgent.Store(true)
	f.poke()
}

// askAgain schedules the next comparison after d at the latest.
func (f *Fabric) askAgain(d time.Duration) {
	now := time.Now()
	at := now.Add(d)
	if f.again != nil {
		if f.againAt.After(now) && !at.Before(f.againAt) {
			return // one comes sooner
		}
		f.again.Stop()
	}
	f.again, f.againAt = time.AfterFunc(d, f.poke), at
}

// Run works until ctx ends, and then returns nil. The kernel's state remains.
func (f *Fabric) Run(ctx context.Context) error {
	if release, err := userspace.TakeLock(f.cfg.Device); err != nil {
		f.log.Warn("the tunnel process will not wait for this one when both are asked to end", "err", err)
	} else {
		defer release()
	}
	g, ctx := errgroup.WithContext(ctx)
	defer f.resolver.wait()
	defer f.improvers.Wait()
	g.Go(func() error { return watch(ctx, f.moved, f.poke) })
	g.Go(func() error { return f.prober.Run(ctx) })
	g.Go(func() error {
		resync := time.NewTicker(resyncEvery)
		defer resync.Stop()
		for {
			f.follow(time.Now())
			f.shakeAgain(time.Now())
			f.reconcile(ctx, time.Now())
			f.replaceKey(ctx, time.Now())
			select {
			case <-ctx.Done():
				return nil
			case <-f.rekey.due:
				f.follow(time.Now())
				f.shakeAgain(time.Now())
				continue
			case <-resync.C:
				continue
			case <-f.wake:
				f.gather(ctx)
			}
		}
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("run fabric: %w", err)
	}
	return nil
}

// gather waits for gatherFor, since one change seldom comes alone, but not once there is one that must not wait for
// others.
func (f *Fabric) gather(ctx context.Context) {
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	for !f.urgent.Swap(false) {
		select {
		case <-ctx.Done():
			return
		case <-f.rekey.due:
			f.follow(time.Now())
			f.shakeAgain(time.Now())
			return
		case <-timer.C:
			return
		case <-f.wake:
		}
	}
}

// pass is one comparison of the kernel with the desired state.
type pass struct {
	now      time.Time
	status   Status
	peers    []plan.Peer // the desired ones
	layout   plan.Layout
	link     netlink.Link // the device; nil if it is missing
	device   *wgtypes.Device
	byKey    map[plan.PublicKey]*wgtypes.Peer // the peers of device
	problems []plan.Problem
	local    []nodeAddress // of this node
	// table is whether the kernel has the nftables table.
	table firewall.Presence
	// demoted says that this node is a gateway no longer, and hands its peers over. kept are the nodes that count as
	// gateways though they are none any more.
	demoted bool
	kept    []string
}

// index is that of the device; zero if it is missing.
func (p *pass) index() int {
	if p.link == nil {
		return 0
	}
	return p.link.Attrs().Index
}

// read sets the state of the device.
func (p *pass) read(dev *wgtypes.Device) {
	p.device, p.byKey = dev, make(map[plan.PublicKey]*wgtypes.Peer, len(dev.Peers))
	for i := range dev.Peers {
		p.byKey[plan.PublicKey(dev.Peers[i].PublicKey)] = &dev.Peers[i]
	}
}

func (p *pass) fail(err error) {
	if err != nil {
		p.problems = append(p.problems, plan.Problem{Text: err.Error()})
	}
}

// reconcile applies the desired state to the kernel. A step that fails is reported in the
// status and does not stop the others.
func (f *Fabric) reconcile(ctx context.Context, now time.Time) {
	f.mu.Lock()
	desired := f.desired
	f.mu.Unlock()

	p := &pass{now: now}
	f.node.begin(now)
	f.adopt(ctx, p, desired)
	if desired != nil {
		f.apply(ctx, p, desired)
	}
	if f.planned.layout == nil {
		f.close(p)
	}
	f.countRefused(p)
	f.report(p)
}

// adopt finds or creates the device. It writes only what differs: a device that has a key
// keeps it.
func (f *Fabric) adopt(ctx context.Context, p *pass, desired *plan.Desired) {
	link, backend, err := ensureLink(f.cfg.Device, f.cfg.Userspace)
	if err != nil {
		p.fail(err)
		return
	}
	p.status.MTU = f.cfg.MTU
	if p.status.MTU == 0 {
		p.status.MTU = deviceMTU(f.node.underlayMTU(f.endpoints(ctx, p.now, desired)...))
	}
	dev, err := f.control.read()
	if err != nil {
		p.fail(err)
		return
	}
	var cfg wgtypes.Config
	if dev.PrivateKey == (wgtypes.Key{}) {
		key := wgtypes.Key(f.key)
		if key == (wgtypes.Key{}) {
			if key, err = wgtypes.GeneratePrivateKey(); err != nil {
				p.fail(fmt.Errorf("generate WireGuard key: %w", err))
				return
			}
		}
		cfg.PrivateKey = &key
	}
	if dev.ListenPort != f.cfg.ListenPort {
		cfg.ListenPort = &f.cfg.ListenPort
	}
	if cfg.PrivateKey != nil || cfg.ListenPort != nil {
		if err := f.control.configure(cfg); err != nil {
			p.fail(fmt.Errorf("%w: is another program using UDP port %d?", err, f.cfg.ListenPort))
			return
		}
		if dev, err = f.control.read(); err != nil {
			p.fail(err)
			return
		}
	}
	if _, err := ensureUp(link, p.status.MTU); err != nil {
		p.fail(err)
	}
	f.key = privateKey(dev.PrivateKey)
	_ = f.saveKey(f.key) // the store reports it, and the next pass tries again
	p.link = link
	p.read(dev)
	p.status.PublicKey, p.status.ListenPort, p.status.Backend = plan.PublicKey(dev.PublicKey), dev.ListenPort, backend
	p.status.KeyWaits = f.rekey.waits
	if f.rekey.next != (privateKey{}) {
		p.status.NextKey = plan.PublicKey(wgtypes.Key(f.rekey.next).PublicKey())
	}
}

// saveKey keeps a key for the next process.
func (f *Fabric) saveKey(key privateKey) error {
	if f.cfg.Keys == nil || f.saved == key {
		return nil
	}
	f.saved = privateKey{}
	if err := f.cfg.Keys.Save(key[:]); err != nil {
		return err
	}
	f.saved = key
	return nil
}

// endpoints are the addresses of all peers that may be dialled.
func (f *Fabric) endpoints(ctx context.Context, now time.Time, d *plan.Desired) []netip.Addr {
	if d == nil {
		return nil
	}
	var addrs []netip.Addr
	if !slices.ContainsFunc(d.Nodes, func(n plan.Node) bool { return n.Name == d.Node && n.Gateway }) {
		return nil
	}
	for _, q := range d.Peers {
		for _, g := range q.Gateways {
			found, _ := f.resolver.candidates(ctx, now, g.Endpoints[:min(len(g.Endpoints), plan.MaxEndpoints)], resolveEvery, nil)
			for _, e := range found {
				addrs = append(addrs, e.Addr())
			}
		}
	}
	return addrs
}

// targets are the nodes that are probed. Agreements are announced only while the firewall is in
// place. mtus are the sizes that were known to pass before, by overlay address.
func (f *Fabric) targets(p *pass, layout plan.Layout, mtus map[netip.Addr]int, filtered bool) []probe.Target {
	var out []probe.Target
	for _, w := range layout.Peers {
		t := probe.Target{
			Overlay: w.Overlay, Cluster: w.Cluster, Home: !w.Remote, Carries: w.Carries, OnDemand: w.OnDemand, Enters: w.Entry, Busy: f.busy(w.PublicKey),
			Bound: f.bound(p, w.PublicKey), LastMTU: mtus[w.Overlay], NextKey: f.rekey.follows(w),
		}
		if filtered && p.accepts(w) {
			t.Agreement, t.Entry = w.Agreement, w.EntryAgreement
		}
		out = append(out, t)
	}
	return out
}

// apply takes the steps in an order that opens nothing before its firewall rules are there:
// firewall, unreachable routes, then the tunnel. As long as the rules cannot be changed the older ones
// decide, and without any no packets of peers pass.
func (f *Fabric) apply(ctx context.Context, p *pass, desired *plan.Desired) {
	d := *desired
	own := f.findPods(p, &d)
	if len(own) == 0 { // the CNI gives nodes no prefixes of their own
		own = slices.Clone(d.Pods)
		for _, q := range d.Peers {
			for _, m := range q.Local {
				if !m.Real.IsSingleIP() { // single addresses may be those of hosts
					own = append(own, m.Real)
				}
			}
		}
	}
	var err error
	p.local, err = f.node.addresses.get(f.node.epoch, func() ([]nodeAddress, error) { return nodeAddresses(f.cfg.Device) })
	p.fail(err)
	f.demote(p, &d)
	carriers := f.elect(p, d)
	f.proofs.observe(p.now, deviceKeys(p.device), d.Peers)
	direct := f.findDirect(p, desired, &d)
	made, fresh, err := f.planned.next(input{desired, p.kept, p.status.PodCIDRs, d.Announced, plan.Observed{
		Sources: ownAddresses(p.local, own), Routed: plan.Routed(f.node.routes.value), Carriers: carriers, Direct: direct, Counted: f.directory.counted,
		Proven: f.proofs.proven(), Turn: uint64(max(p.now.Unix(), 0)) / uint64(keyTrial/time.Second),
		InUse: f.rekey.inUse(p.now, d, deviceKeys(p.device)),
	}}, d)
	if err != nil {
		p.fail(err)
		if made = f.planned.layout; made == nil {
			return
		}
	}
	if fresh {
		f.log.Debug("planned", "peers", len(made.Peers))
	}
	layout := *made
	layout.Peers = slices.Clone(made.Peers) // some get another preshared key to try
	f.proofs.planned(p.now, layout.Peers)
	p.layout, p.peers = layout, d.Peers
	f.rekey.planned(layout.Peers)
	p.problems = append(p.problems, layout.Problems...)
	p.status.Overlay = layout.Overlay

	filtered := f.filter(p, made)
	f.rules(p)
	if p.link != nil && p.table != firewall.Unknown {
		f.tunnel(ctx, p)
	}
	sizes := f.routes(ctx, p, d, filtered)
	p.problems = append(p.problems, f.surroundings(layout)...)
	f.prober.Ends().Set(f.ends(p, layout, len(d.Nodes), sizes, filtered))
	for _, text := range []string{f.prober.Trouble(), f.prober.Ends().Trouble()} {
		if text != "" && p.link != nil {
			p.problems = append(p.problems, plan.Problem{Text: text})
		}
	}
}

// filter makes the nftables table the desired one, and reports whether it is.
func (f *Fabric) filter(p *pass, made *plan.Layout) bool {
	changed, err := f.firewall.Apply(p.now, made, f.cfg.Device, f.ports())
	return f.noteTable(p, changed, err)
}

// close lets nothing of peers pass as long as no plan could be made, unless there are older rules, which
// decide then.
func (f *Fabric) close(p *pass) {
	if p.device == nil || len(p.device.Peers) == 0 {
		return
	}
	changed, err := f.firewall.Close(p.now, f.cfg.Device, f.ports())
	if f.noteTable(p, changed, err) || p.table != firewall.Absent {
		return
	}
	if changes := withoutPrefixes(p.device.Peers); len(changes) > 0 {
		err := f.control.configure(wgtypes.Config{Peers: changes})
		f.did(err == nil, err)(p, "WireGuard peers")
	}
}

func (f *Fabric) ports() firewall.Ports {
	return firewall.Ports{Probe: f.cfg.ProbePort, Relay: RelayPort}
}

// noteTable notes the state of the nftables table after it was written, and reports whether that succeeded.
func (f *Fabric) noteTable(p *pass, changed bool, err error) bool {
	p.table = f.firewall.Presence(p.now)
	if err == nil {
		f.did(changed, nil)(p, "nftables table")
		return true
	}
	switch p.table {
	case firewall.Present:
		err = fmt.Errorf("what is open to peers cannot be changed, and stays as it was: %w", err)
	case firewall.Absent:
		err = fmt.Errorf("no packets pass between this node and other clusters, because it has no firewall rules for them: %w", err)
		p.status.Unfiltered = err.Error()
	case firewall.Unknown:
		err = fmt.Errorf("tunnels are not changed until the firewall rules can be read: %w", err)
	}
	p.fail(fmt.Errorf("%w: check that no other program owns or deletes the table inet %s (nft list tables), and that the kernel has the modules nf_tables, nft_nat, nft_masq and nft_ct (modprobe)", err, firewall.TableName))
	return false
}

// rules makes the routing rules the desired ones.
func (f *Fabric) rules(p *pass) {
	have, err := f.node.rules.get(f.node.epoch, ourRules)
	changed := false
	if err == nil {
		changed, err = ensureRules(desiredRules(f.cfg.Device), have)
	}
	f.did(changed, err)(p, "routing rules")
	if changed || err != nil {
		f.node.rules.forget()
	}
}

// routes makes the routes the desired ones, with the path MTUs that the prober found, and sets the
// targets of the prober. It returns these MTUs.
func (f *Fabric) routes(ctx context.Context, p *pass, d plan.Desired, filtered bool) map[netip.Addr]int {
	have, err := f.node.ours.get(f.node.epoch, ourRoutes)
	p.fail(err)
	targets := f.targets(p, p.layout, lastMTUs(p.layout, have), filtered)
	f.improve(ctx, p)
	f.prober.Set(p.layout.Overlay, p.index(), targets, f.claims(d))
	sizes := f.prober.Sizes()
	if err != nil {
		return sizes
	}
	want := desiredRoutes(p.layout, p.index(), sizes)
	if f.node.placed.epoch == f.node.epoch && slices.Equal(f.node.placed.value, want) {
		return sizes
	}
	changed, err := ensureRoutes(want, have)
	f.did(changed, err)(p, "routes")
	if changed || err != nil {
		f.node.ours.forget()
	} else {
		f.node.placed = known[[]routeKey]{want, f.node.epoch}
	}
	return sizes
}

// findPods finds the prefixes of this node's pods by the node's own routes. It puts them into d in the
// place of the node's spec.podCIDRs, and returns them.
func (f *Fabric) findPods(p *pass, d *plan.Desired) []netip.Prefix {
	self := slices.IndexFunc(d.Nodes, func(n plan.Node) bool { return n.Name == d.Node })
	if self < 0 {
		return nil
	}
	routes, err := f.node.routes.get(f.node.epoch, func() ([]plan.NodeRoute, error) { return nodeRoutes(f.cfg.Device) })
	p.fail(err) // the last known routes are used
	pods, left := plan.PodsOf(d.Nodes[self].PodCIDRs, d.Pods, routes)
	if left > 0 {
		p.fail(fmt.Errorf("%d pod prefixes of this node are left out, the limit is %d (MaxNodePrefixes): peers do not reach the pods in them; give the network plugin larger blocks for each node", left, plan.MaxNodePrefixes))
	}
	d.Nodes = slices.Clone(d.Nodes)
	d.Nodes[self].PodCIDRs = pods
	p.status.PodCIDRs = append([]netip.Prefix{}, pods...) // not nil, which would mean unknown
	return pods
}

// bound returns the size of packets that the network allows on the way to a peer's endpoint.
func (f *Fabric) bound(p *pass, key plan.PublicKey) int {
	if h := p.byKey[key]; h != nil && h.Endpoint != nil {
		return min(p.status.MTU, f.node.underlayMTU(unmapPort(h.Endpoint.AddrPort()).Addr())-wireGuardOverhead)
	}
	return min(p.status.MTU, deviceMTU(1500))
}

// accepts reports whether the device accepts all packets that a peer of it may send.
func (p *pass) accepts(w plan.WireGuardPeer) bool {
	h := p.byKey[w.PublicKey]
	return h != nil && !slices.ContainsFunc(w.AllowedIPs, func(a netip.Prefix) bool { return !containsNet(h.AllowedIPs, a) })
}

// deviceKeys are the keys of the peers of a device.
func deviceKeys(device *wgtypes.Device) []deviceKey {
	if device == nil {
		return nil
	}
	var out []deviceKey
	for _, h := range device.Peers {
		out = append(out, deviceKey{key: plan.PublicKey(h.PublicKey), psk: plan.PresharedKey(h.PresharedKey), handshake: h.LastHandshakeTime})
	}
	return out
}

// did logs changes and records errors.
func (f *Fabric) did(changed bool, err error) func(*pass, string) {
	return func(p *pass, what string) {
		if changed {
			f.log.Info("changed", "what", what)
		}
		p.fail(err)
	}
}

// elect decides which gateways carry the traffic of each peer, by what is known now.
func (f *Fabric) elect(p *pass, d plan.Desired) map[string]plan.Carrier {
	out, carriers := make(map[string]plan.Carrier, len(d.Peers)), make(map[string]election, len(d.Peers))
	carrying := int64(0)
	for _, q := range d.Peers {
		before, known := f.carriers[q.ClusterID]
		if !known {
			before = carriedBefore(p, d, q)
		}
		s := situation{now: p.now, self: d.Node, leads: d.ClusterID < q.ClusterID, began: f.began, leaving: f.leaving.Load() || p.demoted}
		gateway := false
		for _, n := range d.Nodes {
			if !n.Gateway || n.Name != d.Node && n.PublicKey.IsZero() {
				continue
			}
			g := homeGateway{node: n.Name, rank: plan.Rank(d.ClusterID, q.ClusterID, n.Name), alive: n.Name == d.Node}
			if !g.alive {
				g.Claim, g.alive = f.prober.ClaimOf(plan.Overlay(d.ClusterID, n.Name), probe.PeerKeyOf(q.ClusterID))
			}
			gateway = gateway || n.Name == d.Node
			s.home = append(s.home, g)
		}
		for _, g := range q.Gateways {
			if !gateway {
				break
			}
			if !q.HasOverlay(g) {
				continue // it is left out of the plan
			}
			seen := f.prober.Status(plan.GatewayOverlay(q, g))
			s.peer = append(s.peer, peerGateway{
				node: g.Node, rank: plan.Rank(q.ClusterID, d.ClusterID, g.Node), path: seen.State, carries: seen.Carries,
				relayed: f.relayed(g.PublicKey) || f.relayed(g.NextKey), doubted: seen.Doubted.After(seen.Path.LastResponse()),
			})
		}
		now := before.next(s)
		if known && now.home != before.home {
			f.log.Info("another node carries the traffic", "peer", q.ClusterID, "node", now.home, "before", before.home)
		}
		if now.home == d.Node && s.replaceable() {
			carrying++
		}
		carriers[q.ClusterID] = now
		out[q.ClusterID] = plan.Carrier{Home: now.home, Peer: now.peer, Claims: now.Carries}
		if left := carrierStable - p.now.Sub(now.since); now.Reach != probe.ReachNone && !now.Carries && left > 0 {
			f.askAgain(min(left, carrierListens))
		}
	}
	f.switches = countSwitches(f.switches, f.carriers, carriers)
	f.carriers = carriers
	f.carrying.Store(carrying)
	f.elections.Add(1)
	return out
}

// carriedBefore returns which gateway carried a peer when this process began, by the AllowedIPs of the
// device.
func carriedBefore(p *pass, d plan.Desired, q plan.Peer) election {
	aliases := cidr.Of(q.Aliases()...)
	carries := func(keys ...plan.PublicKey) bool {
		return slices.ContainsFunc(keys, func(key plan.PublicKey) bool {
			h := p.byKey[key]
			return h != nil && slices.ContainsFunc(h.AllowedIPs, func(n net.IPNet) bool { return aliases.Overlaps(prefixOf(n)) })
		})
	}
	for _, g := range q.Gateways {
		if carries(g.PublicKey, g.NextKey) {
			return election{home: d.Node, peer: g.Node, Claim: probe.Claim{Reach: probe.ReachCarrier, Carries: true}}
		}
	}
	for _, n := range d.Nodes {
		if carries(n.PublicKey, n.NextKey) {
			return election{home: n.Name}
		}
	}
	return election{}
}

// claims are what this node announces to the other nodes of its cluster.
func (f *Fabric) claims(d plan.Desired) map[probe.PeerKey]probe.Claim {
	out := map[probe.PeerKey]probe.Claim{}
	for _, q := range d.Peers {
		if e := f.carriers[q.ClusterID]; !e.since.IsZero() {
			out[probe.PeerKeyOf(q.ClusterID)] = e.Claim
		}
	}
	return out
}

// busy reports whether there is traffic on the way to a peer of the device, beside probes.
func (f *Fabric) busy(key plan.PublicKey) bool { return f.traffic[key].rate > busyRate }

// tunnel configures the peers and addresses of the device.
func (f *Fabric) tunnel(ctx context.Context, p *pass) {
	if f.node.overlay.value != p.layout.Overlay {
		f.node.overlay.forget()
	}
	changed := false
	_, err := f.node.overlay.get(f.node.epoch, func() (has netip.Addr, err error) {
		changed, err = ensureAddresses(p.link, p.layout.Overlay)
		return p.layout.Overlay, err
	})
	f.did(changed, err)(p, "addresses")

	f.trials.choose(p.now, p.layout.Peers, deviceKeys(p.device), f.leads)
	dial, again, detours := f.dials(ctx, p)
	peers := p.layout.Peers
	if p.table == firewall.Absent {
		peers = shut(p.layout)
	}
	changes := slices.Concat(restart(again, peers, p.device.Peers, dial), peerChanges(peers, p.device.Peers, dial))
	if len(changes) == 0 {
		f.wrote = false
		return
	}
	err = f.control.configure(wgtypes.Config{Peers: changes})
	f.did(err == nil, err)(p, "WireGuard peers")
	for _, overlay := range detours {
		f.prober.Nudge(overlay, time.Now()) // there is not much time for an answer
	}
	if dev, err := f.control.read(); err == nil {
		p.read(dev)
	}
	if err == nil && !f.wrote {
		f.poke() // read the written state back at once, but only once
	}
	f.wrote = true
}

// dials chooses the endpoints of peers, the peers with which to begin the handshake again, and the
// overlay addresses of those that are tried elsewhere for a moment. It schedules the next pass for when
// the choice changes with time.
func (f *Fabric) dials(ctx context.Context, p *pass) (dial map[plan.PublicKey]netip.AddrPort, again []plan.PublicKey, detours []netip.Addr) {
	dial = map[plan.PublicKey]netip.AddrPort{}
	self := plan.PublicKey(p.device.PublicKey)
	answered := map[plan.PublicKey]bool{}
	var afresh []plan.PublicKey
	var next time.Duration
	within := func(d time.Duration) {
		if d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	for _, w := range p.layout.Peers {
		h := p.byKey[w.PublicKey]
		if len(p.byKey) == 0 {
			f.handshakes.begin(p.now, w.PublicKey)
		}
		last := f.prober.Status(w.Overlay).Path.LastAnswer()
		answered[w.PublicKey] = last.After(f.handshakes[w.PublicKey].known)
		dialled := h != nil && h.Endpoint != nil
		if !dialled && last.IsZero() {
			if left, yields := f.handshakes.yields(p.now, self, w.PublicKey); yields {
				within(left)
				continue
			}
		}
		choice := f.chooseEndpoint(ctx, p, w)
		if choice.endpoint.IsValid() {
			dial[w.PublicKey] = choice.endpoint
			if choice.stale && dialled {
				afresh = append(afresh, w.PublicKey)
			}
			if choice.detour {
				detours = append(detours, w.Overlay)
			}
		}
		within(choice.again)
	}
	again, soon := f.handshakes.due(p.now, self, p.device.Peers, func(key plan.PublicKey) bool { return answered[key] })
	within(soon)
	if next > 0 {
		f.askAgain(next)
	}
	for _, key := range afresh { // WireGuard would wait up to 5 s for its next try
		if !slices.Contains(again, key) {
			again = append(again, key)
		}
	}
	return dial, again, detours
}

// surroundings checks the settings of the node that the fabric depends on and does not change itself.
func (f *Fabric) surroundings(l plan.Layout) []plan.Problem {
	var out []plan.Problem
	if len(l.Remote) == 0 {
		return nil
	}
	add := func(format string, args ...any) { out = append(out, plan.Problem{Text: fmt.Sprintf(format, args...)}) }
	if !forwards(false) {
		add("this node does not forward IPv4: set net.ipv4.ip_forward=1")
	}
	if slices.ContainsFunc(l.Remote, func(p netip.Prefix) bool { return p.Addr().Is6() }) && !forwards(true) {
		add("this node does not forward IPv6: set net.ipv6.conf.all.forwarding=1")
	}
	return out
}

// leads reports whether the home cluster leads another, whose ID is higher.
func (f *Fabric) leads(cluster string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.desired != nil && f.desired.ClusterID < cluster
}

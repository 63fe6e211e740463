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

	// What follows belongs to the goroutine of Run.
	control  *control
	prober   *probe.Prober
	node     node
	planned  planned
	resolver *resolver
	firewall firewall.Table
	key      privateKey // for a device that was created again
	saved    privateKey // what is kept of it for the next process
	carriers map[string]election
	switches map[string]uint64 // as Status.Switches
	// directory is the nodes that can be reached directly, directs those of which something is
	// known (nil: what the device holds was not read yet), rates the traffic with them.
	directory directory
	announced announced
	directs   directs
	meter     directMeter
	rates     map[remote]float64
	began     time.Time
	dialers   map[plan.PublicKey]*dialer
	betters   map[plan.PublicKey]*better
	heard     map[plan.PublicKey]heard
	wrote     bool // the last pass changed WireGuard peers
	// handshakes are the first ones that wait for an answer, again the timer of the next
	// check of them.
	handshakes handshakes
	proofs     keyProofs       // of who has which key
	trials     presharedTrials // of preshared keys
	rekey      rekeying        // of this node's own key and of those of others
	again      *time.Timer
	againAt    time.Time
	// improving says that better ways to a peer are being tried, improvers waits for that.
	improving atomic.Bool
	improvers sync.WaitGroup
	// leaving says that this node is about to stop, carrying of how many peers it carries
	// the traffic though another gateway could, and looked how often that was decided.
	leaving  atomic.Bool
	carrying atomic.Int64
	looked   atomic.Int64
	logged   map[plan.Problem]bool
}

// heard is when the counter of received bytes last grew, and how fast both grow, in bytes a
// second.
type heard struct {
	bytes int64
	at    time.Time

	both int64
	seen time.Time
	rate float64
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
		carriers: map[string]election{}, began: time.Now(), dialers: map[plan.PublicKey]*dialer{}, betters: map[plan.PublicKey]*better{}, heard: map[plan.PublicKey]heard{}, logged: map[plan.Problem]bool{},
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

// Set replaces the desired state. The latest wins. The caller must not change the value
// afterwards. Until the first call only the device is created, and nothing is removed.
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

// Status is the last observed status.
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

// moved is poke for what netlink says of the node.
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

// hurry is poke for what must not wait.
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
	if release, err := holdLock(f.cfg.Device); err != nil {
		f.log.Warn("the tunnel process will not wait for this one when both are told to end", "err", err)
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
			}
			// One change seldom comes alone.
			if f.urgent.Swap(false) {
				continue
			}
			select {
			case <-ctx.Done():
				return nil
			case <-f.rekey.due:
				f.follow(time.Now())
				f.shakeAgain(time.Now())
			case <-time.After(settle):
			}
			select {
			case <-f.wake:
			default:
			}
		}
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("run fabric: %w", err)
	}
	return nil
}

// pass is one comparison of the kernel with the desired state.
type pass struct {
	now      time.Time
	status   Status
	peers    []plan.Peer // what is wanted
	layout   plan.Layout
	link     netlink.Link // the device; nil if there is none
	device   *wgtypes.Device
	held     map[plan.PublicKey]*wgtypes.Peer // of device, by their keys
	problems []plan.Problem
	local    []nodeAddress // of this node
}

// index is that of the device; zero if there is none.
func (p *pass) index() int {
	if p.link == nil {
		return 0
	}
	return p.link.Attrs().Index
}

// read notes what the device holds.
func (p *pass) read(dev *wgtypes.Device) {
	p.device, p.held = dev, make(map[plan.PublicKey]*wgtypes.Peer, len(dev.Peers))
	for i := range dev.Peers {
		p.held[plan.PublicKey(dev.Peers[i].PublicKey)] = &dev.Peers[i]
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
	f.saveKey(f.key)
	p.link = link
	p.read(dev)
	p.status.PublicKey, p.status.ListenPort, p.status.Backend = plan.PublicKey(dev.PublicKey), dev.ListenPort, backend
	p.status.KeyWaits = f.rekey.waits
	if f.rekey.next != (privateKey{}) {
		p.status.NextKey = plan.PublicKey(wgtypes.Key(f.rekey.next).PublicKey())
	}
}

// saveKey has a key kept for the next process.
func (f *Fabric) saveKey(key privateKey) {
	if f.cfg.Keys != nil && f.saved != key {
		f.cfg.Keys.Save(key[:])
		f.saved = key
	}
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

// targets are the nodes that are probed. What agrees on a key is told only where packets are
// filtered.
func (f *Fabric) targets(p *pass, layout plan.Layout, standing map[netip.Addr]int, filtered bool) []probe.Target {
	var out []probe.Target
	for _, w := range layout.Peers {
		t := probe.Target{
			Overlay: w.Overlay, Cluster: w.Cluster, Home: !w.Remote, Carries: w.Carries, OnDemand: w.OnDemand, Busy: f.busy(w.PublicKey),
			Bound: f.bound(p, w.PublicKey), Standing: standing[w.Overlay], NextKey: f.rekey.follows(w),
		}
		if filtered && p.accepts(w) {
			t.Agreement = w.Agreement
		}
		out = append(out, t)
	}
	return out
}

// apply takes the steps in an order that opens nothing before its firewall rules are there:
// firewall, unreachable routes, then the tunnel.
func (f *Fabric) apply(ctx context.Context, p *pass, desired *plan.Desired) {
	d := *desired
	own := f.findPods(p, &d)
	if len(own) == 0 { // the CNI gives nodes no prefixes of their own
		own = slices.Clone(d.Pods)
		for _, q := range d.Peers {
			for _, m := range q.Local {
				if !m.Real.IsSingleIP() { // which may be no pod's
					own = append(own, m.Real)
				}
			}
		}
	}
	var err error
	p.local, err = f.node.addresses.get(f.node.epoch, func() ([]nodeAddress, error) { return nodeAddresses(f.cfg.Device) })
	p.fail(err)
	carriers := f.elect(p, d)
	f.proofs.observe(p.now, heldKeys(p.device), d.Peers)
	direct := f.findDirect(p, desired, &d)
	made, fresh, err := f.planned.next(wanted{desired, p.status.PodCIDRs, d.Announced, plan.Observed{
		Sources: ownAddresses(p.local, own), Routed: plan.Routed(f.node.routes.value), Carriers: carriers, Direct: direct, Counted: f.directory.counted,
		Proven: f.proofs.proven(), Turn: uint64(max(p.now.Unix(), 0)) / uint64(keyTrial/time.Second),
		InUse: f.rekey.inUse(p.now, d, heldKeys(p.device)),
	}}, d)
	if err != nil {
		p.fail(err)
		return
	}
	if fresh {
		f.log.Debug("planned", "peers", len(made.Peers))
	}
	layout := *made
	layout.Peers = slices.Clone(made.Peers) // another preshared key of some is tried
	f.proofs.planned(p.now, layout.Peers)
	p.layout, p.peers = layout, d.Peers
	f.rekey.planned(layout.Peers)
	p.problems = append(p.problems, layout.Problems...)
	p.status.Overlay = layout.Overlay

	changed, unfiltered := f.firewall.Apply(p.now, made, f.cfg.Device, firewall.Ports{Probe: f.cfg.ProbePort, Relay: RelayPort})
	f.did(changed, unfiltered)(p, "nftables table")
	f.rules(p)
	if p.link != nil {
		f.tunnel(ctx, p)
	}
	sizes := f.routes(ctx, p, d, unfiltered == nil)
	p.problems = append(p.problems, f.surroundings(layout)...)
	f.prober.Ends().Set(f.ends(p, layout, len(d.Nodes), sizes, unfiltered == nil))
	for _, text := range []string{f.prober.Trouble(), f.prober.Ends().Trouble()} {
		if text != "" && p.link != nil {
			p.problems = append(p.problems, plan.Problem{Text: text})
		}
	}
}

// rules makes the routing rules those that are wanted.
func (f *Fabric) rules(p *pass) {
	have, err := f.node.rules.get(f.node.epoch, ourRules)
	changed := false
	if err == nil {
		changed, err = ensureRules(wantRules(f.cfg.Device), have)
	}
	f.did(changed, err)(p, "routing rules")
	if changed || err != nil {
		f.node.rules.forget()
	}
}

// routes makes the routes those that are wanted, for packets of the sizes that pass each way, and tells
// the prober what to find that out of. It returns these sizes.
func (f *Fabric) routes(ctx context.Context, p *pass, d plan.Desired, filtered bool) map[netip.Addr]int {
	have, err := f.node.ours.get(f.node.epoch, ourRoutes)
	p.fail(err)
	targets := f.targets(p, p.layout, standingSizes(p.layout, have), filtered)
	f.improve(ctx, p)
	f.prober.Set(p.layout.Overlay, p.index(), targets, f.claims(d))
	sizes := f.prober.Sizes()
	if err != nil {
		return sizes
	}
	want := wantRoutes(p.layout, p.index(), sizes)
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

// findPods puts into d, in the place of this node's spec.podCIDRs, where its pods are by the
// node's own routes, and returns that.
func (f *Fabric) findPods(p *pass, d *plan.Desired) []netip.Prefix {
	self := slices.IndexFunc(d.Nodes, func(n plan.Node) bool { return n.Name == d.Node })
	if self < 0 {
		return nil
	}
	routes, err := f.node.routes.get(f.node.epoch, func() ([]plan.NodeRoute, error) { return nodeRoutes(f.cfg.Device) })
	p.fail(err) // they are as they were
	pods, left := plan.PodsOf(d.Nodes[self].PodCIDRs, d.Pods, routes)
	if left > 0 {
		p.fail(fmt.Errorf("%d pod prefixes of this node are left out, the limit is %d (MaxNodePrefixes): peers do not reach the pods in them; give the network plugin larger blocks for each node", left, plan.MaxNodePrefixes))
	}
	d.Nodes = slices.Clone(d.Nodes)
	d.Nodes[self].PodCIDRs = pods
	p.status.PodCIDRs = append([]netip.Prefix{}, pods...) // not nil: it has looked
	return pods
}

// bound is what the network allows on the way to a peer's endpoint.
func (f *Fabric) bound(p *pass, key plan.PublicKey) int {
	if h := p.held[key]; h != nil && h.Endpoint != nil {
		return min(p.status.MTU, f.node.underlayMTU(unmapPort(h.Endpoint.AddrPort()).Addr())-wireGuardOverhead)
	}
	return min(p.status.MTU, deviceMTU(1500))
}

// accepts says that the device takes in what a peer of it may send.
func (p *pass) accepts(w plan.WireGuardPeer) bool {
	h := p.held[w.PublicKey]
	return h != nil && !slices.ContainsFunc(w.AllowedIPs, func(a netip.Prefix) bool { return !containsNet(h.AllowedIPs, a) })
}

// heldKeys are the keys of the peers of a device.
func heldKeys(device *wgtypes.Device) []heldKey {
	if device == nil {
		return nil
	}
	var out []heldKey
	for _, h := range device.Peers {
		out = append(out, heldKey{key: plan.PublicKey(h.PublicKey), psk: plan.PresharedKey(h.PresharedKey), handshake: h.LastHandshakeTime})
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

// elect decides who carries the traffic of each peer, by what is known now.
func (f *Fabric) elect(p *pass, d plan.Desired) map[string]plan.Carrier {
	out, carriers := make(map[string]plan.Carrier, len(d.Peers)), make(map[string]election, len(d.Peers))
	carrying := int64(0)
	for _, q := range d.Peers {
		before, known := f.carriers[q.ClusterID]
		if !known {
			before = carriedBefore(p, d, q)
		}
		s := situation{now: p.now, self: d.Node, leads: d.ClusterID < q.ClusterID, began: f.began, leaving: f.leaving.Load()}
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
			seen := f.prober.Look(plan.GatewayOverlay(q, g))
			s.peer = append(s.peer, peerGateway{
				node: g.Node, rank: plan.Rank(q.ClusterID, d.ClusterID, g.Node), path: seen.State, carries: seen.Carries,
				relayed: f.relayed(g.PublicKey) || f.relayed(g.NextKey), doubted: seen.Doubted.After(seen.Path.LastHeard()),
			})
		}
		now := before.next(s)
		if known && now.home != before.home {
			f.log.Info("another node carries the traffic", "peer", q.ClusterID, "node", now.home, "before", before.home)
		}
		if now.home == d.Node && s.replaced() {
			carrying++
		}
		carriers[q.ClusterID] = now
		out[q.ClusterID] = plan.Carrier{Home: now.home, Peer: now.peer, Claims: now.Carries}
		if left := carrierSettles - p.now.Sub(now.since); now.Reach != probe.ReachNone && !now.Carries && left > 0 {
			f.askAgain(min(left, carrierListens))
		}
	}
	f.switches = countSwitches(f.switches, f.carriers, carriers)
	f.carriers = carriers
	f.carrying.Store(carrying)
	f.looked.Add(1)
	return out
}

// carriedBefore is who carried a peer when this process began, by the routes of the device.
func carriedBefore(p *pass, d plan.Desired, q plan.Peer) election {
	aliases := cidr.Of(q.Aliases()...)
	carries := func(keys ...plan.PublicKey) bool {
		return slices.ContainsFunc(keys, func(key plan.PublicKey) bool {
			h := p.held[key]
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

// claims is what this node tells the other nodes of its cluster.
func (f *Fabric) claims(d plan.Desired) map[probe.PeerKey]probe.Claim {
	out := map[probe.PeerKey]probe.Claim{}
	for _, q := range d.Peers {
		if e := f.carriers[q.ClusterID]; !e.since.IsZero() {
			out[probe.PeerKeyOf(q.ClusterID)] = e.Claim
		}
	}
	return out
}

// busy says whether there is traffic on the way to a peer of the device, beside probes.
func (f *Fabric) busy(key plan.PublicKey) bool { return f.heard[key].rate > busyRate }

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

	f.trials.choose(p.now, p.layout.Peers, heldKeys(p.device), f.leads)
	dial, again, detours := f.dials(ctx, p)
	changes := slices.Concat(restart(again, p.layout.Peers, p.device.Peers, dial), peerChanges(p.layout.Peers, p.device.Peers, dial))
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
		f.poke() // what was written is read back at once, but only once
	}
	f.wrote = true
}

// dials chooses the endpoints of peers, those with which the handshake begins again, and the
// addresses of those that are tried elsewhere for a moment. It is asked again when time changes that.
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
		answered[w.PublicKey] = !f.prober.Look(w.Overlay).Path.LastAnswer().IsZero()
		h := p.held[w.PublicKey]
		dialled := h != nil && h.Endpoint != nil
		if !dialled && !answered[w.PublicKey] {
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

// surroundings checks settings that the fabric depends on and must not change.
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

// leads says whether the home cluster leads another, whose ID is higher.
func (f *Fabric) leads(cluster string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.desired != nil && f.desired.ClusterID < cluster
}

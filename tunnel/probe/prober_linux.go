package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Target is a node to probe.
type Target struct {
	// Overlay is its address inside the tunnel, Cluster the ID of its cluster.
	Overlay netip.Addr
	Cluster string
	// Home says that it is a node of this cluster, to which the claims are sent.
	Home bool
	// Carries is announced to it: this node carries traffic to it.
	Carries bool
	// Agreement is announced to it: what this node accepts from it directly. OnDemand says that
	// it is probed for that alone, and that carriers replace it.
	Agreement uint64
	OnDemand  bool
	// Enters says that packets for all of its cluster are sent to it, past the gateways of this one, which
	// see less traffic on their own way to it.
	Enters bool
	// Entry is announced to it: what this node accepts from it for all of its cluster.
	Entry uint64
	// Busy says that traffic goes there now.
	Busy bool
	// Bound is the size of the largest packet that can pass the way to it, in bytes; LastMTU the size
	// that was known to pass before this process began, zero if none was.
	Bound, LastMTU int
	// NextKey is the key by which it will replace its own; zero means that it announced none.
	NextKey KeyTag
}

// Status is the state of a target, by its probes and announcements.
type Status struct {
	Path   Path
	Search Search
	// Carries says that the target announces that it carries traffic to this cluster.
	Carries bool
	// Agreement is what the target announces that it accepts directly; zero means nothing.
	Agreement uint64
	// Entry is what it announces that it accepts for all of its cluster; zero means nothing.
	Entry uint64
	// State of the path, since Since.
	State PathState
	Since time.Time
	// Doubted is when a probe was last lost, or another node announced a loss for the same cluster.
	Doubted time.Time
	// Tried is when the target last announced that it tries other ways to this node. Reached is the
	// number of the last of our trials that it answered, without the highest bit.
	Tried   time.Time
	Reached uint64
}

// trackedTarget is a target with its state.
type trackedTarget struct {
	Status

	target     Target
	cluster    PeerKey           // of the target
	claims     map[PeerKey]Claim // of a node of this cluster
	due        time.Time         // of the next probe
	burst      int               // how many are sent soon after each other
	answers    int               // in the second from counted
	changes    int               // of its announcements, in that second
	counted    time.Time
	rekey      rekeying
	claimsSent time.Time
}

// Prober sends and answers probes.
type Prober struct {
	device string
	port   int
	poke   func()
	// hurry is poke for what other nodes wait for.
	hurry func()
	wake  chan struct{}
	ends  *Ends

	mu      sync.Mutex
	overlay netip.Addr
	index   int // of the device that the socket is bound to
	tracked map[netip.Addr]*trackedTarget
	claims  [][]byte // datagrams, for nodes of this cluster
	conn    *net.UDPConn
	problem string
	// replaces is the tag of this node's next key while it asks others to follow. busy says that it
	// follows no other node for a moment; waits is since when it waited until it follows none, and waited when
	// that last was so. due is called with the time at which to follow one, promised says which node is followed
	// to a key.
	replaces      KeyTag
	busy          bool
	waits, waited time.Time
	due           func(at time.Time)
	promised      map[KeyTag]netip.Addr
}

// New returns a prober on a device and a UDP port. It calls poke when something changed, hurry
// when other nodes wait for this node's reaction, and due with the time at which the next key
// of another node takes the place of its current one.
func New(device string, port int, poke, hurry func(), due func(at time.Time)) *Prober {
	return &Prober{
		device: device, port: port, poke: poke, hurry: hurry, due: due, wake: make(chan struct{}, 1), tracked: map[netip.Addr]*trackedTarget{},
		promised: map[KeyTag]netip.Addr{},
		ends:     newEnds(port, poke),
	}
}

// Ends are the end-to-end probes, from pods' networks to pods' networks.
func (p *Prober) Ends() *Ends { return p.ends }

// Set replaces the targets and the claims. The histories of targets that stay are kept. Changes are
// announced to the targets at once.
func (p *Prober) Set(overlay netip.Addr, index int, targets []Target, claims map[PeerKey]Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if overlay != p.overlay || index != p.index {
		p.overlay, p.index = overlay, index
		p.closeLocked()
	}
	now := time.Now()
	keep, soon := map[netip.Addr]bool{}, false
	for _, t := range targets {
		keep[t.Overlay] = true
		s := p.tracked[t.Overlay]
		if s == nil {
			s = &trackedTarget{target: t, cluster: PeerKeyOf(t.Cluster)}
			p.tracked[t.Overlay] = s
			soon = true
		}
		if s.target.Carries != t.Carries || s.target.Agreement != t.Agreement || s.target.Entry != t.Entry || t.Busy && !s.target.Busy {
			s.due, soon = now, true
		}
		s.target = t
		s.Search = s.Search.Bounded(t.Bound, t.LastMTU)
	}
	for a := range p.tracked {
		if !keep[a] {
			delete(p.tracked, a)
		}
	}
	p.settleLocked()
	datagrams := encodeClaims(claims)
	if !equalDatagrams(datagrams, p.claims) {
		p.claims, soon = datagrams, true
		for _, s := range p.tracked {
			s.claimsSent = time.Time{}
		}
	}
	if soon {
		p.wakeUp()
	}
}

func equalDatagrams(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if string(a[i]) != string(b[i]) {
			return false
		}
	}
	return true
}

// Status returns the state of a target.
func (p *Prober) Status(a netip.Addr) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.tracked[a]; s != nil {
		return s.Status
	}
	return Status{}
}

// ClaimOf returns the claim of a node of this cluster about a peer. A node that has not sent claims
// since it was last lost is not alive.
func (p *Prober) ClaimOf(node netip.Addr, peer PeerKey) (c Claim, alive bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.tracked[node]; s != nil {
		return s.claims[peer], s.State == PathUp && s.claims != nil
	}
	return Claim{}, false
}

// Sizes is, by overlay address, the size of packets that pass.
func (p *Prober) Sizes() map[netip.Addr]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[netip.Addr]int, len(p.tracked))
	for a, s := range p.tracked {
		out[a] = s.Search.MTU()
	}
	return out
}

// Trouble returns why probes cannot be sent; empty means that they can.
func (p *Prober) Trouble() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	var readers sync.WaitGroup
	defer readers.Wait()
	defer func() {
		p.mu.Lock()
		p.closeLocked()
		p.mu.Unlock()
		p.ends.close()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var due time.Time // of the timer
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-timer.C:
		}
		if conn := p.open(ctx); conn != nil {
			readers.Go(func() { p.read(conn) })
		}
		for _, read := range p.ends.open(ctx) {
			readers.Go(read)
		}
		now := time.Now()
		if !due.IsZero() && now.Sub(due) >= probeLate {
			p.stalled(due, now)
			p.ends.stalled(due, now)
		}
		p.judge(now)
		next := p.round(now)
		p.ends.round(now)
		now = time.Now() // many paths take a while, which does not count as a stall
		due = now.Add(max(next.Sub(now), probeTogether))
		timer.Reset(due.Sub(now))
	}
}

// open makes the socket if it is missing. It returns the socket only if it made it.
func (p *Prober) open(ctx context.Context) *net.UDPConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil || !p.overlay.IsValid() || p.index == 0 {
		return nil
	}
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		cerr := raw.Control(func(fd uintptr) {
			// A large probe that were sent in fragments would prove nothing.
			err = errors.Join(unix.BindToDevice(int(fd), p.device),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, proberBuffer) // or else what the kernel gives
		})
		return errors.Join(cerr, err)
	}}
	conn, err := lc.ListenPacket(ctx, "udp6", netip.AddrPortFrom(p.overlay, uint16(p.port)).String())
	if err != nil {
		p.problem = fmt.Sprintf("paths cannot be probed: %v", err)
		return nil
	}
	p.problem = ""
	p.conn = conn.(*net.UDPConn) //nolint:forcetypeassert // what "udp6" gives
	return p.conn
}

func (p *Prober) closeLocked() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// round sends the probes that are due, at most roundMost, and returns when the next are.
func (p *Prober) round(now time.Time) (next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = now.Add(probeEvery)
	sent := 0
	for a, s := range p.tracked {
		if s.target.Home && sent < roundMost && now.Sub(s.claimsSent) >= probeEvery {
			for _, b := range p.claims {
				p.write(a, b)
			}
			s.claimsSent, sent = now, sent+len(p.claims)
		}
		if now.Before(s.due) || sent >= roundMost {
			next = s.nextDue(now, next)
			continue
		}
		sent++
		// A probe that could not be sent counts as sent: it is lost as well.
		p.send(a, s.announcing(probe{seq: s.Path.Next()}), probeLen)
		s.Path = s.Path.Sent(now)
		s.due = now.Add(s.Path.Pace(now, s.target.Busy))
		if s.burst > 0 {
			s.burst--
			s.due = now.Add(probeSoon)
		}
		next = s.nextDue(now, next)
		if size := s.Search.Next(now); size > 0 && s.Path.Answers(now) {
			p.send(a, s.announcing(probe{large: true}), size-probeHeaders)
			s.Search = s.Search.Sent(size, now)
		}
	}
	if sent >= roundMost {
		return now
	}
	return next
}

// nextDue returns the earlier of next and the time at which the target needs work again.
func (s *trackedTarget) nextDue(now, next time.Time) time.Time {
	next = earlier(next, s.due)
	if overdue := s.Path.Overdue(now); !overdue.IsZero() {
		next = earlier(next, overdue)
	}
	return next
}

// announcing adds to a probe what each probe announces to the target.
func (s *trackedTarget) announcing(m probe) probe {
	m.carries, m.agreement, m.entry = s.target.Carries, s.target.Agreement, s.target.Entry
	return m
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (p *Prober) send(to netip.Addr, m probe, size int) { p.write(to, m.encode(size)) }

// Try sends a probe which announces that this node tries other ways to the target. Its sequence number
// has the highest bit set, unlike all others; [Status.Reached] is the number of the last one that was
// answered. It does not count for the state of the path.
func (p *Prober) Try(to netip.Addr, number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.tracked[to]; s != nil {
		p.send(to, s.announcing(probe{tries: true, seq: number | trialBit}), probeLen)
	}
}

const trialBit = 1 << 63

func (p *Prober) write(to netip.Addr, b []byte) {
	if p.conn != nil {
		_, _ = p.conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, uint16(p.port)))
	}
}

// stalled notes that this process was not scheduled between two times.
func (p *Prober) stalled(from, to time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.tracked {
		s.Search = s.Search.Stalled(from, to, s.Path.patience())
		s.Path = s.Path.Stalled(from, to)
	}
}

// judge updates the states of all paths and notifies the fabric of changes. A path that lost a probe is
// probed again soon.
func (p *Prober) judge(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.tracked {
		p.notify(p.judgeOne(a, s, now))
	}
}

// judgeOne updates the state of one path. The claims are sent at once to a node of this cluster whose
// path came up.
func (p *Prober) judgeOne(a netip.Addr, s *trackedTarget, now time.Time) (moved, changed bool) {
	moved, changed = s.judge(now)
	if s.Path.Suspect(now) && now.Sub(s.Doubted) >= probeEvery {
		p.suspect(s, now)
	}
	if moved && s.target.Home && s.State == PathUp {
		for _, b := range p.claims {
			p.write(a, b)
		}
	}
	return moved, changed
}

// suspect probes at once all paths that could replace one on which a probe was lost, and asks the other
// gateways of its cluster to do the same, so that all know at about the same time which gateways are
// alive. A node that is reached directly cannot replace a gateway, and gateways replace it at once, unless it is
// a gateway itself at which packets enter.
func (p *Prober) suspect(lost *trackedTarget, now time.Time) {
	lost.doubt(now)
	p.wakeUp()
	if lost.target.OnDemand && !lost.target.Enters || lost.target.Home && lost.claims == nil {
		return // it is not a gateway
	}
	for a, s := range p.tracked {
		if s.target.Home && s != lost && (lost.target.Home || s.claims != nil) {
			p.send(a, s.announcing(probe{suspects: lost.cluster, seq: s.Path.Next()}), probeLen)
			s.Path = s.Path.Sent(now)
		}
	}
	if !lost.target.Home {
		p.doubt(lost.cluster, now)
	}
}

// doubt probes at once the gateways of a cluster that were not doubted lately.
func (p *Prober) doubt(cluster PeerKey, now time.Time) {
	for _, s := range p.tracked {
		if s.cluster == cluster && !s.target.OnDemand && (!s.target.Home || s.claims != nil) && now.Sub(s.Doubted) >= probeEvery {
			s.doubt(now)
		}
	}
}

func (s *trackedTarget) doubt(now time.Time) { s.Doubted, s.burst, s.due = now, probeLoss, now }

func (p *Prober) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// notify wakes the fabric: in a hurry where the state of a path changed.
func (p *Prober) notify(moved, changed bool) {
	switch {
	case moved:
		p.hurry()
	case changed:
		p.poke()
	}
}

func (s *trackedTarget) judge(now time.Time) (moved, changed bool) {
	state, mtu, blocked := s.Path.State(now), s.Search.MTU(), s.Search.Blocked()
	// A large probe whose small one, sent with it, was lost as well shows nothing about sizes.
	s.Search = s.Search.Elapsed(now, s.Path.patience(), s.Path.Answers(now) && !s.Path.Unanswered(s.Search.sent))
	changed = s.Search.MTU() != mtu || s.Search.Blocked() != blocked
	if state != s.State {
		s.State, s.Since, moved = state, now, true
		if state == PathDown {
			s.claims = nil
		}
	}
	return moved, changed
}

// read handles datagrams until the socket is closed.
func (p *Prober) read(conn *net.UDPConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != unix.EBADF {
			p.errors(conn)
			continue
		}
		if err != nil {
			p.mu.Lock()
			if p.conn == conn {
				p.closeLocked() // opened again in the next round
			}
			p.mu.Unlock()
			return
		}
		if int(from.Port()) != p.port {
			continue
		}
		sender := from.Addr().WithZone("").Unmap()
		if m, ok := decodeRekey(buf[:n]); ok {
			p.receiveRekey(sender, m, time.Now())
		} else if m, ok := decodeProbe(buf[:n]); ok {
			p.receive(sender, m, n, time.Now())
		}
	}
}

// errors reads the ICMP errors that were sent in answer to probes. One that the port is closed comes
// from the node itself: its tunnel passes packets while its fabric is being restarted.
func (p *Prober) errors(conn *net.UDPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		var data [probeLen]byte
		var control [256]byte
		for {
			_, n, _, to, err := unix.Recvmsg(int(fd), data[:], control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			if at, ok := to.(*unix.SockaddrInet6); ok && isPortUnreachable(control[:n], at.Addr) {
				p.refused(netip.AddrFrom16(at.Addr), time.Now())
			}
		}
	})
}

// isPortUnreachable reads a struct sock_extended_err and reports whether the host from itself sent
// that its port is unreachable (ip(7), ipv6(7)).
func isPortUnreachable(control []byte, from [16]byte) bool {
	const (
		originICMP6        = 3
		unreachable, port  = 1, 4
		extended, sockaddr = 16, 8 // bytes of the struct, and before the address in a sockaddr_in6
	)
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return false
	}
	for _, m := range messages {
		if m.Header.Level != unix.IPPROTO_IPV6 || m.Header.Type != unix.IPV6_RECVERR || len(m.Data) < extended+sockaddr+len(from) {
			continue
		}
		offender := m.Data[extended:]
		if m.Data[4] == originICMP6 && m.Data[5] == unreachable && m.Data[6] == port &&
			binary.NativeEndian.Uint16(offender) == unix.AF_INET6 && [16]byte(offender[sockaddr:]) == from {
			return true
		}
	}
	return false
}

func (p *Prober) refused(from netip.Addr, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.tracked[from]; s != nil {
		s.Path = s.Path.Refused(now)
		p.notify(p.judgeOne(from, s, now))
	}
}

func (p *Prober) receive(from netip.Addr, m probe, size int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.tracked[from]
	if s == nil {
		return
	}
	if m.claims != nil {
		if s.target.Home && s.takeClaims(m.claims) {
			p.hurry()
		}
		return
	}
	if now.Sub(s.counted) >= time.Second {
		s.answers, s.changes, s.counted = 0, 0, now
	}
	moved, changed := false, false
	if s.Carries != m.carries || s.Agreement != m.agreement || s.Entry != m.entry {
		s.changes++
		moved, changed = s.changes <= changesPerSecond, true
	}
	s.Carries, s.Agreement, s.Entry = m.carries, m.agreement, m.entry
	switch {
	case !m.answer:
		if m.tries && now.Sub(s.Tried) >= probeEvery {
			s.Tried = now
			p.hurry()
		}
		if m.suspects != (PeerKey{}) && s.target.Home {
			p.doubt(m.suspects, now)
			p.wakeUp()
		}
		if s.answers < answersPerSecond {
			s.answers++
			p.send(from, s.announcing(probe{answer: true, large: m.large, seq: m.seq}), size)
		}
	case m.large:
		mtu := s.Search.MTU()
		s.Search = s.Search.Answered(size + probeHeaders)
		changed = changed || s.Search.MTU() != mtu
	case m.seq&trialBit != 0:
		s.Reached = m.seq &^ trialBit
	default:
		s.Path = s.Path.Answered(m.seq, now)
		m, c := p.judgeOne(from, s, now)
		moved, changed = moved || m, changed || c
	}
	p.notify(moved, changed)
}

// takeClaims stores the claims of a gateway of this cluster, and reports whether any changed.
func (s *trackedTarget) takeClaims(claims map[PeerKey]Claim) bool {
	changed := false
	for key, c := range claims {
		if old, known := s.claims[key]; known && old == c || !known && len(s.claims) >= claimsMost {
			continue
		}
		if s.claims == nil {
			s.claims = map[PeerKey]Claim{}
		}
		s.claims[key], changed = c, true
	}
	return changed
}

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// answersPerSecond bounds what one peer can make us answer.
	answersPerSecond = 20
)

// target is a peer to probe.
type target struct {
	overlay netip.Addr
	// carries is announced to it: this node carries traffic to it.
	carries bool
	// bound is the most that can pass the way to it, in bytes; standing what was known to
	// pass before this process began, zero if nothing was.
	bound, standing int
}

// sight is the result of the probes of a target.
type sight struct {
	path    Path
	search  Search
	carries bool
	state   PathState
	since   time.Time
	answers int // in this second
}

// prober sends and answers probes.
type prober struct {
	device string
	port   int
	poke   func()

	mu      sync.Mutex
	overlay netip.Addr
	index   int // of the device that the socket is bound to
	sights  map[netip.Addr]*sight
	carries map[netip.Addr]bool
	conn    *net.UDPConn
	problem string
}

func newProber(device string, port int, poke func()) *prober {
	return &prober{device: device, port: port, poke: poke, sights: map[netip.Addr]*sight{}, carries: map[netip.Addr]bool{}}
}

// set replaces the targets. Histories of those that stay are kept.
func (p *prober) set(overlay netip.Addr, index int, targets []target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if overlay != p.overlay || index != p.index {
		p.overlay, p.index = overlay, index
		p.closeLocked()
	}
	keep := map[netip.Addr]bool{}
	for _, t := range targets {
		keep[t.overlay], p.carries[t.overlay] = true, t.carries
		if p.sights[t.overlay] == nil {
			p.sights[t.overlay] = &sight{}
		}
		s := p.sights[t.overlay]
		s.search = s.search.Bounded(t.bound, t.standing)
	}
	for a := range p.sights {
		if !keep[a] {
			delete(p.sights, a)
			delete(p.carries, a)
		}
	}
}

// look returns the state of a target.
func (p *prober) look(a netip.Addr) sight {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sights[a]; s != nil {
		return *s
	}
	return sight{}
}

// sizes is, by overlay address, the size of packets that pass.
func (p *prober) sizes() map[netip.Addr]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[netip.Addr]int, len(p.sights))
	for a, s := range p.sights {
		out[a] = s.search.MTU()
	}
	return out
}

// trouble is why no probes can be sent; empty if they can.
func (p *prober) trouble() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// run probes until ctx ends.
func (p *prober) run(ctx context.Context) error {
	var readers sync.WaitGroup
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	defer readers.Wait()
	defer func() {
		p.mu.Lock()
		p.closeLocked()
		p.mu.Unlock()
	}()
	for {
		if conn := p.open(ctx); conn != nil {
			readers.Go(func() { p.read(conn) })
		}
		p.round(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		p.judge(time.Now())
	}
}

// open makes the socket if there is none; it returns a new one only.
func (p *prober) open(ctx context.Context) *net.UDPConn {
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
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE))
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

func (p *prober) closeLocked() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// round sends one probe to each target.
func (p *prober) round(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return
	}
	for a, s := range p.sights {
		s.answers = 0
		seq := s.path.Next()
		// A probe that could not be sent counts as sent: it is lost as well.
		p.send(a, probe{carries: p.carries[a], seq: seq}, probeLen)
		s.path = s.path.Sent(now)
		if size := s.search.Next(now); size > 0 && s.path.State(now) == PathUp {
			p.send(a, probe{carries: p.carries[a], large: true}, size-probeHeaders)
			s.search = s.search.Sent(size, now)
		}
	}
}

func (p *prober) send(to netip.Addr, m probe, size int) {
	if p.conn != nil {
		_, _ = p.conn.WriteToUDPAddrPort(m.encode(size), netip.AddrPortFrom(to, uint16(p.port)))
	}
}

// judge pokes when the state of a path changed.
func (p *prober) judge(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := false
	for _, s := range p.sights {
		changed = s.judge(now) || changed
	}
	if changed {
		p.poke()
	}
}

func (s *sight) judge(now time.Time) bool {
	state, mtu, blocked := s.path.State(now), s.search.MTU(), s.search.Blocked()
	s.search = s.search.Elapsed(now, s.path.patience(), state == PathUp)
	changed := s.search.MTU() != mtu || s.search.Blocked() != blocked
	if state != s.state {
		s.state, s.since, changed = state, now, true
	}
	return changed
}

// read handles what comes until the socket is closed.
func (p *prober) read(conn *net.UDPConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			p.mu.Lock()
			if p.conn == conn {
				p.closeLocked() // opened again in the next round
			}
			p.mu.Unlock()
			return
		}
		if m, ok := decodeProbe(buf[:n]); ok && int(from.Port()) == p.port {
			p.receive(from.Addr().WithZone("").Unmap(), m, n, time.Now())
		}
	}
}

func (p *prober) receive(from netip.Addr, m probe, size int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sights[from]
	if s == nil {
		return
	}
	changed := s.carries != m.carries
	s.carries = m.carries
	switch {
	case !m.answer:
		if s.answers < answersPerSecond {
			s.answers++
			p.send(from, probe{answer: true, carries: p.carries[from], large: m.large, seq: m.seq}, size)
		}
	case m.large:
		mtu := s.search.MTU()
		s.search = s.search.Answered(size + probeHeaders)
		changed = s.search.MTU() != mtu || changed
	default:
		s.path = s.path.Answered(m.seq, now)
		changed = s.judge(now) || changed
	}
	if changed {
		p.poke()
	}
}

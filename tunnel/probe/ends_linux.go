package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// Ends sends and answers end-to-end probes. It runs in the rounds of its [Prober], so that it needs
// no timer of its own.
type Ends struct {
	port int
	poke func()

	mu      sync.Mutex
	setup   EndSetup
	peers   map[string]*endPeer
	of      map[netip.Addr]*endPeer // by the address of a target
	from    map[netip.Addr]*endPeer // by the address of a node that is answered
	sockets map[netip.Addr]*endSockets
	problem string
	rounded time.Time
}

// EndSetup says which peers a node probes end to end, and which nodes it answers.
type EndSetup struct {
	// Index is that of the device from which probes of others arrive; zero while there is no device.
	Index int
	// Nodes is how many nodes of this cluster probe the same peers.
	Nodes int
	// Sources are the node's own addresses from which it probes, one of each family at most.
	Sources []netip.Addr
	// Blocked4 and Blocked6 say that this node does not forward packets to its pods. Its answers
	// report that.
	Blocked4, Blocked6 bool
	Peers              []EndPeer
}

// endSockets are the sockets at one of the node's own addresses: ask sends probes and receives answers,
// answer receives the probes of others.
type endSockets struct{ ask, answer *net.UDPConn }

func (s *endSockets) close() { _, _ = s.ask.Close(), s.answer.Close() }

func newEnds(port int, poke func()) *Ends {
	return &Ends{port: port, poke: poke, peers: map[string]*endPeer{}, sockets: map[netip.Addr]*endSockets{}}
}

// Set replaces the setup. The histories of targets that stay are kept.
func (e *Ends) Set(to EndSetup) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a, s := range e.sockets {
		if to.Index != e.setup.Index || len(to.Peers) == 0 || !slices.Contains(to.Sources, a) {
			if s != nil {
				s.close()
			}
			delete(e.sockets, a)
		}
	}
	for _, a := range to.Sources {
		if _, ok := e.sockets[a]; !ok && to.Index != 0 && len(to.Peers) > 0 {
			e.sockets[a] = nil // opened in the next round
		}
	}
	e.setup = to
	known := e.peers
	e.peers, e.of, e.from = make(map[string]*endPeer, len(to.Peers)), map[netip.Addr]*endPeer{}, map[netip.Addr]*endPeer{}
	for _, peer := range to.Peers {
		q := known[peer.Cluster]
		if q == nil {
			q = &endPeer{}
		}
		q.set(peer)
		e.peers[peer.Cluster] = q
		for _, t := range peer.Targets {
			e.of[t.Addr] = q
		}
		for _, a := range peer.From {
			e.from[a] = q
		}
	}
}

// Status returns the status of a peer that was reported last.
func (e *Ends) Status(cluster string) EndStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.peers[cluster]; q != nil {
		return q.reported
	}
	return EndStatus{}
}

// Trouble returns why probes cannot be sent or answered; empty means that they can.
func (e *Ends) Trouble() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problem
}

// open makes the sockets that are missing, and returns what reads from them.
func (e *Ends) open(ctx context.Context) (readers []func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.problem = ""
	for a, s := range e.sockets {
		if s != nil {
			continue
		}
		ask, err := listenEnd(ctx, a, 0)
		if err != nil {
			e.problem = fmt.Sprintf("the ways from pods to pods cannot be probed: %v", err)
			continue
		}
		answer, err := listenEnd(ctx, a, e.port)
		if err != nil {
			_ = ask.Close()
			e.problem = fmt.Sprintf("the probes of peers' nodes to pods cannot be answered, so peers report packets to this node as lost: %v: see that no other program uses UDP port %d here", err, e.port)
			continue
		}
		e.sockets[a] = &endSockets{ask: ask, answer: answer}
		readers = append(readers, func() { e.answers(ask) }, func() { e.probes(answer) })
	}
	return readers
}

// listenEnd opens a socket at an address. Its packets are fragmented like those of any program, by
// the path MTU that the kernel knows. A socket that asks (port 0) receives ICMP errors, one that
// answers the device by which each packet arrived.
func listenEnd(ctx context.Context, at netip.Addr, port int) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		cerr := raw.Control(func(fd uintptr) {
			level, discover, want, option := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_WANT, unix.IP_RECVERR
			if at.Is6() {
				level, discover, want, option = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_WANT, unix.IPV6_RECVERR
			}
			if port != 0 {
				if option = unix.IP_PKTINFO; at.Is6() {
					option = unix.IPV6_RECVPKTINFO
				}
			}
			err = errors.Join(unix.SetsockoptInt(int(fd), level, discover, want), unix.SetsockoptInt(int(fd), level, option, 1))
		})
		return errors.Join(cerr, err)
	}}
	network := "udp4"
	if at.Is6() {
		network = "udp6"
	}
	conn, err := lc.ListenPacket(ctx, network, netip.AddrPortFrom(at, uint16(port)).String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil //nolint:forcetypeassert // what these networks give
}

func (e *Ends) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a, s := range e.sockets {
		if s != nil {
			s.close()
		}
		delete(e.sockets, a)
	}
}

// round notes the probes that were lost and sends those that are due, about once each [endEvery].
func (e *Ends) round(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Sub(e.rounded) < endEvery*9/10 {
		return
	}
	e.rounded = now
	pace := endPace(len(e.peers), e.setup.Nodes)
	var due []*endPeer
	changed := false
	for _, q := range e.peers {
		q.overdue(now)
		changed = q.report(now) || changed
		if q.due.IsZero() { // nodes and peers do not all begin in the same moment
			q.due = now.Add(time.Duration(binary.BigEndian.Uint16(random(2))) * pace >> 16)
		}
		if !now.Before(q.due.Add(-endEvery / 4)) { // or else it would be in the next round
			due = append(due, q)
		}
	}
	slices.SortFunc(due, func(a, b *endPeer) int { return a.due.Compare(b.due) })
	for _, q := range due[:min(len(due), endsPerSecond)] {
		q.due = now.Add(pace)
		if q.Down {
			continue
		}
		for _, p := range q.choose() {
			e.send(p, now)
		}
	}
	if changed {
		e.poke()
	}
}

// send probes a path. A probe that could not be sent is lost as well.
func (e *Ends) send(p *endPath, now time.Time) {
	var from *endSockets
	for a, s := range e.sockets {
		if a.BitLen() == p.target.Addr.BitLen() {
			from = s
		}
	}
	if from == nil {
		return
	}
	sent := endSent{nonce: endNonce(random(len(endNonce{}))), at: now, large: p.next()}
	sent.size = p.size(sent.large)
	p.waiting = append(p.waiting, sent)
	_, _ = from.ask.WriteToUDPAddrPort(endProbe{nonce: sent.nonce}.encode(sent.size), netip.AddrPortFrom(p.target.Addr, uint16(e.port)))
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}

// stalled notes that this process was not scheduled between two times.
func (e *Ends) stalled(from, to time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.peers {
		for _, p := range q.paths {
			for i := range p.waiting {
				if from.Sub(p.waiting[i].at) < endPatience {
					p.waiting[i].at = p.waiting[i].at.Add(to.Sub(from))
				}
			}
		}
	}
}

// answers reads answers until the socket is closed.
func (e *Ends) answers(conn *net.UDPConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != unix.EBADF {
			refusals(conn, func(by netip.Addr) { e.refused(by, time.Now()) })
			continue
		}
		if err != nil {
			return
		}
		if m, ok := decodeEndProbe(buf[:n]); ok && m.answer && int(from.Port()) == e.port {
			e.answered(from.Addr().WithZone("").Unmap(), m, n, time.Now())
		}
	}
}

func (e *Ends) answered(from netip.Addr, m endProbe, size int, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.of[from]
	if q == nil {
		return
	}
	p := q.paths[from]
	sent, ok := p.take(func(s endSent) bool { return s.nonce == m.nonce })
	if !ok || size < sent.size {
		return
	}
	p.EndPath, q.changed = p.Answered(sent.large, m.blocked, now), true
	if q.report(now) {
		e.poke()
	}
}

// refused notes that the kernel of the node at an address answered that the port is closed, as while
// the fabric there is restarted: packets pass.
func (e *Ends) refused(by netip.Addr, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.of[by]
	if q == nil {
		return
	}
	p := q.paths[by]
	if sent, ok := p.take(func(s endSent) bool { return true }); ok && p.state != EndUnknown {
		p.EndPath, q.changed = p.Refused(sent.large, now), true
	}
	if q.report(now) {
		e.poke()
	}
}

// probes answers probes until the socket is closed: those of nodes of peers that arrived by the device.
func (e *Ends) probes(conn *net.UDPConn) {
	buf, control := make([]byte, 1<<16), make([]byte, 256)
	for {
		n, c, _, from, err := conn.ReadMsgUDPAddrPort(buf, control)
		if _, ok := errors.AsType[syscall.Errno](err); ok && !errors.Is(err, unix.EBADF) {
			continue
		}
		if err != nil {
			return
		}
		m, ok := decodeEndProbe(buf[:n])
		if !ok || m.answer {
			continue
		}
		sender := from.Addr().WithZone("").Unmap()
		if blocked, ok := e.mayAnswer(sender, cameBy(control[:c]), time.Now()); ok {
			_, _ = conn.WriteToUDPAddrPort(endProbe{answer: true, blocked: blocked, nonce: m.nonce}.encode(n), from)
		}
	}
}

// mayAnswer reports whether to answer a probe, and whether this node does not forward to its pods.
func (e *Ends) mayAnswer(from netip.Addr, device int, now time.Time) (blocked, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.from[from]
	if q == nil || device != e.setup.Index {
		return false, false
	}
	if now.Sub(q.counted) >= time.Second {
		q.answers, q.counted = 0, now
	}
	if q.answers++; q.answers > plan.MaxEndProbes {
		return false, false
	}
	if from.Is6() {
		return e.setup.Blocked6, true
	}
	return e.setup.Blocked4, true
}

// cameBy returns the index of the device by which a packet arrived; 0 means unknown.
func cameBy(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			return int(int32(binary.NativeEndian.Uint32(m.Data)))
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			return int(int32(binary.NativeEndian.Uint32(m.Data[16:])))
		}
	}
	return 0
}

// refusals reads the ICMP errors that arrived for a socket, and calls refused with the address of each
// node that itself answered that the port is closed.
func refusals(conn *net.UDPConn, refused func(by netip.Addr)) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	var by []netip.Addr
	_ = raw.Control(func(fd uintptr) {
		var data [endLen]byte
		var control [256]byte
		for {
			_, n, _, to, err := unix.Recvmsg(int(fd), data[:], control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			switch at := to.(type) {
			case *unix.SockaddrInet6:
				if isPortUnreachable(control[:n], at.Addr) {
					by = append(by, netip.AddrFrom16(at.Addr))
				}
			case *unix.SockaddrInet4:
				if isPortUnreachable4(control[:n], at.Addr) {
					by = append(by, netip.AddrFrom4(at.Addr))
				}
			}
		}
	})
	for _, a := range by {
		refused(a)
	}
}

// isPortUnreachable4 is isPortUnreachable for IPv4.
func isPortUnreachable4(control []byte, from [4]byte) bool {
	const (
		originICMP         = 2
		unreachable, port  = 3, 3
		extended, sockaddr = 16, 4
	)
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return false
	}
	for _, m := range messages {
		if m.Header.Level != unix.IPPROTO_IP || m.Header.Type != unix.IP_RECVERR || len(m.Data) < extended+sockaddr+len(from) {
			continue
		}
		offender := m.Data[extended:]
		if m.Data[4] == originICMP && m.Data[5] == unreachable && m.Data[6] == port &&
			binary.NativeEndian.Uint16(offender) == unix.AF_INET && [4]byte(offender[sockaddr:]) == from {
			return true
		}
	}
	return false
}

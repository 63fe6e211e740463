package mdns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// groupOf returns the group of a family (RFC 6762 section 3).
func groupOf(f family) netip.Addr {
	if f == ipv4Family {
		return netip.AddrFrom4([4]byte{224, 0, 0, 251})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 0xfb})
}

// A socket is the port in one family, for all interfaces. Other processes on this host may have it,
// too (section 15): multicast reaches all of them.
type socket struct {
	family family
	conn   net.PacketConn
	v4     *ipv4.PacketConn
	v6     *ipv6.PacketConn
}

// A datagram is a received packet.
type datagram struct {
	index     int
	from      netip.AddrPort
	multicast bool
	data      []byte
}

func listen(ctx context.Context, f family) (*socket, error) {
	lc := net.ListenConfig{Control: sharePort}
	network, addr := "udp4", fmt.Sprintf("0.0.0.0:%d", port)
	if f == ipv6Family {
		network, addr = "udp6", fmt.Sprintf("[::]:%d", port)
	}
	conn, err := lc.ListenPacket(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	s := &socket{family: f, conn: conn}
	// Section 11: a TTL of 255, for unicast, too. Section 15: multicast loops back, for other
	// processes on this host.
	if f == ipv4Family {
		s.v4 = ipv4.NewPacketConn(conn)
		err = errors.Join(s.v4.SetMulticastTTL(255), s.v4.SetTTL(255), s.v4.SetMulticastLoopback(true),
			s.v4.SetControlMessage(ipv4.FlagInterface|ipv4.FlagDst, true))
	} else {
		s.v6 = ipv6.NewPacketConn(conn)
		err = errors.Join(s.v6.SetMulticastHopLimit(255), s.v6.SetHopLimit(255), s.v6.SetMulticastLoopback(true),
			s.v6.SetControlMessage(ipv6.FlagInterface|ipv6.FlagDst, true))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

func (s *socket) join(index int) error {
	i, group := &net.Interface{Index: index}, &net.UDPAddr{IP: groupOf(s.family).AsSlice()}
	if s.v4 != nil {
		return s.v4.JoinGroup(i, group)
	}
	return s.v6.JoinGroup(i, group)
}

func (s *socket) leave(index int) error {
	i, group := &net.Interface{Index: index}, &net.UDPAddr{IP: groupOf(s.family).AsSlice()}
	if s.v4 != nil {
		return s.v4.LeaveGroup(i, group)
	}
	return s.v6.LeaveGroup(i, group)
}

// read waits for a datagram, and reads its data into b.
func (s *socket) read(b []byte) (datagram, error) {
	var n, index int
	var dst net.IP
	var src net.Addr
	var err error
	if s.v4 != nil {
		var cm *ipv4.ControlMessage
		if n, cm, src, err = s.v4.ReadFrom(b); cm != nil {
			index, dst = cm.IfIndex, cm.Dst
		}
	} else {
		var cm *ipv6.ControlMessage
		if n, cm, src, err = s.v6.ReadFrom(b); cm != nil {
			index, dst = cm.IfIndex, cm.Dst
		}
	}
	if err != nil {
		return datagram{}, err
	}
	udp, ok := src.(*net.UDPAddr)
	if !ok {
		return datagram{}, nil
	}
	from := udp.AddrPort()
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	return datagram{index, from, dst.IsMulticast(), b[:n]}, nil
}

// send sends to an address, or to the group if to is invalid, on an interface.
func (s *socket) send(index int, to netip.AddrPort, b []byte) error {
	if !to.IsValid() {
		to = netip.AddrPortFrom(groupOf(s.family), port)
	}
	var err error
	if s.v4 != nil {
		_, err = s.v4.WriteTo(b, &ipv4.ControlMessage{IfIndex: index}, net.UDPAddrFromAddrPort(to))
	} else {
		_, err = s.v6.WriteTo(b, &ipv6.ControlMessage{IfIndex: index}, net.UDPAddrFromAddrPort(to))
	}
	return err
}

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"
)

// Ports that Entente shows to other clusters.
const (
	WireGuardPort = 51820
	// PeerNodePort is where the chart puts the peer API on nodes.
	PeerNodePort = 30743
)

// Record writes the packets between the clusters to a file while do runs, and a
// moment longer.
func (w *World) Record(ctx context.Context, file string, do func(context.Context) error) error {
	return whileRecording(ctx, do, func(ctx context.Context, log io.Writer) error {
		return w.Lab.Capture(ctx, w.Home.Plan.Name, w.Abroad.Plan.Name, file, log)
	})
}

// RecordLAN is Record for all packets on the LAN of home that match a filter, as
// pcap-filter(7) has it.
func (w *World) RecordLAN(ctx context.Context, filter, file string, do func(context.Context) error) error {
	return w.RecordOn(ctx, w.Home.Plan.LANName, filter, file, do)
}

// RecordOn is RecordLAN for any LAN, by its name in the plan.
func (w *World) RecordOn(ctx context.Context, lan, filter, file string, do func(context.Context) error) error {
	return whileRecording(ctx, do, func(ctx context.Context, log io.Writer) error {
		return w.Lab.Record(ctx, lan, filter, file, log)
	})
}

func whileRecording(ctx context.Context, do func(context.Context) error, capture func(context.Context, io.Writer) error) error {
	recording, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	var log bytes.Buffer
	go func() { ended <- capture(recording, &log) }()
	select {
	case err := <-ended:
		return fmt.Errorf("record packets: %w\n%s", err, log.String())
	case <-time.After(time.Second): // tcpdump starts
	}
	err := do(ctx)
	stop()
	if ended := <-ended; ended != nil {
		return errors.Join(err, fmt.Errorf("record packets: %w\n%s", ended, log.String()))
	}
	return err
}

// Traffic is the contents of a recording.
type Traffic struct {
	// WireGuard and TLS packets, and the TLS records that were read.
	WireGuard, TLS, Records int
	// Bytes is the length of all packets.
	Bytes int
	// Other is packets that are neither, in words, the first few.
	Other []string
	// Others is how many those are.
	Others int
}

// String is the traffic for people.
func (t Traffic) String() string {
	text := fmt.Sprintf("%d WireGuard packets, %d packets of TLS with %d records whole, %d bytes in all", t.WireGuard, t.TLS, t.Records, t.Bytes)
	if t.Others > 0 {
		text += fmt.Sprintf("; and %d others:\n%s", t.Others, strings.Join(t.Other, "\n"))
	}
	return text
}

const (
	pcapMagic      = 0xa1b2c3d4
	pcapMagicNano  = 0xa1b23c4d
	pcapHeader     = 24
	pcapPacket     = 16
	etherHeader    = 14
	maxOther       = 20
	tlsHeader      = 5
	tlsRecordMost  = 1<<14 + 256
	protocolTCP    = 6
	protocolUDP    = 17
	etherTypeIPv4  = 0x0800
	tcpFlagSYN     = 0x02
	wireGuardTypes = 4
)

// ReadTraffic reads a recording and judges each packet: WireGuard is UDP of its port with a message
// of its format; TLS is TCP to or from the peer API whose payload, from the first recognisable
// record on, is record after record. Words are what must not be readable anywhere.
func ReadTraffic(file string, words ...string) (Traffic, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Traffic{}, err
	}
	if len(b) < pcapHeader {
		return Traffic{}, fmt.Errorf("%s is not a recording", file)
	}
	order, err := pcapOrder(b)
	if err != nil {
		return Traffic{}, fmt.Errorf("%s: %w", file, err)
	}
	r := &trafficReader{flows: map[flow]*tlsFlow{}, words: words}
	for b = b[pcapHeader:]; len(b) > 0; {
		if len(b) < pcapPacket {
			return Traffic{}, io.ErrUnexpectedEOF
		}
		n := int(order.Uint32(b[8:]))
		if n > len(b)-pcapPacket {
			return Traffic{}, io.ErrUnexpectedEOF
		}
		r.packet(b[pcapPacket : pcapPacket+n])
		b = b[pcapPacket+n:]
	}
	for f, t := range r.flows {
		if !t.synced && t.bytes > 0 {
			r.other("%s: %d bytes that are not TLS records", f, t.bytes)
		}
	}
	return r.traffic, nil
}

func pcapOrder(b []byte) (binary.ByteOrder, error) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if m := order.Uint32(b); m == pcapMagic || m == pcapMagicNano {
			if link := order.Uint32(b[20:]); link != 1 {
				return nil, fmt.Errorf("link type %d is not Ethernet", link)
			}
			return order, nil
		}
	}
	return nil, errors.New("no pcap file")
}

type flow struct{ from, to netip.AddrPort }

func (f flow) String() string { return f.from.String() + " > " + f.to.String() }

// tlsFlow is one way of a TCP connection.
type tlsFlow struct {
	synced bool
	bytes  int
	// next is the number of the byte that is expected; rest is bytes of a record
	// that is not whole yet.
	next uint32
	rest []byte
}

type trafficReader struct {
	traffic Traffic
	flows   map[flow]*tlsFlow
	words   []string
}

func (r *trafficReader) other(format string, args ...any) {
	r.traffic.Others++
	if len(r.traffic.Other) < maxOther {
		r.traffic.Other = append(r.traffic.Other, fmt.Sprintf(format, args...))
	}
}

// packet judges one Ethernet frame.
func (r *trafficReader) packet(b []byte) {
	r.traffic.Bytes += len(b)
	for _, w := range r.words {
		if bytes.Contains(b, []byte(w)) {
			r.other("a packet in which %q can be read", w)
		}
	}
	if len(b) < etherHeader+20 || binary.BigEndian.Uint16(b[12:]) != etherTypeIPv4 {
		r.other("a frame of type %#04x", binary.BigEndian.Uint16(b[12:]))
		return
	}
	ip := b[etherHeader:]
	size := int(ip[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(ip[2:]))
	if total > len(ip) || size+8 > total {
		r.other("an IP packet that is cut off")
		return
	}
	from, to := netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	protocol := ip[9]
	ip = ip[:total]
	body := ip[size:]
	f := flow{netip.AddrPortFrom(from, binary.BigEndian.Uint16(body)), netip.AddrPortFrom(to, binary.BigEndian.Uint16(body[2:]))}
	switch {
	case protocol == protocolUDP && isWireGuard(f, body[8:]):
		r.traffic.WireGuard++
	case protocol == protocolTCP && len(body) >= 20 && (f.from.Port() == PeerNodePort || f.to.Port() == PeerNodePort):
		r.traffic.TLS++
		r.tls(f, body)
	default:
		r.other("protocol %d, %s, %d bytes", protocol, f, len(body))
	}
}

// isWireGuard knows the four kinds of message by their first four bytes: a type
// and three zeros.
func isWireGuard(f flow, b []byte) bool {
	return (f.from.Port() == WireGuardPort || f.to.Port() == WireGuardPort) &&
		len(b) >= 32 && b[0] >= 1 && b[0] <= wireGuardTypes && b[1] == 0 && b[2] == 0 && b[3] == 0
}

// tls follows one way of a connection, record by record.
func (r *trafficReader) tls(f flow, segment []byte) {
	t := r.flows[f]
	if t == nil {
		t = &tlsFlow{}
		r.flows[f] = t
	}
	seq := binary.BigEndian.Uint32(segment[4:])
	if segment[13]&tcpFlagSYN != 0 {
		*t = tlsFlow{synced: true, next: seq + 1}
		return
	}
	payload := segment[int(segment[12]>>4)*4:]
	if len(payload) == 0 {
		return
	}
	t.bytes += len(payload)
	if !t.synced {
		if !isRecord(payload) {
			return // the middle of a record that began before the recording
		}
		t.synced, t.next = true, seq
	}
	switch ahead := int32(seq - t.next); {
	case ahead > 0: // a segment is missing here: begin again with the next record
		*t = tlsFlow{bytes: 0}
		return
	case ahead < 0: // sent again
		if -int(ahead) >= len(payload) {
			return
		}
		payload = payload[-int(ahead):]
	}
	t.next += uint32(len(payload))
	t.rest = append(t.rest, payload...)
	for len(t.rest) >= tlsHeader {
		if !isRecord(t.rest) {
			r.other("%s: bytes that are not a TLS record: % x", f, t.rest[:tlsHeader])
			*t = tlsFlow{}
			return
		}
		n := tlsHeader + int(binary.BigEndian.Uint16(t.rest[3:]))
		if len(t.rest) < n {
			return
		}
		t.rest = t.rest[n:]
		r.traffic.Records++
	}
}

// isRecord reports whether bytes begin like a TLS record: type, version, length.
func isRecord(b []byte) bool {
	return len(b) >= tlsHeader && b[0] >= 20 && b[0] <= 23 && b[1] == 3 && b[2] >= 1 && b[2] <= 3 &&
		int(binary.BigEndian.Uint16(b[3:])) <= tlsRecordMost
}
